"""An audit from end to end.

    the logs' ends ─► a snapshot of Postgres ─► the logs' ends now ─► Spark compares ─► one transaction of results

What the snapshot does not have, though it was in Kafka before, was never committed. What the snapshot says was
delivered is in Kafka now, or is lost. What came between the two is neither.
"""

import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from harvest_lib import database
from harvest_lib.errors import ConfigError, DatabaseError, HarvestError
from harvest_lib.outbox import OutboxTable
from spark_jobs.audit import comparison, results
from spark_jobs.audit.committed import Business, Committed, Taken, known_from, taken_from_ledger, taken_from_outbox
from spark_jobs.audit.kafka_side import Logs, Topics, translated
from spark_jobs.audit_summary import AuditSummary
from spark_jobs.session import jdbc_jars, spark_session
from spark_jobs.sink.database import JdbcTarget, Tables, connect, jdbc_target

MOST_FINDINGS = 10_000
"""Findings of each kind that the tables keep; the summary counts all of them."""

_SHUFFLE_RECORDS = 250_000
_MOST_SHUFFLE_PARTS = 4_000
_LONGEST_ID = 200
_FORGETS = "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"
_LONGEST_EVIDENCE = 300


def audit(
    *,
    dsn: str,
    kafka: Mapping[str, object],
    topics: Sequence[str],
    outbox: str = "outbox",
    subscription: str = "default",
    committed: Committed = "auto",
    business: Business | None = None,
    audit_id: str | None = None,
    jars: str | None = None,
) -> AuditSummary:
    """Compare the topics with what was committed; write the result tables; return their summary.

    `kafka` are librdkafka's settings, `bootstrap.servers` among them. Of `subscription` is what is said of lost records
    and backlog, where rows stay in the outbox; `business` says where committed rows are found when they do not;
    `committed` decides which it is. A second audit of the same `audit_id` (a UUID of its own by default) replaces the
    first. `jars` are those of Spark's Kafka source and of the JDBC driver, commas between; by default
    HARVEST_SPARK_JARS names them.

    Cheap checks come first: nothing starts Spark before Kafka, the topics, Postgres and its tables are known to be
    there. Raises ConfigError, TopicMissing or another KafkaError, OutboxTableError, CheckpointError or another
    DatabaseError; then the result tables are as before.
    """
    audit_id = audit_id if audit_id is not None else str(uuid.uuid4())
    if not 0 < len(audit_id) <= _LONGEST_ID or "\0" in audit_id:
        raise ConfigError(
            f"{audit_id[:_LONGEST_ID]!r} cannot be an audit's id", field="--audit-id", next_step="shorten it"
        )
    if not topics:
        raise ConfigError("no topic was named", field="--topic", next_step="name the topics to be audited")
    found_jars, table = jdbc_jars(jars), OutboxTable.parse(outbox)
    source = Topics(kafka, topics)
    before = source.logs()
    run = str(uuid.uuid4())
    with connect(dsn) as connection, database.translated():
        results.prepare(connection)
        target = _staging(connection)
        try:
            with (
                tempfile.TemporaryDirectory(prefix="audit-", ignore_cleanup_errors=True) as folder,
                _snapshot(connection),
            ):
                kind, shards = known_from(connection, table, subscription, committed)
                taken = (
                    taken_from_outbox(connection, table, shards, topics=source.names, target=target)
                    if kind == "outbox"
                    else taken_from_ledger(
                        connection, table, business or Business(), topics=source.names, target=target
                    )
                )
                with spark_session(jars=found_jars, work_folder=Path(folder), app_name="harvest audit") as spark:
                    counted = _compared(spark.newSession(), source, before, taken, run=run, target=target)
            summary = _summary(audit_id, taken, counted)
            results.promote(connection, summary, run=run, outbox=table, topics=source.names)
        except (PySparkException, Py4JError) as error:
            raise _failure(error, kafka) from error
        finally:
            results.clear(connection, run=run)
    return summary


@contextmanager
def _snapshot(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Keep one snapshot for as long as the block lasts, however long that idles."""
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        yield


def _compared(
    spark: SparkSession, source: Topics, before: Logs, taken: Taken, *, run: str, target: JdbcTarget
) -> dict[str, Any]:
    """Compare, stage what was found, and return the numbers."""
    logs = source.logs()
    size = sum(log.high - log.low for log in logs.values())
    parts = min(_MOST_SHUFFLE_PARTS, max(spark.sparkContext.defaultParallelism, -(-size // _SHUFFLE_RECORDS)))
    for name, value in {
        "spark.sql.shuffle.partitions": parts,
        # It replaces what turned out to be empty, and with it forgets what was observed there.
        "spark.sql.adaptive.optimizer.excludedRules": _FORGETS,
        "spark.sql.session.timeZone": "UTC",
        # So that findings beyond the limit are dropped before they are sent around.
        "spark.sql.optimizer.windowGroupLimitThreshold": MOST_FINDINGS,
    }.items():
        spark.conf.set(name, str(value))
    in_kafka, in_all = Observation("kafka"), Observation("comparison")
    observed = source.read(spark, logs, before, in_kafka, id_header=taken.id_header)
    if taken.floor is not None:
        observed = observed.withColumn("is_judged", F.col("is_judged") & (F.col("outbox_id") >= taken.floor))
    compared = comparison.compare(observed, taken.read(spark))
    found = comparison.findings(compared, in_all, most=MOST_FINDINGS).persist(StorageLevel.DISK_ONLY)
    # The numbers come with an action that Spark observes, which a write by JDBC is not.
    found.count()
    results.stage(found, run=run, target=target)
    return {**in_all.get, **in_kafka.get}


def _summary(audit_id: str, taken: Taken, counted: Mapping[str, Any]) -> AuditSummary:
    waiting = counted["backlog_records"] if taken.waiting is None else taken.waiting.records
    since = counted["backlog_since"] if taken.waiting is None else taken.waiting.since
    names = ("committed", "lost", "duplicates_adjacent", "duplicates_separated", "duplicates_cross_epoch", "reordered")
    return AuditSummary(
        audit_id=audit_id,
        at=datetime.fromtimestamp(taken.at, UTC),
        records=counted["records"],
        **{name: counted[name] for name in names},
        unknown=counted["unknown"],
        foreign_messages=counted["records"] - counted["ours"],
        **comparison.delays_of(counted),
        backlog_records=waiting,
        backlog_age_seconds=max(0.0, taken.at - since / 1e6) if since is not None else 0.0,
    )


def _staging(connection: psycopg.Connection[Any]) -> JdbcTarget:
    nothing = sql.Identifier("")
    staging = sql.Identifier("harvest_audit", "staging")
    return jdbc_target(connection, Tables(business=nothing, outbox=nothing, staging=staging, ledger=nothing))


def _failure(error: Exception, kafka: Mapping[str, object]) -> HarvestError:
    if (known := translated(error, kafka)) is not None:
        return known
    text = str(error).strip()
    lines = [line.strip() for line in text.splitlines() if "PSQLException" in line] or text.splitlines() or [""]
    kind = DatabaseError if "PSQLException" in text else HarvestError
    return kind(
        "Spark could not compare",
        evidence=lines[0][:_LONGEST_EVIDENCE],
        next_step="correct what the message names and run the audit again: the result tables are as before",
    )
