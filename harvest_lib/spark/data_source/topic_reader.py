"""`spark.read` and `spark.readStream` with the format `harvested`: what the harvester delivered to topics.

    offset ──── micro-batch: committed by its sender between the two offsets ────► offset

Promises
- Records of an aborted or an open transaction of Kafka are left out. Of a topic of `delivery: sequenced`, the stream
  has the records that `harvest_lib.consume` returns, in the same order in each partition: a record comes in the
  micro-batch in which its sender acknowledges it. Other producers' records are left out.
- A micro-batch is a function of its two offsets: one that is repeated from the checkpoint has the same rows.
- Messages that retention removed before they were read, a topic that was recreated, and a log that lost its end, even
  if it has grown again, are an error (PositionLost), never a gap.
- Partitions that are added to a topic are read from their first offset on.
- There is a task for each partition with messages. Its memory is bounded: see `ring_bytes` of `Sequencer`,
  `QUEUED_KBYTES` of `harvest_lib.consume.reader` and the limits of `topic_rows`.

A copy that a harvester of `delivery: barrier` or `pipelined` sent again is a row of its own, because to leave it out
would need the ids of all rows that were read. The function `harvested` leaves it out of a batch.

For the versions of Spark see `stream_reader`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from harvest_lib.spark.data_source.follower import Follower
from harvest_lib.spark.data_source.topic_offsets import TopicOffset, TopicPartition
from harvest_lib.spark.data_source.topic_options import TopicOptions, check_topic_schema

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from harvest_lib.spark.data_source.topic_ahead import TopicAhead


class TopicBatchReader(DataSourceReader):
    """The reader of a batch. Each plan asks Kafka for the present ends of the partitions."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Check options and schema. Raises ConfigError."""
        check_topic_schema(schema)
        self.options = TopicOptions.parse(options, streaming=False)

    def partitions(self) -> Sequence[InputPartition]:
        """Return a partition for each partition of the topics that has messages.

        Raises TopicMissing, KafkaUnavailable, KafkaAccessDenied or ConfigError.
        """
        from harvest_lib.spark.data_source.topic_ahead import TopicAhead  # noqa: PLC0415 - loads the Kafka client

        ahead = TopicAhead(self.options)
        try:
            return ahead.batch()
        finally:
            ahead.close()

    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        """Return the rows of a partition."""
        return _read(self.options, partition)


class TopicFollower(Follower):
    """The common parts of the readers for all versions of Spark."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Check options and schema. Raises ConfigError."""
        check_topic_schema(schema)
        self.options = TopicOptions.parse(options, streaming=True)
        self._ahead: TopicAhead | None = None

    @property
    def max_records(self) -> int | None:
        """The option `maxRecordsPerBatch`; None without a limit."""
        return self.options.max_records

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset before the first micro-batch: it is empty, and the end of the micro-batch says where the
        partitions begin."""
        return {}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return a partition for each partition of the topics that has messages between two offsets.

        Raises PositionLost if a topic was recreated, and CheckpointError.
        """
        self._at = end
        return self._looking().between(TopicOffset.of_json(start), TopicOffset.of_json(end))

    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        """Return the rows of a partition."""
        return _read(self.options, partition)

    def stop(self) -> None:
        """Close the connections."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()

    def _looking(self) -> "TopicAhead":
        from harvest_lib.spark.data_source.topic_ahead import TopicAhead  # noqa: PLC0415 - loads the Kafka client

        if self._ahead is None:
            self._ahead = TopicAhead(self.options)
        return self._ahead

    def _now(self) -> dict[str, Any]:
        return self._looking().ends().to_json()

    def _following(self, at: dict[str, Any], limit: int | None, until: dict[str, Any] | None = None) -> dict[str, Any]:
        before = TopicOffset.of_json(at)
        end = self._looking().after(before, limit, None if until is None else TopicOffset.of_json(until))
        return at if end is before else end.to_json()  # Spark compares texts

    def _is_read(self, start: dict[str, Any], target: dict[str, Any]) -> bool:
        return TopicOffset.of_json(start).is_read(TopicOffset.of_json(target))

    def _is_behind(self, _end: dict[str, Any]) -> bool:
        return self.options.max_records is not None


class TopicStreamReader(TopicFollower):
    """The reader of Spark 4.0 and 4.1."""

    def latestOffset(self) -> dict[str, Any]:
        """Return the offset at which the next micro-batch ends. The offset stays the same if nothing was committed.

        Raises PositionLost, TopicMissing, KafkaUnavailable, KafkaAccessDenied or ConfigError.
        """
        return self._following(self._at or self.initialOffset(), self.options.max_records)


def _read(options: TopicOptions, partition: InputPartition) -> Iterator["RecordBatch"]:
    from harvest_lib.spark.data_source import topic_rows  # noqa: PLC0415 - loads the Kafka client

    if not isinstance(partition, TopicPartition):
        return iter(())  # Spark's own partition, if the topics have no messages
    return topic_rows.read(options, partition)
