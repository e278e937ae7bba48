"""Reads of an outbox by `format("outbox")` beside reads of the same table by Spark's JDBC source, in turn.

The JDBC source reads 5 columns: Spark has no type for the two arrays of headers. It asks Postgres for counts, which a
source in Python cannot: `-count` names a column by the option `columns`. A filter is evaluated by Postgres in both.
`-shards` compares two tasks with one.
"""

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import TYPE_CHECKING, Any

from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pyspark.sql import DataFrame, SparkSession

from harvest_lib.spark.sink.database import Tables, connect, jdbc_target
from tests.benchmarks.backlog import Servers
from tests.benchmarks.report import Result, at_least
from tests.benchmarks.spark_sink import spark_for_benchmarks

if TYPE_CHECKING:
    from tests.benchmarks.scenarios import Size

_LEAST = 1 / 1.5
"""Of the rate of the JDBC source."""
_JDBC_QUERY = "(SELECT id, create_time, kafka_topic, kafka_key, kafka_value FROM outbox) AS rows"
_PUSHED = "spark.sql.python.filterPushdown.enabled"
_RARE = "UPDATE outbox SET kafka_topic = 'rare' WHERE id % 10000 = 0"

_Read = Callable[[], Any]


def spark_read(servers: Servers, size: "Size") -> Iterator[Result]:
    """A scan, a count, and a filter that finds few rows."""
    rows = 10 * size.records
    servers.make_native()
    servers.insert(rows)
    with connect(servers.dsn) as connection:
        connection.execute(_RARE)
    servers.settle()
    with spark_for_benchmarks() as spark:
        spark.conf.set(_PUSHED, "true")
        pairs: dict[str, tuple[_Read, _Read]] = {
            "scan": (lambda: _scan(_ours(spark, servers)), lambda: _scan(_jdbc(spark, servers))),
            "count": (_ours(spark, servers, columns="id").count, _jdbc(spark, servers).count),
            "few-ids": (lambda: _few(_ours(spark, servers), "id < 10"), lambda: _few(_jdbc(spark, servers), "id < 10")),
            "rare-topic": (
                lambda: _few(_ours(spark, servers), "kafka_topic = 'rare'"),
                lambda: _few(_jdbc(spark, servers), "kafka_topic = 'rare'"),
            ),
            "shards": (
                _ours(spark, servers, shards="2", columns="id").count,
                _ours(spark, servers, columns="id").count,
            ),
        }
        for ours, other in pairs.values():
            ours(), other()  # Java compiles meanwhile
        for name, (ours, other) in pairs.items():
            found = [(_seconds(ours), _seconds(other)) for _ in range(size.rounds)]
            ratios = sorted(second / first for first, second in found)
            yield at_least(
                f"spark-read-{name}",
                rows / median(first for first, _ in found),
                "/s",
                floor=rows / median(second for _, second in found),
                ratio=median(ratios),
                ratios=(ratios[0], ratios[-1]),
                target=_LEAST if name != "shards" else 1.0,
            )


def _ours(spark: SparkSession, servers: Servers, **options: str) -> DataFrame:
    parts = conninfo_to_dict(servers.dsn)
    password = str(parts.pop("password", ""))
    return spark.read.format("outbox").options(dsn=make_conninfo("", **parts), password=password, **options).load()


def _jdbc(spark: SparkSession, servers: Servers) -> DataFrame:
    with connect(servers.dsn) as connection:
        table = Tables.named(business=None, outbox="outbox").outbox
        target = jdbc_target(connection, Tables(business=None, outbox=table, staging=table, ledger=table))
    return spark.read.jdbc(target.url, _JDBC_QUERY, properties=dict(target.properties))


def _scan(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _few(frame: DataFrame, where: str) -> int:
    return frame.where(where).count()


def _seconds(read: _Read) -> float:
    began = time.perf_counter()
    read()
    return time.perf_counter() - began
