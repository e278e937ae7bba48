"""The readers of streams for each version of Spark."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harvest_lib.spark.data_source.stream_reader import OutboxFollower
    from harvest_lib.spark.data_source.topic_reader import TopicFollower


def stream_reader_class() -> "type[OutboxFollower]":
    """Return the reader of an outbox by `readStream` for this version of Spark."""
    if _has_limits():
        from harvest_lib.spark.data_source.limited_stream_reader import LimitedStreamReader  # noqa: PLC0415 - 4.2

        return LimitedStreamReader
    from harvest_lib.spark.data_source.stream_reader import OutboxStreamReader  # noqa: PLC0415 - before 4.2

    return OutboxStreamReader


def topic_reader_class() -> "type[TopicFollower]":
    """Return the reader of topics by `readStream` for this version of Spark."""
    if _has_limits():
        from harvest_lib.spark.data_source.limited_stream_reader import LimitedTopicReader  # noqa: PLC0415 - 4.2

        return LimitedTopicReader
    from harvest_lib.spark.data_source.topic_reader import TopicStreamReader  # noqa: PLC0415 - before 4.2

    return TopicStreamReader


def _has_limits() -> bool:
    return find_spec("pyspark.sql.streaming.datasource") is not None
