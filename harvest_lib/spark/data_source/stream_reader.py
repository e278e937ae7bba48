"""`spark.readStream.format("outbox")`: the outbox from a start offset on, for as long as the query runs.

    offset ──── micro-batch: visible at the end's snapshot, not at the start's ────► offset

Promises
- No row is skipped, however long its transaction was open, and no row comes twice between two offsets, because an
  offset is a snapshot of Postgres (`pg_current_snapshot`), not an id.
- A micro-batch that is repeated from the checkpoint has the same rows.
- A key's records come in the order in which they were committed, if writers lock the key before they insert: within a
  micro-batch they are in one partition, ascending by id.
- Rows are on disk in Postgres before they are returned. A server that may lack returned rows is refused
  (ServerRegressed), however much was written to the server since then. For this check each offset includes the last
  rows before the offset.
- A segment that is dropped before it was read is an error (PositionLost), never a gap.

Since Spark 4.2 a source is asked for an offset after a given one, with a limit of records, and for a target that a
query with the trigger `availableNow` reaches in as many micro-batches as it needs: `LimitedStreamReader`, in a module
of its own. Before, Spark has no such limit for a source in Python: `OutboxStreamReader` returns an offset that is at
most `maxRecordsPerBatch` records after the offset of the query, which Spark passes when it asks for partitions. Spark
does not tell whether a query is new, so a query counts as new until Spark has passed an offset. With `availableNow`
Spark 4.0 and 4.1 run a single micro-batch of a source with a limit: the one that has to be repeated, or, if there is
none, the next one.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from harvest_lib.errors import DatabaseUnavailable
from harvest_lib.spark.data_source.follower import Follower
from harvest_lib.spark.data_source.read_options import ReadOptions, check_schema
from harvest_lib.spark.data_source.windows import OutboxPartition, beginning, required_from, windows_between

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from harvest_lib.spark.data_source.ahead import Ahead


class OutboxFollower(Follower):
    """The common parts of the readers for all versions of Spark."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Check options and schema. Raises ConfigError."""
        self.options = ReadOptions.parse(options, streaming=True)
        check_schema(schema, self.options.columns)
        self.schema = schema
        self._ahead: Ahead | None = None

    @property
    def max_records(self) -> int | None:
        """The option `maxRecordsPerBatch`; None without a limit."""
        return self.options.max_records

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset at which a query without a checkpoint starts."""
        if self.options.starting == "beginning":
            return beginning()
        if self._first is None:
            self._first = self._now()
        return self._first

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return a partition for each shard with the rows between two offsets. Return an empty list if there are no
        such rows."""
        self._at = end
        # The first micro-batch of a stream that starts `now` is empty, even if it is repeated later.
        if start in (end, self._first):
            return []
        self._require((start, end))
        windows = windows_between(start, end)
        if not windows:
            return []
        floor = required_from(start, end)
        return [
            OutboxPartition(
                windows=windows,
                shard=shard,
                floor=floor,
                below=None,
                offsets=(start, end),
                conditions=self.options.conditions,
            )
            for shard in range(self.options.shards)
        ]

    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        """Return the rows of a partition."""
        assert isinstance(partition, OutboxPartition)  # noqa: S101 - from `partitions`
        from harvest_lib.spark.data_source import outbox_rows  # noqa: PLC0415 - loads psycopg

        return outbox_rows.read(self.options, partition, self.schema)

    def stop(self) -> None:
        """Close the connection."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()

    def _now(self) -> dict[str, Any]:
        from harvest_lib.spark.data_source import ahead  # noqa: PLC0415 - loads psycopg

        return ahead.offset_now(self.options)

    def _require(self, offsets: Sequence[dict[str, Any]]) -> None:
        from harvest_lib.postgres.database import connect  # noqa: PLC0415 - loads psycopg
        from harvest_lib.spark.data_source import outbox_rows  # noqa: PLC0415 - as above

        with connect(self.options.conninfo) as connection:
            outbox_rows.require_seen(connection, self.options, offsets)

    def _following(self, at: dict[str, Any], limit: int | None, until: dict[str, Any] | None = None) -> dict[str, Any]:
        try:
            return self._next(at, limit, until)
        except DatabaseUnavailable:
            self.stop()
            return self._next(at, limit, until)  # once, on new connections

    def _next(self, at: dict[str, Any], limit: int | None, until: dict[str, Any] | None) -> dict[str, Any]:
        from harvest_lib.spark.data_source import ahead  # noqa: PLC0415 - loads psycopg

        if self._ahead is None:
            self._ahead = ahead.Ahead(self.options)
        found = self._ahead.attached()  # before the snapshot is taken, which then sees all of the closed segments
        closed = found.floor if at.get("initial") else at["closed"]
        found.require(closed)
        end = self._ahead.after(at, found.floor, limit, until)
        if end is None:
            # If further segments are closed, return a new offset that says so. The stream then no longer needs these
            # segments.
            return at if found.closed <= closed else self._now()
        closes = at["closes"] if "cur" in at else (until["closed"] if until is not None else found.closed)
        if "cur" in end:
            return {**end, "floor": found.floor, "closed": closed, "closes": closes}
        return {**end, "floor": found.floor, "closed": closes}

    def _is_read(self, start: dict[str, Any], target: dict[str, Any]) -> bool:
        from harvest_lib.source.pg_snapshot import Snapshot  # noqa: PLC0415 - its package loads psycopg

        return "cur" not in start and Snapshot.parse(start["prev"]).covers(Snapshot.parse(target["prev"]))

    def _is_behind(self, end: dict[str, Any]) -> bool:
        return "cur" in end


class OutboxStreamReader(OutboxFollower):
    """The reader of Spark 4.0 and 4.1."""

    def latestOffset(self) -> dict[str, Any]:
        """Return the offset at which the next micro-batch ends. The offset stays the same if nothing was committed.

        Raises PositionLost, OutboxTableError, CheckpointError or DatabaseError.
        """
        if self._at is None:
            if self.options.starting == "beginning" and self.options.max_records is None:
                return self._now()
            if self.options.starting == "now":
                return self.initialOffset()
            self._at = beginning()
        self._at = self._following(self._at, self.options.max_records)
        return self._at
