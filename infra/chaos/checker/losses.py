"""Checks that the log has all records that it must have, and no others, by the outcome of their writes.

lost-write         a committed record was never seen, although Kafka acknowledged it, or its row was purged, or a later
                   record of its key was seen
unseen             a committed record was never seen, and none of these three conditions holds
aborted-read       a record was seen although its write was rolled back or never began
precommitted-read  a record was seen before its write began
"""

from infra.chaos.checker.finding import Findings
from infra.chaos.checker.promise import Promise
from infra.chaos.checker.records import Observation, RecordIndex, RecordLifecycle
from infra.chaos.history.events import Event


class Losses:
    """Compares the written records with the seen records, at the end of the history."""

    def __init__(self, promise: Promise, records: RecordIndex, findings: Findings) -> None:
        self._promise = promise
        self._records = records
        self._findings = findings
        self._highest: dict[tuple[str, str], Observation] = {}

    def finish(self) -> None:
        """Check all records: first the records that were seen, then the records that were not."""
        for record in self._records.by_event.values():
            if record.observations:
                self._seen(record, record.observations[0])
        for record in self._records.by_event.values():
            if self._certain(record) and self._visible(record) is None:
                self._missing(record)

    def _certain(self, record: RecordLifecycle) -> bool:
        """Return True if the record must be seen. Its writer, a reader, an acknowledgement or a purge proves that it
        was committed, and no failover, deleted topic or parking excuses its absence."""
        write = record.write
        if write is None or write.last.type == "fail" or record.forgotten or record.gone or record.parked:
            return False
        acknowledged = bool(record.acknowledged) and not self._promise.transactional
        return write.committed or acknowledged or record.purged is not None

    def _visible(self, record: RecordLifecycle) -> Observation | None:
        return next((s for s in record.observations if s.committed or not self._promise.transactional), None)

    def _seen(self, record: RecordLifecycle, observation: Observation) -> None:
        write = record.write
        if write is None:
            self._findings.add(
                "aborted-read", f"{observation} holds {record}, which was never written", (observation.poll(),)
            )
            return
        if write.last.type == "fail":
            self._findings.add(
                "aborted-read",
                f"{observation} holds {record}, whose write was rolled back",
                (*record.writes(), observation.poll()),
            )
            return
        if observation.stamp.time < write.first.time:
            self._findings.add(
                "precommitted-read",
                f"{observation} was read before the write of {record} began",
                (observation.poll(), *record.writes()),
            )
        if self._visible(record) is not None:
            write.seen = True
            if record.key is not None and not record.forgotten:
                highest = self._highest.setdefault((record.topic, record.key), observation)
                if highest.record.seq < record.seq:
                    self._highest[record.topic, record.key] = observation

    def _missing(self, record: RecordLifecycle) -> None:
        later = self._highest.get((record.topic, record.key)) if record.key is not None else None
        events: tuple[Event, ...] = (*record.writes(), *record.produced, *record.acknowledged)
        if later is not None and later.record.seq > record.seq:
            why = f"a later one of its key was, at {later}"
            events = (*events, *later.record.writes(), later.poll())
        elif record.purged is not None:
            why = f"its row was purged by {record.purged.leader_id}"
        elif record.acknowledged and not self._promise.transactional:
            why = "Kafka has acknowledged it"
        else:
            self._findings.add("unseen", f"{record} was committed and never seen", events)
            return
        self._findings.add("lost-write", f"{record} was committed and never seen, but {why}", events)
