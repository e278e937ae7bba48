"""The order of each key in each partition, in one pass over the log.

nonmonotonic-send: a record's first occurrence stands behind one that was written later; int-nonmonotonic-send: both are
of one write. int-send-skip: records of another write stand between those of one. duplicate-…: a record stands there
again: sent by another term (cross-epoch), or by the same, directly behind itself in its key (adjacent) or not
(separated). Under the barrier a key never steps back, so that a copy has to be adjacent; pipelined, a run may repeat
from any place on, but without a gap up to where the key was.
"""

from collections import defaultdict

from harvest_lib.audit.checker.failover_losses import TOOK_OVER, Regressions
from harvest_lib.audit.checker.finding import Anomaly, Findings
from harvest_lib.audit.checker.log import Log
from harvest_lib.audit.checker.promise import Promise
from harvest_lib.audit.checker.records import Record, Sighting, WriteStory
from harvest_lib.audit.checker.terms import Terms

_Copy = tuple[Sighting, Sighting, Anomaly, str | None]
"""A copy, the one before it, its name, and the reason for it."""


class _Key:
    __slots__ = ("count", "highest", "last", "last_new", "position", "run", "writes")

    def __init__(self) -> None:
        self.count = 0
        self.position = -1
        self.highest: Sighting | None = None
        self.last: Sighting | None = None
        self.last_new: Sighting | None = None
        self.writes: set[WriteStory] = set()
        self.run: list[_Copy] = []
        """Copies of a run that has not yet come to where the key was."""


class Sequences:
    """Judges the order of keys and the copies of records. Records whose write failed, or
    that a server lacks that took over, have no place in either."""

    def __init__(self, promise: Promise, terms: Terms, regressions: Regressions, findings: Findings) -> None:
        self._promise = promise
        self._terms = terms
        self._regressions = regressions
        self._findings = findings

    def finish(self, log: Log) -> None:
        """Go through the log."""
        for partition in log.partitions():
            keys: dict[str, _Key] = defaultdict(_Key)
            for sighting in log.ordered(partition, committed=self._promise.transactional):
                record = sighting.record
                if record.write is None or record.write.last.type == "fail" or record.forgotten:
                    continue
                before, record.latest = record.latest, sighting
                if record.key is None:
                    if before is not None:
                        self._unordered(sighting, before)
                    continue
                key = keys[record.key]
                if before is None:
                    self._first(key, sighting)
                else:
                    self._again(key, sighting, before)
                key.last = sighting
            for key in keys.values():
                self._end_run(key, gap=True)

    def _first(self, key: _Key, sighting: Sighting) -> None:
        self._end_run(key, gap=True)
        record, highest, last = sighting.record, key.highest, key.last_new
        record.index = key.position = key.count
        key.count += 1
        key.last_new = sighting
        write = record.write
        if write in key.writes and last is not None and last.record.write is not write:
            self._findings.add(
                "int-send-skip",
                f"{sighting} is of a write whose records of key {record.key} have those of another between",
                (*record.writes(), last.poll(), sighting.poll()),
                explained=highest is not None and highest.record.seq < record.seq,
            )
        if write is not None:
            key.writes.add(write)
        if highest is None or highest.record.seq < record.seq:
            key.highest = sighting
            return
        self._findings.add(
            "int-nonmonotonic-send" if highest.record.write is write else "nonmonotonic-send",
            f"{sighting} has seq {record.seq} of key {record.key}, behind seq {highest.record.seq} at {highest}",
            (*highest.record.writes(), *record.writes(), highest.poll(), sighting.poll()),
        )

    def _again(self, key: _Key, sighting: Sighting, before: Sighting) -> None:
        record = sighting.record
        adjacent = key.last is not None and key.last.record is record
        copy = (sighting, before, _name(sighting, before, adjacent=adjacent), self._terms.reason(sighting, before))
        if self._regressions.between(sighting, before):
            self._end_run(key, gap=True)
            key.position = record.index
            self._copy((*copy[:3], TOOK_OVER), explained=True, why="")
        elif self._promise.transactional:
            self._copy(copy, explained=False, why="committed readers are promised none")
        elif before.partition != sighting.partition:
            self._copy(copy, explained=False, why="in another partition than before")
        elif self._promise.barrier:
            self._copy(copy, explained=adjacent, why="" if adjacent else "the key steps back")
        else:
            if record.index > key.position + 1:
                self._end_run(key, gap=True)
                self._copy(copy, explained=False, why="the run that repeats has a gap before it")
            else:
                key.run.append(copy)
            key.position = record.index
            if key.position == key.count - 1:
                self._end_run(key, gap=False)

    def _end_run(self, key: _Key, *, gap: bool) -> None:
        for copy in key.run:
            self._copy(copy, explained=not gap, why="the run that repeats stops short of its end" if gap else "")
        key.run.clear()

    def _unordered(self, sighting: Sighting, before: Sighting) -> None:
        """Judge a copy of a record without a key, which has no place in an order."""
        copy = (sighting, before, _name(sighting, before, adjacent=False), self._terms.reason(sighting, before))
        self._copy(copy, explained=not self._promise.transactional, why="")

    def _copy(self, copy: _Copy, *, explained: bool, why: str) -> None:
        sighting, before, name, reason = copy
        record: Record = sighting.record
        said = "; ".join(filter(None, (reason or "nothing is known that made it be sent again", why)))
        self._findings.add(
            name,
            f"{record} stands at {before} and again at {sighting}: {said}",
            (*record.writes(), *record.produced, *record.acknowledged, before.poll(), sighting.poll()),
            explained=explained and reason is not None,
        )


def _name(sighting: Sighting, before: Sighting, *, adjacent: bool) -> Anomaly:
    known = sighting.leader_id is not None and before.leader_id is not None
    if known and sighting.leader_id != before.leader_id:
        return "duplicate-cross-epoch"
    return "duplicate-adjacent" if adjacent else "duplicate-separated"
