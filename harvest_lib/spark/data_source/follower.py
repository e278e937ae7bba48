"""The common part of the readers of streams: what the reader for Spark 4.2 and later needs of a source."""

from abc import abstractmethod
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader

Offset = dict[str, Any]


class Follower(DataSourceStreamReader):
    """A reader of a stream, for any version of Spark."""

    _at: Offset | None = None
    """The current offset of the query, None until it is known."""
    _first: Offset | None = None
    """The offset of a first micro-batch that has no rows, for the value `now` of `startingOffsets`."""

    @property
    @abstractmethod
    def max_records(self) -> int | None:
        """The option `maxRecordsPerBatch`; None without a limit."""

    def commit(self, end: Offset) -> None:
        """Do nothing: only the checkpoint of the query stores its offsets."""

    @abstractmethod
    def _now(self) -> Offset:
        """Return the offset after all that is committed now."""

    @abstractmethod
    def _following(self, at: Offset, limit: int | None, until: Offset | None = None) -> Offset:
        """Return the offset that is at most `limit` records after `at`, and not after the offset `until`."""

    @abstractmethod
    def _is_read(self, start: Offset, target: Offset) -> bool:
        """Return True if `start` is after all rows before the target."""

    @abstractmethod
    def _is_behind(self, end: Offset) -> bool:
        """Return True if there may be rows after the end of a micro-batch."""
