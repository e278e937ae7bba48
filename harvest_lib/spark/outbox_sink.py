"""Write any DataFrame into a Postgres outbox, with or without a business table, each batch once.

JDBC stages the rows partition by partition; then one transaction promotes business rows and records together, in the
declared order, and enters the batch into a ledger. A batch that is in the ledger is not written again; the same id with
other data is refused. `--through driver` is faster for records alone: a single COPY writes them, without staging.

Exit codes: 0 the batch is promoted, now or before; 1 a row can be no record; 3 bad arguments or input; 4 the outbox or
the staging table is of another kind; 5 database; 8 the batch id has other data; 130 interrupted.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from harvest_lib.errors import ConfigError
from harvest_lib.spark.command import Parser, run, tell
from harvest_lib.spark.errors import EmptyBatch, SourceError
from harvest_lib.spark.session import jdbc_jars, spark_session
from harvest_lib.spark.sink import through_driver
from harvest_lib.spark.sink.batches import copy_batch, load_batch
from harvest_lib.spark.sink.database import Tables, connect, jdbc_target
from harvest_lib.spark.sink.plan import checked_plan, make_tables
from harvest_lib.spark.sink.records import BatchId, Fixed, HeaderSource, Records, one_or_several
from harvest_lib.spark.sink.report import BatchReport
from harvest_lib.spark.sink.staging import sentence_of

__all__ = ["BatchId", "BatchReport", "Fixed", "Records", "Through", "foreach_batch", "sink"]

Through = Literal["jdbc", "driver"]
"""How rows get to Postgres: `jdbc` from Spark's tasks into a staging table, `driver` from the driver by COPY."""

_FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}


def sink(
    frame: DataFrame,
    *,
    dsn: str,
    batch_id: str,
    records: Records,
    table: str | None = None,
    outbox: str = "outbox",
    batch_column: str | None = None,
    allow_empty: bool = False,
    through: Through = "jdbc",
) -> BatchReport:
    """Write the frame's rows as records, and also into the business `table` if one is given. Return the batch's report.

    The batch is committed as a whole or not at all. Columns of the frame go into the table's columns of the same name;
    `batch_column` is a column of the table that gets the batch's id. The frame must be the same each time it is
    computed: Spark computes parts of it again when tasks fail.

    `through="jdbc"` needs the Postgres driver among `spark.jars`. `through="driver"` does not need that driver, and is
    faster, but writes no business rows. Key and headers must then be strings or integers, the value a single column,
    and the columns in `order_by` numbers or times. The driver's memory must hold all rows of a partition.

    Raises ConfigError (a column, a type), OutboxTableError, RecordError (no key, too long), EmptyBatch unless
    `allow_empty`, BatchConflict (the id was used for other data), PromotionRefused or another DatabaseError.
    """
    if not batch_id or "\0" in batch_id:
        raise ConfigError("the batch has no id", field="--batch-id", next_step="name its contents: orders-2026-11-21")
    tables = Tables.named(business=table, outbox=outbox)
    with connect(dsn) as connection:
        plan = checked_plan(connection, tables, records, frame.schema, batch_column=batch_column)
        if through == "driver":
            through_driver.check(plan)
        make_tables(connection, plan, staging=through == "jdbc")
        if through == "driver":
            report = copy_batch(frame, batch_id, connection=connection, plan=plan)
        else:
            target = jdbc_target(connection, plan.tables)
            report = load_batch(frame, batch_id, connection=connection, target=target, plan=plan)
    if report.status == "empty" and not allow_empty:
        raise EmptyBatch(
            f"batch {batch_id} is empty",
            evidence="Spark computed 0 rows",
            next_step="check what the frame is read from, or allow empty batches (allow_empty, --allow-empty)",
        )
    return report


def foreach_batch(
    *,
    dsn: str,
    stream: str,
    records: Records,
    table: str | None = None,
    outbox: str = "outbox",
    batch_column: str | None = None,
    through: Through = "jdbc",
) -> Callable[[DataFrame, int], None]:
    """Return a function for `DataStreamWriter.foreachBatch`. The function promotes each micro-batch once, as the batch
    `stream:number`.

    A stream that restarts from its checkpoint repeats its last micro-batch. If that batch is in the ledger, it is not
    written again. A stream that lost its checkpoint numbers its micro-batches from 0 again. The ledger has these
    numbers with other data, so such a micro-batch is refused (BatchConflict), and the stream needs a new name.
    """
    if not stream:
        raise ConfigError("the stream has no name", field="stream", next_step="name it: its batches are known by that")

    def write(frame: DataFrame, number: int) -> None:
        sink(
            frame,
            dsn=dsn,
            batch_id=f"{stream}:{number}",
            records=records,
            table=table,
            outbox=outbox,
            batch_column=batch_column,
            allow_empty=True,
            through=through,
        )

    return write


def _arguments() -> Parser:
    parser = Parser(
        module="harvest_lib.spark.outbox_sink",
        description=__doc__,
        example="orders.parquet --dsn 'host=127.0.0.1 dbname=app user=app' --batch-id orders-7 "
        "--topic orders --key order_id --order-by placed_at",
    )
    add = parser.add_argument
    add("input", help="a file or folder of parquet, csv (with a header) or jsonl")
    add("--format", choices=sorted(set(_FORMATS.values())), help="(default: by the name's ending)")
    add("--schema", help="columns and types as Spark spells them: 'id BIGINT, at TIMESTAMP' (default: found out)")
    parser.add_target()
    add("--batch-id", required=True, help="a name of the input; the same id is never promoted twice")
    topic = parser.add_mutually_exclusive_group(required=True)
    topic.add_argument("--topic", help="Kafka topic of the records")
    topic.add_argument("--topic-column", help="column with each record's topic")
    add("--create-time-column", help="column with the records' times (default: the time of the write)")
    add("--key", required=True, action="append", help="column of the key; of several, joined by a colon")
    add("--value", action="append", help="column of the value; of several, a JSON object (default: of all columns)")
    add("--header", action="append", default=[], metavar="NAME=COLUMN", help="a header from a column")
    add("--fixed-header", action="append", default=[], metavar="NAME=TEXT", help="a header that is always the same")
    add("--batch-header", action="append", default=[], metavar="NAME", help="a header with the batch's id")
    add("--order-by", action="append", default=[], help="column that orders records (default: as they stand)")
    add("--table", help="table or schema.table that takes the rows too; must exist")
    add("--batch-column", help="column of the table that takes the batch's id")
    add("--through", choices=["jdbc", "driver"], default="jdbc", help="way of the rows (default: jdbc)")
    add("--allow-empty", action="store_true", help="an input without rows is no error")
    add("--json", action="store_true", help="print the outcome of the batch as a JSON object")
    return parser


def _headers(options: argparse.Namespace) -> dict[str, HeaderSource]:
    headers: dict[str, HeaderSource] = {}
    for option in (*options.header, *options.fixed_header):
        name, equals, source = option.partition("=")
        if not equals or not name:
            raise ConfigError(
                f"{option!r} is not NAME=...", field="--header", next_step="write NAME=COLUMN or NAME=TEXT"
            )
        headers[name] = source if option in options.header else Fixed(source)
    return headers | {name: BatchId() for name in options.batch_header}


def _read(spark: SparkSession, options: argparse.Namespace) -> DataFrame:
    kind = options.format or _FORMATS.get(Path(options.input).suffix)
    if kind is None:
        raise ConfigError(f"{options.input!r} has no known format", field="--format", next_step="name it by --format")
    reader = spark.read.options(mode="FAILFAST", header="true", inferSchema="true")
    try:
        if options.schema:
            reader = reader.schema(options.schema)
        return reader.format(kind).load(options.input)
    except PySparkException as error:
        raise SourceError(
            f"the input {options.input} cannot be read",
            evidence=sentence_of(error),
            next_step="correct the path, --format or --schema",
        ) from error


def _run(arguments: Sequence[str] | None) -> None:
    options = _arguments().parse_args(arguments)
    records = Records(
        topic=options.topic,
        topic_column=options.topic_column,
        create_time_column=options.create_time_column,
        key=one_or_several(options.key),
        value=one_or_several(options.value) if options.value else None,
        headers=_headers(options),
        order_by=options.order_by,
    )
    jars = jdbc_jars(options.jdbc_jar) if options.through == "jdbc" else []
    connect(options.dsn).close()  # an unreachable database is an error before Spark starts
    with (
        tempfile.TemporaryDirectory(prefix="outbox-sink-", ignore_cleanup_errors=True) as folder,
        spark_session(jars=jars, work_folder=Path(folder)) as spark,
    ):
        report = sink(
            _read(spark, options),
            dsn=options.dsn,
            batch_id=options.batch_id,
            records=records,
            table=options.table,
            outbox=options.outbox,
            batch_column=options.batch_column,
            allow_empty=options.allow_empty,
            through=options.through,
        )
    tell(report.as_json() if options.json else f"{report.batch}  {report.rows} rows  {report.status}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    return run(lambda: _run(arguments), interrupted="run it again, nothing will be written twice")


if __name__ == "__main__":
    sys.exit(main())
