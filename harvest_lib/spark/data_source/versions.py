"""The versions of Spark with which the data source is tested, and what they offer to a source in Python.

The requirement of the extra does not reach a cluster, which brings its own Spark.
"""

from typing import TYPE_CHECKING

from harvest_lib.errors import ConfigError

if TYPE_CHECKING:
    from harvest_lib.spark.data_source.stream_reader import OutboxFollower

OLDEST, NEWEST = (4, 0), (4, 3)
"""The oldest and the newest minor version."""


def require_tested(version: str) -> None:
    """Raise ConfigError for a version of Spark with which nothing is tested."""
    minor = tuple(int(part) if part.isdigit() else 0 for part in version.split(".")[:2])
    if OLDEST <= minor <= NEWEST:
        return
    oldest, newest = (".".join(map(str, each)) for each in (OLDEST, NEWEST))
    raise ConfigError(
        f"the format outbox is not tested with Spark {version}",
        field="pyspark",
        next_step=f"use Spark {oldest} to {newest}, or a version of outbox-harvester that knows this one",
    )


def stream_reader_class() -> "type[OutboxFollower]":
    """Return the reader of `readStream` for this version of Spark."""
    try:
        from harvest_lib.spark.data_source.limited_stream_reader import LimitedStreamReader  # noqa: PLC0415 - 4.2
    except ModuleNotFoundError as missing:
        if not (missing.name or "").startswith("pyspark."):
            raise
        from harvest_lib.spark.data_source.stream_reader import OutboxStreamReader  # noqa: PLC0415 - before 4.2

        return OutboxStreamReader
    return LimitedStreamReader
