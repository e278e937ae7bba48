"""Writes: the transaction of each record, and the outcome of the transaction."""

from infra.chaos.checker.finding import Findings
from infra.chaos.checker.records import RecordIndex, WriteLifecycle, make_poll, stamp
from infra.chaos.history.events import Write


class Writes:
    """Follows writes from their `invoke` to their end. Without an end the outcome of a write is unknown."""

    def __init__(self, records: RecordIndex, findings: Findings) -> None:
        self._records = records
        self._findings = findings
        self._open: dict[str, WriteLifecycle] = {}

    def write(self, event: Write) -> None:
        """Process the beginning or the end of a write. The event of the beginning may lack the records."""
        at = stamp(event)
        lifecycle = self._open.get(event.transaction)
        if lifecycle is None:
            lifecycle = WriteLifecycle(event.transaction, at)
            if event.type == "invoke":
                self._open[event.transaction] = lifecycle
        elif event.type != "invoke":
            lifecycle.last = at
            del self._open[event.transaction]
        for written in event.records:
            record = self._records.get(written.event)
            if record.write is not None:
                continue
            if record.observations and not record.fits(written):  # it was read before the write, with other content
                observation = record.observations[0]
                observation.odd = observation.shown()
                shown = make_poll(observation.stamp, "uncommitted", observation.odd)
                self._findings.add(
                    "inconsistent-offsets",
                    f"{observation} does not hold what was written as {written.event}",
                    (event, shown),
                )
            record.describe(written)
            record.write = lifecycle
