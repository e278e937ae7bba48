"""The versions of Spark with which the data source is tested, and what they offer to a source in Python.

The requirement of the extra does not reach a cluster, which brings its own Spark.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from harvest_lib.errors import ConfigError

if TYPE_CHECKING:
    from harvest_lib.spark.data_source.stream_reader import OutboxFollower
    from harvest_lib.spark.data_source.topic_reader import TopicFollower

OLDEST, NEWEST = (4, 0), (4, 3)
"""The oldest and the newest minor version."""


def require_tested(version: str) -> None:
    """Raise ConfigError for a version of Spark with which nothing is tested."""
    minor = tuple(int(part) if part.isdigit() else 0 for part in version.split(".")[:2])
    if OLDEST <= minor <= NEWEST:
        return
    oldest, newest = (".".join(map(str, each)) for each in (OLDEST, NEWEST))
    raise ConfigError(
        f"the formats outbox and harvested are not tested with Spark {version}",
        field="pyspark",
        next_step=f"use Spark {oldest} to {newest}, or a version of outbox-harvester that knows this one",
    )


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
