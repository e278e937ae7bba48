"""Check that a slot sends the same changes again that were read before. If so, the server's log is the log that was
read.

A server may be restored to an earlier time with its slot (a snapshot of its volume, a promoted standby). From that time
on, its log has other transactions than the pipeline has read. A reader that continued at the pipeline's position would
skip these other transactions. After such a restore, the slot's position is earlier too. So changes are requested from
the slot's position, and skipped up to the pipeline's position. The last skipped transaction must be the transaction
that was read last. A transaction is identified by its end, its id and its time, since another transaction may have the
same end and id. The check works however long the server's log has grown, as long as no later position is confirmed to
the slot.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from harvest_lib.errors import PositionLost
from harvest_lib.pipeline.adaptors.postgres.pgoutput import Begin, Commit, Decoded, Relation
from harvest_lib.source.server_identity import lsn_number


class Resent:
    """Filter that skips changes which were read before, and checks them. Each connection gets its own `Resent`."""

    def __init__(self, place: Mapping[str, Any], confirmed: str, *, next_step: str) -> None:
        """`place` is the position in the pipeline's log, `confirmed` the LSN that was confirmed to the slot."""
        self._place, self._next_step = place, next_step
        self._end = lsn_number(place["lsn"])
        last = place.get("commit")
        self._expected = tuple(last) if last is not None and last[0] > lsn_number(confirmed) else None
        self._found: tuple[int, int, int] | None = None
        self._xid = 0
        self._is_passing = True
        self.is_checked = False
        """True after the check has succeeded. A confirmation before the check would advance the slot, and at the next
        start Postgres would not send the transactions that the check needs."""

    def is_new(self, change: Decoded) -> bool:
        """Return True for a change that was not read before, and for every description of a table. Raises PositionLost
        if the check fails."""
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
        """Note that the server has sent all changes before `lsn`. Raises PositionLost if the check fails."""
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
    """Return the LSN at which a server left a timeline, None if the server was never on that timeline. `history` is the
    content of the server's timeline history file."""
    for line in history.splitlines():
        if (found := re.match(r"\s*(\d+)\s+([0-9A-F]+/[0-9A-F]+)", line)) and int(found[1]) == timeline:
            return lsn_number(found[2])
    return None


def _told(commit: Sequence[int] | None) -> str:
    if not commit:
        return "none"
    end, xid, committed_ms = commit
    return f"{xid}, which ends at {end >> 32:X}/{end & 0xFFFFFFFF:X} and was committed at {committed_ms} ms"
