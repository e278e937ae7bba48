"""Keep account of the writes: which record belongs to which transaction, and how that ended."""

from harvest_lib.audit.checker.finding import Findings
from harvest_lib.audit.checker.records import Records, WriteStory, polled, stamp
from harvest_lib.audit.history import Write


class Writes:
    """Follows writes from their invocation to their end; a writer that never came back leaves its outcome unknown."""

    def __init__(self, records: Records, findings: Findings) -> None:
        self._records = records
        self._findings = findings
        self._open: dict[str, WriteStory] = {}

    def write(self, event: Write) -> None:
        """Take in the beginning or the end of a write. Its records may be known at its end only."""
        at = stamp(event)
        story = self._open.get(event.transaction)
        if story is None:
            story = WriteStory(event.transaction, at)
            if event.type == "invoke":
                self._open[event.transaction] = story
        elif event.type != "invoke":
            story.last = at
            del self._open[event.transaction]
        for written in event.records:
            record = self._records.get(written.event)
            if record.write is not None:
                continue
            if record.sightings and not record.fits(written):  # read before it was written, and not the same
                sighting = record.sightings[0]
                sighting.odd = sighting.shown()
                shown = polled(sighting.stamp, "uncommitted", sighting.odd)
                self._findings.add(
                    "inconsistent-offsets",
                    f"{sighting} does not hold what was written as {written.event}",
                    (event, shown),
                )
            record.describe(written)
            record.write = story
