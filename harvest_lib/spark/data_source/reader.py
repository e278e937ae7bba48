"""`spark.read.format("outbox")`: all that is committed in the outbox when the query is planned.

Promises
- All partitions see the same rows: the rows of one snapshot of Postgres. There is a partition for each segment that
  has rows, or several by the option `shards`. An outbox whose rows are deleted on delivery has one partition, read by a
  single statement.
- With the option `snapshot` every plan reads the rows that this snapshot saw.
- With the option `archive` rows of dropped segments are read from the archive. Ids that are neither in the outbox nor
  in the archive are an error.
- A segment that is dropped while the query runs is an error (PositionLost), never a gap.
- With `spark.sql.python.filterPushdown.enabled`, filters on id, create_time, topic and key are evaluated by Postgres,
  and segments without such ids are not read.
- Nothing is locked and no transaction stays open between the plan and the tasks.

Without the option `snapshot` each plan takes its own snapshot: two actions on one frame may see different rows. Cache
or write the frame to read the same rows again.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from harvest_lib.spark.data_source.pushed import Condition, condition
from harvest_lib.spark.data_source.read_options import ReadOptions, check_schema
from harvest_lib.spark.data_source.windows import OutboxPartition

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.datasource import Filter


class SparkOutboxReader(DataSourceReader):
    """The reader of a batch."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Check options and schema. Raises ConfigError."""
        self.options = ReadOptions.parse(options, streaming=False)
        check_schema(schema, self.options.columns)
        self.schema = schema
        self.conditions: list[Condition] = []

    def partitions(self) -> Sequence[InputPartition]:
        """Take the snapshot, and return a partition for each task."""
        from harvest_lib.spark.data_source import outbox_rows  # noqa: PLC0415 - loads psycopg

        return outbox_rows.plan_batch(self.options, self.conditions)

    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        """Return the rows of a partition, ascending by id."""
        from harvest_lib.spark.data_source import archived, outbox_rows  # noqa: PLC0415 - loads psycopg

        if isinstance(partition, archived.ArchivedPartition):
            return archived.read_archived(partition, self.schema)
        if not isinstance(partition, OutboxPartition):
            return iter(())  # Spark's own partition, if the outbox has none
        return outbox_rows.read(self.options, partition, self.schema)


class FilteringReader(SparkOutboxReader):
    """The reader of a batch in the worker that Spark asks about filters: see `pushed.is_pushing`."""

    def pushFilters(self, filters: "list[Filter]") -> "Iterator[Filter]":
        """Take the filters that Postgres evaluates, and yield the others."""
        for each in filters:
            found = condition(each)
            if found is None:
                yield each
            else:
                self.conditions.append(found)
