"""Snapshots of Postgres: which transactions had committed or aborted when a snapshot was taken. Pure, no I/O."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A `pg_snapshot` of Postgres, as text `xmin:xmax:in,progress`. Transaction ids have 64 bits and are never reused.

    A transaction below `xmax` that is not listed as in progress is *seen*: its rows are visible if it committed.
    """

    xmin: int
    xmax: int
    in_progress: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Snapshot":
        """Parse the text of a `pg_snapshot`. Raises ValueError for any other text."""
        xmin, xmax, listed = text.split(":")
        return cls(int(xmin), int(xmax), tuple(int(each) for each in listed.split(",") if each))

    def sees(self, transaction_id: int) -> bool:
        """Return True if a transaction had ended when the snapshot was taken."""
        return transaction_id < self.xmax and transaction_id not in self.in_progress

    def covers(self, other: "Snapshot") -> bool:
        """Return True if this snapshot sees every transaction that `other` sees."""
        return self.xmax >= other.xmax and all(each >= other.xmax or not other.sees(each) for each in self.in_progress)

    def late(self, now: "Snapshot") -> Iterator[int]:
        """Yield the ids of transactions that are in progress in this snapshot and have ended in the later snapshot
        `now`."""
        return (each for each in self.in_progress if now.sees(each))

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, self.in_progress))}"


NOTHING = Snapshot(1, 1)
"""The snapshot that sees nothing: a subscription that reads all records begins here."""
