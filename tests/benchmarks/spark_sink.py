"""The Spark sink and `format("outbox")` beside appends of the same rows by Spark's JDBC writer, in turn.

The floor of records alone is one append: the records into a native outbox with the same columns and indexes. With a
business table it is two appends, one after the other: the business rows and the records. Both leave the same rows in
the same tables, but in no order, not in one transaction, and again when they are repeated. They have the sink's JDBC
settings (`reWriteBatchedInserts`, batches of 5,000 rows). `-driver` is the sink by one COPY of the driver: records as
they stand in the frame, as an append takes them, or `-ordered`. `-of-bare` compares, without a target, with one append
of the frame into a table that has no index, which is less work than any outbox takes. `-fixed` is the time of a batch
of 100 rows, beside that of its floor.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from harvest_lib.local_stack.jars import POSTGRES_JDBC, resolve
from harvest_lib.local_stack.java import find_java
from harvest_lib.local_stack.state import default_state
from harvest_lib.outbox import NativeTable, OutboxTable
from harvest_lib.spark.data_source import register
from harvest_lib.spark.outbox_sink import Records, Through, sink
from harvest_lib.spark.session import spark_session
from harvest_lib.spark.sink.database import Tables, connect, jdbc_target
from tests.benchmarks.backlog import Servers
from tests.benchmarks.report import Result, at_least

if TYPE_CHECKING:
    from tests.benchmarks.scenarios import Size

_ALONE, _BUSINESS = 0.8, 0.65
_PARTITIONS = 8
_FEW = 100
_OURS = "SELECT relname FROM pg_class WHERE relname ~ '^sink_(bare|business|outbox)' AND relkind IN ('r', 'p')"
_BUSINESS_TABLES = """
CREATE TABLE sink_bare (id bigint, customer text, payload text, at timestamptz);
CREATE TABLE sink_business (LIKE sink_bare);
"""
_RECORDS = Records(topic="spark-sink", key="customer", value="payload", order_by=["id"])
_UNORDERED = replace(_RECORDS, order_by=[])

_Write = Callable[[DataFrame], None]


def spark_sink(servers: Servers, size: "Size") -> Iterator[Result]:
    """Both ways into the outbox, records alone and with business rows."""
    rows = 10 * size.records
    with spark_for_benchmarks() as spark:
        frame = _rows(spark, rows)
        few = _rows(spark, _FEW)
        append = partial(_append, servers)
        floors: dict[str, _Write] = {
            "alone": lambda frame: append(_as_records(frame), "sink_outbox"),
            "business": lambda frame: (append(frame, "sink_business"), append(_as_records(frame), "sink_outbox"))[-1],
            "bare": lambda frame: append(frame, "sink_bare"),
        }
        ways: dict[str, _Write] = {
            "spark-sink": partial(_sink, servers, table=None),
            "spark-sink-driver": partial(_sink, servers, table=None, through="driver", records=_UNORDERED),
            "spark-sink-driver-ordered": partial(_sink, servers, table=None, through="driver"),
            "spark-format": partial(_format, servers, table=None),
            "spark-sink-business": partial(_sink, servers, table="sink_business"),
            "spark-format-business": partial(_format, servers, table="sink_business"),
        }
        writes = floors | ways
        _make_tables(servers)
        for write in writes.values():
            write(frame.where("id % 10 = 0"))  # Java compiles meanwhile
        fixed = _seconds(servers, few, writes, size.rounds)
        seconds = _seconds(servers, frame, writes, size.rounds)
    for name in ways:
        own = "business" if name.endswith("-business") else "alone"
        yield _compared(name, seconds[name], seconds[own], rows, target=_target(name))
        yield _compared(f"{name}-of-bare", seconds[name], seconds["bare"], rows)
        yield Result(name=f"{name}-fixed", value=median(fixed[name]), unit="s", floor=median(fixed[own]))


def _target(name: str) -> float | None:
    """Records alone have a fast way, which has the target for all of them."""
    if name.endswith("-business"):
        return _BUSINESS
    return _ALONE if "-driver" in name else None


def _compared(name: str, found: list[float], floors: list[float], rows: int, *, target: float | None = None) -> Result:
    ratios = sorted(floor / seconds for seconds, floor in zip(found, floors, strict=True))
    return at_least(
        name,
        rows / median(found),
        "/s",
        floor=rows / median(floors),
        ratio=median(ratios),
        ratios=(ratios[0], ratios[-1]),
        target=target,
    )


def _seconds(servers: Servers, frame: DataFrame, writes: Mapping[str, _Write], rounds: int) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in writes}
    for _ in range(rounds):
        for name, write in writes.items():
            _make_tables(servers)
            began = time.perf_counter()
            write(frame)
            taken[name].append(time.perf_counter() - began)
    return taken


def _rows(spark: SparkSession, rows: int) -> DataFrame:
    frame = spark.range(0, rows, 1, _PARTITIONS).select(
        "id",
        F.concat(F.lit("customer-"), (F.xxhash64("id") % 5_000).cast("string")).alias("customer"),
        F.repeat(F.sha2(F.col("id").cast("string"), 256), 4).substr(1, 200).alias("payload"),
        F.timestamp_seconds("id").alias("at"),
    )
    frame.persist().count()
    return frame


def _as_records(frame: DataFrame) -> DataFrame:
    return frame.select(
        F.lit("spark-sink").alias("kafka_topic"),
        F.col("customer").alias("kafka_key"),
        F.col("payload").alias("kafka_value"),
    )


def _sink(
    servers: Servers,
    frame: DataFrame,
    *,
    table: str | None,
    through: Through = "jdbc",
    records: Records = _RECORDS,
) -> None:
    batch = uuid4().hex
    report = sink(
        frame, dsn=servers.dsn, batch_id=batch, records=records, outbox="sink_outbox", table=table, through=through
    )
    if report.status != "promoted":
        raise RuntimeError(f"{report.batch} is {report.status}")


def _format(servers: Servers, frame: DataFrame, *, table: str | None) -> None:
    parts = conninfo_to_dict(servers.dsn)
    options = {
        "password": str(parts.pop("password", "")),
        "dsn": make_conninfo("", **parts),
        "outbox": "sink_outbox",
        "batchId": uuid4().hex,
        "topic": _RECORDS.topic,
        "key": "customer",
        "value": "payload",
        "orderBy": "id",
    }
    if table is not None:
        options["table"] = table
    frame.write.format("outbox").options(**options).mode("append").save()


def _append(servers: Servers, frame: DataFrame, table: str) -> None:
    name = sql.Identifier(table)
    with connect(servers.dsn) as connection:
        target = jdbc_target(connection, Tables(business=None, outbox=name, staging=name, ledger=name))
    frame.write.jdbc(target.url, target.table, mode="append", properties=dict(target.properties))


def _make_tables(servers: Servers) -> None:
    with psycopg.connect(servers.dsn, autocommit=True) as connection:
        for (name,) in connection.execute(_OURS).fetchall():
            connection.execute(sql.SQL("DROP TABLE IF EXISTS {} CASCADE").format(sql.Identifier(name)))
        connection.execute(_BUSINESS_TABLES)
        NativeTable(outbox=OutboxTable.parse("sink_outbox")).create(connection)
        connection.execute("CHECKPOINT")  # which the first one measured would otherwise pay for


@contextmanager
def spark_for_benchmarks() -> Iterator[SparkSession]:
    state = default_state()
    java_home = find_java(state)
    before = os.environ.get("JAVA_HOME")
    os.environ["JAVA_HOME"] = str(java_home)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder,
            spark_session(jars=resolve(POSTGRES_JDBC, state), work_folder=Path(folder)) as spark,
        ):
            register(spark)
            yield spark
    finally:
        if before is None:
            del os.environ["JAVA_HOME"]
        else:
            os.environ["JAVA_HOME"] = before
