"""Reports of a stream's micro-batches, in the session that started the query.

The commit of a micro-batch runs in a Python worker beside Spark's driver, and Spark passes nothing from there to the
session. So the listener reads the ledger, which the commit has written in the transaction of the records.
"""

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from harvest_lib.spark.sink import queries
from harvest_lib.spark.sink.database import Tables, connect, postgres_errors
from harvest_lib.spark.sink.promotion import ledger_entry
from harvest_lib.spark.sink.report import BatchReport, log_report

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import QueryProgressEvent, QueryStartedEvent, QueryTerminatedEvent

__all__ = ["BatchListener", "BatchReport"]


class BatchListener(StreamingQueryListener):
    """Pass on the report of each micro-batch of a stream: `spark.streams.addListener(BatchListener(dsn=…, stream=…))`.

    The query must have the stream's name as `queryName`. It may write by `format("outbox")` or by `foreach_batch`.
    `table` and `outbox` name the tables of the query. `tell` is called with each BatchReport; without it, the report is
    logged as `spark_batch_done`. It is called in a thread of Spark, after the micro-batch's end, in order.

    A report has the status already-promoted if the batch was promoted before the query was started. The seconds are
    those in the ledger. The process of the listener must reach Postgres: the driver's,
    or the client's of Spark Connect. Spark logs what the listener raises (DatabaseError), and the query runs on.
    """

    def __init__(
        self,
        *,
        dsn: str,
        stream: str,
        table: str | None = None,
        outbox: str = "outbox",
        tell: Callable[[BatchReport], object] = log_report,
    ) -> None:
        """`dsn` is a libpq conninfo or URL. Raises ConfigError for names that are no names of tables."""
        self._dsn, self._stream, self._tell = dsn, stream, tell
        self._tables = Tables.named(business=table, outbox=outbox)
        self._started_at: dict[object, datetime] = {}

    def onQueryStarted(self, event: "QueryStartedEvent") -> None:
        """Note the time by Postgres's clock. Spark calls it before the first micro-batch, though perhaps before the end
        of the last one of an earlier query was told."""
        if event.name == self._stream:
            with connect(self._dsn) as connection, postgres_errors("asking for the time"):
                (row,) = connection.execute(queries.NOW)
            self._started_at[event.runId] = row[0]

    def onQueryProgress(self, event: "QueryProgressEvent") -> None:
        """Pass on the report of the micro-batch that has ended."""
        if event.progress.name != self._stream:
            return
        batch = f"{self._stream}:{event.progress.batchId}"
        with connect(self._dsn) as connection:
            entry = ledger_entry(connection, batch, tables=self._tables)
        if entry is None:
            report = BatchReport.of(batch, None)
        else:
            started_at = self._started_at.get(event.progress.runId)
            is_new = started_at is None or entry.promoted_at >= started_at
            report = BatchReport.of(
                batch,
                (entry, is_new),
                staging_seconds=entry.staging_seconds,
                promote_seconds=entry.promote_seconds,
            )
        self._tell(report)

    def onQueryTerminated(self, event: "QueryTerminatedEvent") -> None:
        """Forget the query. Spark calls it after its last micro-batch."""
        self._started_at.pop(event.runId, None)
