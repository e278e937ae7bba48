"""parked-read: a record was seen while it was parked, or held behind a parked record, or after it was dropped.

A record that was dropped, or is parked at the end of the history, need not be seen.
"""

from infra.chaos.checker.finding import Findings
from infra.chaos.checker.records import RecordIndex, make_poll, stamp
from infra.chaos.history.events import Park, Poll


class Parkings:
    """Follows records that were parked."""

    def __init__(self, records: RecordIndex, findings: Findings) -> None:
        self._records = records
        self._findings = findings
        self._parked: dict[str, Park] = {}

    def park(self, event: Park) -> None:
        """Process an event: records were parked, retried or dropped."""
        for each in event.events:
            self._records.get(each).parked = event.step != "retry"
            if event.step == "retry":
                self._parked.pop(each, None)
            else:
                self._parked[each] = event

    def poll(self, event: Poll) -> None:
        for shown in event.records if self._parked else ():
            if (parked := self._parked.get(shown.event)) is not None:
                self._findings.add(
                    "parked-read",
                    f"{event.process} read {shown.event} "
                    + ("after it was dropped" if parked.step == "drop" else "while it was parked"),
                    (parked, make_poll(stamp(event), event.isolation, shown)),
                )
