"""double-effect: a consumer has applied a record twice."""

from infra.chaos.checker.finding import Findings
from infra.chaos.checker.records import RecordIndex
from infra.chaos.history.events import Effect


class Effects:
    """Follows the records that each consumer has applied."""

    def __init__(self, records: RecordIndex, findings: Findings) -> None:
        self._records = records
        self._findings = findings

    def effect(self, event: Effect) -> None:
        """Process an event: a consumer has applied a record. Other types than `ok` are ignored."""
        if event.type != "ok":
            return
        record = self._records.get(event.event)
        for earlier in record.effects:
            if earlier.consumer == event.consumer:
                self._findings.add(
                    "double-effect",
                    f"{event.consumer} has applied {record} twice",
                    (earlier, event),
                )
                return
        record.effects += (event,)
