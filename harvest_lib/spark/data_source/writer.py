"""The writers of the data source: a task stages its partition, and the driver promotes the attempts of the tasks.

1. planning, in a Python worker of the driver: options and tables are checked, the run gets its id
2. `write`, in a task: a transaction appends rows to the staging table, and the task's message names that attempt
3. `commit`, in another worker of the driver: `promote` writes exactly the attempts in the messages, as the batch

Only `commit` learns the number of a micro-batch. A micro-batch that Spark repeats is staged again under another run,
and `commit` then finds it in the ledger. Every step has a connection of its own.
"""

import hashlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import psycopg
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import types as spark
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from harvest_lib.errors import ConfigError, DatabaseUnavailable
from harvest_lib.spark.data_source.write_options import WriteOptions, conninfo_of, options_named
from harvest_lib.spark.errors import EmptyBatch
from harvest_lib.spark.sink.columns import staged_columns
from harvest_lib.spark.sink.copying import NamedAttempt, copy_batches
from harvest_lib.spark.sink.database import Tables, connect
from harvest_lib.spark.sink.plan import WritePlan, checked_plan, make_tables
from harvest_lib.spark.sink.promotion import LedgerEntry, promote, refused
from harvest_lib.spark.sink.records import BatchId, Fixed, HeaderSource
from harvest_lib.spark.sink.report import BatchReport, log_report, show_in_worker
from harvest_lib.spark.sink.staging_tables import Staged, clear_staging, new_run, seconds_since

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:  # Spark 4.0 has a single class for Arrow, also for streams
    DataSourceStreamArrowWriter = DataSourceArrowWriter  # type: ignore[assignment,misc]  # mypy checks against 4.1

_PAUSE_SECONDS = 0.5
_PLAN_SECONDS = 5
_COMMIT_SECONDS = 30
"""For how long the driver tries to reconnect after a lost connection. Planning or promoting twice is harmless."""


_Done = TypeVar("_Done")


@dataclass(frozen=True, slots=True)
class StagedPartition(WriterCommitMessage):
    """The commit message of a task: the attempt under which it has staged its rows."""

    staged: NamedAttempt


class _Writer:
    """The common part of both writers. Spark pickles a writer for the tasks, and a batch's writer also for `commit`."""

    def __init__(
        self, options: Mapping[str, str], schema: spark.StructType, *, overwrite: bool, streaming: bool
    ) -> None:
        with options_named():
            self.options = WriteOptions.parse(options, streaming=streaming)
            if overwrite:
                raise ConfigError(
                    "an outbox is only appended to",
                    field="outputMode" if streaming else "mode",
                    next_step='write .outputMode("append")' if streaming else 'write .mode("append")',
                )
            columns = staged_columns(schema, by_copy=True, headers_column=self.options.records.headers_column)
            shape = [(each.staged, each.type) for each in columns]
            tables = Tables.named(
                business=self.options.table,
                outbox=self.options.outbox,
                columns=hashlib.sha256(repr(shape).encode()).hexdigest()[:8],
            )
            self._label = f"{'stream' if streaming else 'batch'} {self.options.name}"
            _connected(
                self.options.conninfo(), lambda connection: self._plan(connection, tables, schema), _PLAN_SECONDS
            )

    def _plan(self, connection: psycopg.Connection, tables: Tables, schema: spark.StructType) -> None:
        options = self.options
        self.plan = checked_plan(
            connection, tables, options.records, schema, batch_column=options.batch_column, by_copy=True
        )
        self._dsn = conninfo_of(connection, options.conninfo())
        if not options.dry_run:
            make_tables(connection, self.plan)
            self._run = new_run(connection)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a partition; return the message with their attempt."""
        context = TaskContext.get()
        assert context is not None  # noqa: S101 - Spark calls it in a task
        staged = Staged(batch=self._label, run=self._run)
        return StagedPartition(
            copy_batches(iterator, dsn=self._dsn, plan=self.plan, staged=staged, partition=context.partitionId())
        )

    def _promote(self, messages: Sequence[WriterCommitMessage | None], batch: str) -> BatchReport:
        attempts = [message.staged for message in messages if isinstance(message, StagedPartition)]
        runs = {each.run for each in attempts} or {self._run}
        if len(attempts) != len(messages) or len(runs) != 1:
            raise refused(
                batch, f"{len(attempts)} of {len(messages)} tasks, of {len(runs)} runs, have said what they staged"
            )
        named = {each.partition: (each.attempt, each.rows) for each in attempts if each.rows}
        staged = Staged(batch=self._label, run=runs.pop(), named=named)
        began = time.monotonic()
        with options_named():
            staging_seconds, promoted = _connected(
                self._dsn, lambda connection: self._promoted(connection, batch, staged), _COMMIT_SECONDS
            )
        show_in_worker()
        return log_report(
            BatchReport.of(batch, promoted, staging_seconds=staging_seconds, promote_seconds=time.monotonic() - began)
        )

    def _promoted(
        self, connection: psycopg.Connection, batch: str, staged: Staged
    ) -> tuple[float, tuple[LedgerEntry, bool] | None]:
        seconds = seconds_since(connection, staged.run)
        return seconds, promote(connection, batch, None, staged=replace(staged, seconds=seconds), plan=self.plan)

    def _forget(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete the staged rows of tasks that sent a message. The next promotion of the same name deletes the staged
        rows of all other tasks."""
        if runs := {message.staged.run for message in messages if isinstance(message, StagedPartition)}:
            staged = Staged(batch=self._label, run=max(runs), named={})
            with connect(self._dsn) as connection:
                clear_staging(connection, staged, tables=self.plan.tables)


def _connected(dsn: str, work: Callable[[psycopg.Connection], _Done], patience_seconds: float) -> _Done:
    until = time.monotonic() + patience_seconds
    while True:
        try:
            with connect(dsn) as connection:
                return work(connection)
        except DatabaseUnavailable:
            if time.monotonic() > until:
                raise
            time.sleep(_PAUSE_SECONDS)


class OutboxWriter(_Writer, DataSourceArrowWriter):
    """Writes a frame as a batch, whose id is the option `batchId`."""

    def __init__(self, options: Mapping[str, str], schema: spark.StructType, *, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite=overwrite, streaming=False)
        if self.options.dry_run:
            sys.stdout.write(described(self.plan, self._label) + "\n")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a partition; return the message with their attempt."""
        return WriterCommitMessage() if self.options.dry_run else super().write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Promote the batch unless it is in the ledger. Raises BatchConflict, RecordError, EmptyBatch or
        PromotionRefused."""
        if self.options.dry_run:
            return
        if self._promote(messages, self.options.name).status == "empty" and not self.options.allow_empty:
            raise EmptyBatch(
                f"batch {self.options.name} is empty",
                evidence="Spark computed 0 rows",
                next_step="check what the frame is read from, or set the option allowEmpty",
            )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the staged rows."""
        self._forget(messages)


class OutboxStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes a stream. A micro-batch is a batch, whose id is the option `stream` and the micro-batch's number."""

    def __init__(self, options: Mapping[str, str], schema: spark.StructType, *, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite=overwrite, streaming=True)
        if self.options.dry_run:
            raise ConfigError(
                "dryRun: nothing was written, and the query ends here, since its checkpoint would leave the rows out. "
                "The plan:\n" + described(self.plan, self._label),
                field="dryRun",
                next_step="leave dryRun out",
            )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Promote the micro-batch unless it is in the ledger. Raises BatchConflict, RecordError or PromotionRefused."""
        self._promote(messages, f"{self.options.name}:{batchId}")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002 - Spark's signature
        """Remove the staged rows."""
        self._forget(messages)


def described(plan: WritePlan, label: str) -> str:
    """Return the plan of a write as text, with a line for each of its parts."""
    tables, records = plan.tables, plan.records
    value = (
        records.value if isinstance(records.value, str) else f"JSON of {', '.join(records.value_columns(plan.names))}"
    )
    lines = {
        "write": label,
        "outbox": tables.outbox.as_string(None),
        "topic": records.topic or f"column {records.topic_column}",
        "key": ", ".join(records.key_columns),
        "value": value,
        "headers": ", ".join(f"{name}: {_source(each)}" for name, each in records.headers.items()) or "none",
        "headers of": records.headers_column or "no column",
        "create time": records.create_time_column or "of the write",
        "order": ", ".join(records.order_by) or "as the frame stands",
        "table": tables.business.as_string(None) if tables.business else "none",
        "columns": ", ".join(f"{each.name} {plan.type_of(each.name)}" for each in plan.columns),
        "batch column": plan.batch_column or "none",
        "staging": tables.staging.as_string(None),
        "ledger": tables.ledger.as_string(None),
    }
    return "\n".join(f"{name:<14}{text}" for name, text in lines.items())


def _source(source: HeaderSource) -> str:
    match source:
        case Fixed(text):
            return repr(text)
        case BatchId():
            return "the batch's id"
        case str():
            return source
