"""Windows: the rows between two snapshots of Postgres, as tasks read them. Each executor loads this pure module, so it
is small.

An offset of a stream is a position of `SnapshotSource`, with the evidence that reveals missing segments:

    prev            a snapshot: all rows that it saw were read
    cur, after      only within a window: of the rows that `cur` saw and `prev` did not, ids up to `after` were read
    floor           the lowest id that had a segment when the newest snapshot was taken
    closed          the id below which nothing is inserted any more: `prev` saw all rows below it
    closes          the value of `closed` at the end of the window
    server          the position of the server in its log
    seen            the last rows that `cur`, or else `prev`, saw: see `harvest_lib.spark.seen_rows`
    initial         true for the beginning: nothing was read
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from harvest_lib.errors import CheckpointError, PositionLost

if TYPE_CHECKING:
    from harvest_lib.spark.data_source.pushed import Condition

LOWEST_ID, HIGHEST_ID = -(2**63) + 1, 2**63 - 1

NOTHING = "1:1:"
"""The snapshot that sees nothing."""

Offset = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Rows that `cur` saw and `prev` did not, with ids from `first` to `last`."""

    prev: str
    cur: str
    first: int
    last: int
    server: Mapping[str, str]

    @property
    def position(self) -> dict[str, Any]:
        """The position of `SnapshotSource` before the window."""
        return {
            "source": "snapshot",
            "prev": self.prev,
            "cur": self.cur,
            "after": self.first - 1,
            "server": self.server,
        }


@dataclass(frozen=True)
class OutboxPartition(InputPartition):
    """The part of a read for one task: the windows of a shard, or of all shards, in order. Without windows the part is
    all rows of the outbox, read by a single statement.

    Only rows that meet all `conditions` are read. After the read it must hold that all ids from `floor` on, and below
    `below` if that is given, have segments; that the table in `file` still has the file number in `file`; and that the
    server has the last rows before `offsets`.
    """

    windows: tuple[Window, ...]
    floor: int
    below: int | None
    shard: int | None = None
    file: tuple[str, int] | None = None
    offsets: tuple[Offset, ...] = ()
    conditions: "tuple[Condition, ...]" = ()


def beginning() -> dict[str, Any]:
    """Return the offset before everything."""
    return {"source": "snapshot", "prev": NOTHING, "floor": LOWEST_ID, "closed": LOWEST_ID, "initial": True}


def newest_snapshot(offset: Offset) -> str:
    """Return the newest snapshot from which rows before an offset were read."""
    return str(offset.get("cur") or offset["prev"])


def dropped(evidence: str) -> PositionLost:
    """Return the error for a segment that is gone and was not read completely."""
    return PositionLost(
        "a segment of the outbox was emptied, rewritten or dropped before all of it was read",
        evidence=evidence,
        next_step="read a batch again; for a stream, lost records are in Kafka, or a backup: start the query with a "
        "new checkpoint, and drop segments later (`harvest segments drop --keep`)",
    )


def backwards(evidence: str) -> CheckpointError:
    """Return the error for an offset of a checkpoint that is before its predecessor."""
    return CheckpointError(
        "the newest offset of the query's checkpoint is before its predecessor",
        evidence=evidence,
        next_step="delete the newest file in `offsets` of the checkpoint, and leave "
        "spark.sql.streaming.triggerAvailableNowWrapper.enabled off, or the option maxRecordsPerBatch out",
    )


def required_from(start: Offset, end: Offset) -> int:
    """Return the lowest id that still needs a segment, so that all rows between two offsets can be read.

    Raises PositionLost if needed segments were gone when `end` was taken.
    """
    if start.get("initial"):
        return int(end["floor"])
    if end["floor"] > start["closed"]:
        raise dropped(f"all below the id {start['closed']} was read, the outbox begins at {end['floor']}")
    return int(start["closed"])


def windows_between(start: Offset, end: Offset) -> tuple[Window, ...]:
    """Return the windows between two offsets. Raises CheckpointError if `end` is before `start`."""
    from harvest_lib.source.pg_snapshot import Snapshot  # noqa: PLC0415 - its package loads psycopg

    server = end["server"]
    found = []
    prev = start["prev"]
    if not Snapshot.parse(end["prev"]).covers(Snapshot.parse(prev)):
        raise backwards(f"{end['prev']} comes after {prev}")
    if "cur" in start:
        within = "cur" in end and end["cur"] == start["cur"] and end["prev"] == prev
        last = end["after"] if within else HIGHEST_ID
        found.append(Window(prev=prev, cur=start["cur"], first=start["after"] + 1, last=last, server=server))
        if within:
            return tuple(each for each in found if each.first <= each.last)
        prev = start["cur"]
    if not Snapshot.parse(prev).covers(Snapshot.parse(end["prev"])):
        found.append(Window(prev=prev, cur=end["prev"], first=LOWEST_ID, last=HIGHEST_ID, server=server))
        prev = end["prev"]
    if "cur" in end:
        found.append(Window(prev=prev, cur=end["cur"], first=LOWEST_ID, last=end["after"], server=server))
    return tuple(found)
