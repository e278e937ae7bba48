"""Comparison of the changes that a slot sends again with the changes that were read: is it the same log?

A server may be restored to an earlier time with its slot (a snapshot of its volume, a promoted standby). Its log then
has other transactions where the pipeline's log has the transactions that were read, and reading on would skip them. The
slot is then at an earlier place too. So changes are requested from the slot's place, not from the place of the
pipeline's log, and skipped up to there. In between there may be only transactions that were read: the last of these is
known by its end, its number and its time, since another transaction may well have the same end and number. That
evidence stays however long the log grows, and as long as nothing is confirmed to the slot.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from harvest_lib.errors import PositionLost
from harvest_lib.pipeline.adaptors.postgres.pgoutput import Begin, Commit, Decoded, Relation
from harvest_lib.source.server_identity import lsn_number


class Resent:
    """Skips changes that were read before. Used for one connection."""

    def __init__(self, place: Mapping[str, Any], confirmed: str, *, next_step: str) -> None:
        """`place` is the position of the pipeline's log, `confirmed` the slot's."""
        self._place, self._next_step = place, next_step
        self._end = lsn_number(place["lsn"])
        last = place.get("commit")
        self._expected = tuple(last) if last is not None and last[0] > lsn_number(confirmed) else None
        self._found: tuple[int, int, int] | None = None
        self._xid = 0
        self._is_passing = True
        self.is_checked = False
        """True once the server's log is known to be the log that was read. A confirmation before that would advance the
        slot, and Postgres would not send the evidence again at the next start."""

    def is_new(self, change: Decoded) -> bool:
        """Return True for a change that was not read before, or describes a table. Raises PositionLost."""
        match change:
            case Begin():
                self._is_passing, self._xid = change.lsn < self._end, change.xid
                if not self._is_passing:
                    self._check()
            case Commit() if self._is_passing:
                self._found = (change.end, self._xid, change.timestamp)
                return False
        return not self._is_passing or isinstance(change, Relation)

    def alive(self, lsn: int) -> None:
        """Note that all changes before a place have come. Raises PositionLost."""
        if lsn >= self._end:
            self._check()

    def _check(self) -> None:
        if not self.is_checked and self._found != self._expected:
            raise PositionLost(
                "the server's log is not the log that was read: the server was restored to an earlier time",
                wears_off=True,
                evidence=f"before {self._place['lsn']} its last transaction is {_told(self._found)}, "
                f"the last transaction that was read is {_told(self._expected)}",
                next_step=self._next_step,
            )
        self.is_checked = True


def fork_of(history: str, timeline: int) -> int | None:
    """Return the LSN at which a server's history left a timeline, None if it was never on that timeline."""
    for line in history.splitlines():
        if (found := re.match(r"\s*(\d+)\s+([0-9A-F]+/[0-9A-F]+)", line)) and int(found[1]) == timeline:
            return lsn_number(found[2])
    return None


def _told(commit: Sequence[int] | None) -> str:
    if not commit:
        return "none"
    end, xid, committed_ms = commit
    return f"{xid}, which ends at {end >> 32:X}/{end & 0xFFFFFFFF:X} and was committed at {committed_ms} ms"
