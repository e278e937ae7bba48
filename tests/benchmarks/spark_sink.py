"""The Spark sink beside an append of the same rows by Spark's JDBC writer, in turn.

The target is one of the plain append: `df.write.jdbc` as it comes. Beside it stands, without a target, the comparison
with an append that is given the settings of the sink (`reWriteBatchedInserts`, batches of 5,000 rows). What is written
then twice, once to the staging table and once from there, is what the difference to 1 is made of.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg
from psycopg import sql
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from harvest_lib.local_stack.jars import POSTGRES_JDBC, resolve
from harvest_lib.local_stack.java import find_java
from harvest_lib.local_stack.state import default_state
from harvest_lib.outbox import NativeTable, OutboxTable
from spark_jobs.outbox_sink import Records, sink
from spark_jobs.session import spark_session
from spark_jobs.sink.database import Tables, connect, jdbc_target
from tests.benchmarks.backlog import Servers
from tests.benchmarks.report import Result, at_least

if TYPE_CHECKING:
    from tests.benchmarks.scenarios import Size

_TARGET = 0.7
_PARTITIONS = 8
_TABLES = """
DROP TABLE IF EXISTS plain, sunk, sunk_staging, sunk_batches, sink_outbox_staging, sink_outbox_batches,
    sink_native_staging, sink_native_batches;
CREATE TABLE plain (id bigint, customer text, payload text, at timestamptz);
CREATE TABLE sunk (LIKE plain);
"""
_RECORDS = Records(topic="spark-sink", key="customer", value="payload", order_by=["id"])


def spark_sink(servers: Servers, size: "Size") -> Iterator[Result]:
    """Records alone into either layout of the outbox, and records with business rows."""
    rows = 10 * size.records
    state = default_state()
    java_home = find_java(state)
    ways: dict[str, Callable[[DataFrame], None]] = {
        "spark-sink": lambda frame: _sink(servers, frame, outbox="sink_outbox"),
        "spark-sink-native": lambda frame: _sink(servers, frame, outbox="sink_native"),
        "spark-sink-business": lambda frame: _sink(servers, frame, outbox="sink_outbox", table="sunk"),
    }
    with (
        _java(java_home),
        tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder,
        spark_session(jars=resolve(POSTGRES_JDBC, state, java_home), work_folder=Path(folder)) as spark,
    ):
        frame = spark.range(0, rows, 1, _PARTITIONS).select(
            "id",
            F.concat(F.lit("customer-"), (F.xxhash64("id") % 5_000).cast("string")).alias("customer"),
            F.repeat(F.sha2(F.col("id").cast("string"), 256), 4).substr(1, 200).alias("payload"),
            F.timestamp_seconds("id").alias("at"),
        )
        frame = frame.persist()
        _make_tables(servers)
        plain = partial(_append, servers, tuned=False)
        tuned = partial(_append, servers, tuned=True)
        for write in (plain, tuned, *ways.values()):
            write(frame.where("id % 10 = 0"))  # Java compiles meanwhile
        floors: list[float] = []
        tuned_floors: list[float] = []
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(size.rounds):
            floors.append(_rate(servers, frame, rows, plain))
            tuned_floors.append(_rate(servers, frame, rows, tuned))
            for name, write in ways.items():
                rates[name].append(_rate(servers, frame, rows, write))
    for name, found in rates.items():
        ratio = median(rate / floor for rate, floor in zip(found, floors, strict=True))
        yield at_least(name, median(found), "/s", floor=median(floors), ratio=ratio, target=_TARGET)
        ratio = median(rate / floor for rate, floor in zip(found, tuned_floors, strict=True))
        yield at_least(f"{name}-of-tuned", median(found), "/s", floor=median(tuned_floors), ratio=ratio)


def _rate(servers: Servers, frame: DataFrame, rows: int, write: Callable[[DataFrame], None]) -> float:
    _make_tables(servers)
    began = time.perf_counter()
    write(frame)
    return rows / (time.perf_counter() - began)


def _sink(servers: Servers, frame: DataFrame, *, outbox: str, table: str | None = None) -> None:
    report = sink(frame, dsn=servers.dsn, batch_id=uuid4().hex, records=_RECORDS, outbox=outbox, table=table)
    if report.status != "promoted":
        raise RuntimeError(f"{report.batch} is {report.status}")


def _append(servers: Servers, frame: DataFrame, *, tuned: bool) -> None:
    name = sql.Identifier("plain")
    with connect(servers.dsn) as connection:
        target = jdbc_target(connection, Tables(business=None, outbox=name, staging=name, ledger=name))
    properties = {
        name: value
        for name, value in target.properties.items()
        if tuned or name not in {"batchsize", "reWriteBatchedInserts"}
    }
    frame.write.jdbc(target.url, target.table, mode="append", properties=properties)


def _make_tables(servers: Servers) -> None:
    with psycopg.connect(servers.dsn, autocommit=True) as connection:
        connection.execute(_TABLES)
        connection.execute("DROP TABLE IF EXISTS sink_outbox, sink_native")
        OutboxTable.parse("sink_outbox").create(connection)
        NativeTable(outbox=OutboxTable.parse("sink_native")).create(connection)
        connection.execute("CHECKPOINT")  # which the first one measured would otherwise pay for


@contextmanager
def _java(java_home: Path) -> Iterator[None]:
    before = os.environ.get("JAVA_HOME")
    os.environ["JAVA_HOME"] = str(java_home)
    try:
        yield
    finally:
        if before is None:
            del os.environ["JAVA_HOME"]
        else:
            os.environ["JAVA_HOME"] = before
