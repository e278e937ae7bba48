"""An audit from end to end.

    the logs' ends ─► a snapshot of Postgres ─► the logs' ends now ─► Spark compares ─► one transaction of results

A record that was in Kafka before the snapshot, and that the snapshot does not have, was never committed. A record that
the snapshot counts as delivered is in Kafka now, or is lost. A record that came to Kafka after the snapshot counts
neither as lost nor as never committed.
"""

import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from harvest_lib.audit import results
from harvest_lib.audit.results import MOST_FINDINGS
from harvest_lib.audit.summary import AuditSummary
from harvest_lib.errors import ConfigError, DatabaseError, HarvestError, ServerRegressed
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.identity import identity_of
from harvest_lib.postgres import translation
from harvest_lib.postgres.database import lift_timeouts
from harvest_lib.source import server_identity
from harvest_lib.spark.audit import comparison
from harvest_lib.spark.audit.committed import (
    Business,
    Committed,
    Taken,
    known_from,
    taken_from_ledger,
    taken_from_outbox,
)
from harvest_lib.spark.audit.kafka_side import Log, Logs, SparkTopics, translated
from harvest_lib.spark.audit.stages import Stages
from harvest_lib.spark.audit.state import AuditState, Mark, Past, Whose, held, moved
from harvest_lib.spark.raised import SPARK_ERRORS
from harvest_lib.spark.seen_rows import lowest_id, require_seen, seen_rows
from harvest_lib.spark.session import jdbc_jars, spark_session
from harvest_lib.spark.sink.database import JdbcTarget, Tables, connect, jdbc_target
from harvest_lib.subscriptions.shards import SubscriptionShard

_LONGEST_ID = 200
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
    state: Path | None = None,
    full: bool = False,
) -> AuditSummary:
    """Compare the topics with the committed records; write the result tables; return their summary.

    `kafka` are librdkafka's settings, `bootstrap.servers` among them. If rows stay in the outbox, lost records and
    backlog are counted for `subscription`; if rows are deleted on delivery, `business` names the table of the committed
    rows. `committed` decides between the two. A second audit of the same `audit_id` (default: a new UUID) replaces the
    first. `jars` are the jars of Spark's Kafka source and of the JDBC driver, separated by commas; the default is the
    value of HARVEST_SPARK_JARS.

    With the folder `state` only records since the last audit in that folder are read, and the numbers cover all
    audits since the first; `full` discards the content of the folder.

    Cheap checks come first: Spark starts only after Kafka, the topics, Postgres and its tables were found. Raises
    ConfigError, TopicMissing or another KafkaError, OutboxTableError, CheckpointError or another DatabaseError, or
    AuditStateError. After an error the result tables are unchanged.
    """
    audit_id = audit_id if audit_id is not None else str(uuid.uuid4())
    _check(audit_id, topics, state, full=full)
    found_jars, table = jdbc_jars(jars), OutboxTable.parse(outbox)
    source = SparkTopics(kafka, topics)
    before = source.settled_logs()
    run = str(uuid.uuid4())
    with connect(dsn) as connection, translation.translated(), ExitStack() as opened:
        results.prepare(connection)
        target = _staging(connection)
        try:
            folder = Path(
                opened.enter_context(tempfile.TemporaryDirectory(prefix="audit-", ignore_cleanup_errors=True))
            )
            with _snapshot(connection):
                kind, shards = known_from(connection, table, subscription, committed)
                kept: AuditState | None = None
                if state is not None:
                    _require_rows(kind)
                    whose = _whose(connection, table, subscription, shards, source)
                    kept = opened.enter_context(held(state, whose, full=full))
                past = kept.past if kept is not None else None
                if past is not None:
                    _require_server(connection, table, past)
                names = source.names
                if kind == "outbox":
                    seen = past.mark.snapshot if past is not None else None
                    taken = taken_from_outbox(connection, table, shards, topics=names, target=target, before=seen)
                else:
                    about = business or Business()
                    taken = taken_from_ledger(connection, table, about, topics=names, target=target)
                rows = (
                    seen_rows(connection, table, taken.visible, lowest_id(connection, table))
                    if kept is not None
                    else {}
                )
                server = server_identity.place(connection).as_json() if kept is not None else {}
                with spark_session(
                    jars=found_jars, work_folder=folder, app_name="harvest audit", is_long=True
                ) as spark:
                    left = kept.new if kept is not None else None
                    stages = Stages(spark.newSession(), source, work=folder / run, left=left, past=past)
                    compared = stages.compare(_since(source.settled_logs(), past), before, taken, most=MOST_FINDINGS)
                    if compared.found is not None:
                        _stage(compared.found, run=run, target=target)
            summary = _summary(audit_id, taken, compared.numbers)
            results.promote(connection, summary, run=run, outbox=table, topics=source.names)
            if kept is not None:
                kept.save(Mark(ends=_ends(before), snapshot=taken.visible, seen=rows, server=server), compared.settled)
        except SPARK_ERRORS as error:
            raise _failure(error, kafka) from error
        finally:
            results.clear(connection, run=run)
    return summary


def _stage(found: DataFrame, *, run: str, target: JdbcTarget) -> None:
    """Write the findings into the staging table, under the run. Raises Spark's errors."""
    rows = found.drop("is_settled").withColumn("run", F.lit(run))
    rows.write.jdbc(target.url, target.table, mode="append", properties=dict(target.properties))


def _check(audit_id: str, topics: Sequence[str], state: Path | None, *, full: bool) -> None:
    if not 0 < len(audit_id) <= _LONGEST_ID or "\0" in audit_id:
        raise ConfigError(
            f"{audit_id[:_LONGEST_ID]!r} cannot be an audit's id", field="--audit-id", next_step="shorten it"
        )
    if not topics:
        raise ConfigError("no topic was named", field="--topic", next_step="name the topics to be audited")
    if full and state is None:
        raise ConfigError("there is nothing to forget", field="--full", next_step="name the folder by --state")


def _require_rows(kind: str) -> None:
    if kind != "outbox":
        raise ConfigError(
            "an outbox whose rows are deleted has no state that an audit could go on from",
            field="--state",
            next_step="leave --state out: everything is compared",
        )


def _whose(
    connection: psycopg.Connection[Any],
    outbox: OutboxTable,
    subscription: str,
    shards: Sequence[SubscriptionShard],
    source: SparkTopics,
) -> Whose:
    filters = (shards[0].topics, shards[0].keys) if shards else (None, None)
    reads = f"{subscription!r}, topics {filters[0] or 'all'}, keys {filters[1] or 'all'}"
    return Whose(outbox=str(identity_of(connection, outbox.identifier)), reads=reads, topics=source.ids())


def _require_server(connection: psycopg.Connection[Any], outbox: OutboxTable, past: Past) -> None:
    mark = past.mark
    try:
        server_identity.check(connection, mark.server, "")
        require_seen(connection, outbox, mark.snapshot, mark.seen, lambda: lowest_id(connection, outbox))
    except ServerRegressed as error:
        raise moved("Postgres may lack records that earlier audits have read", error.evidence or "") from error


def _since(logs: Logs, past: Past | None) -> Logs:
    """Return the ranges of offsets that no earlier audit has read. Raises AuditStateError if a partition has become
    shorter."""
    found = {}
    for (topic, partition), log in logs.items():
        low = past.mark.ends.get(topic, {}).get(str(partition), log.low) if past is not None else log.low
        if low > log.high:
            raise moved(
                f"partition {partition} of {topic!r} is shorter than it was at the last audit",
                f"it ended at {low}, and ends at {log.high}: records were lost, or other records have their offsets",
            )
        found[topic, partition] = Log(low=max(low, log.low), high=log.high)
    return found


def _ends(logs: Logs) -> dict[str, dict[str, int]]:
    ends: dict[str, dict[str, int]] = {}
    for (topic, partition), log in logs.items():
        ends.setdefault(topic, {})[str(partition)] = log.high
    return ends


@contextmanager
def _snapshot(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Keep a single snapshot until the block ends, without a timeout of an idle transaction."""
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        lift_timeouts(connection)
        yield


def _summary(audit_id: str, taken: Taken, counted: Mapping[str, Any]) -> AuditSummary:
    waiting = counted["backlog_records"] if taken.waiting is None else taken.waiting.records
    since = counted["backlog_since"] if taken.waiting is None else taken.waiting.since
    names = ("committed", "lost", "duplicates_adjacent", "duplicates_separated", "duplicates_cross_epoch", "reordered")
    return AuditSummary(
        audit_id=audit_id,
        at=datetime.fromtimestamp(taken.at, UTC),
        records=counted["ours"] + counted["other_contents"] + counted["foreign"],
        **{name: counted[name] for name in names},
        unknown=counted["unknown"],
        other_contents=counted["other_contents"],
        foreign_messages=counted["foreign"],
        **comparison.delays_of(counted),
        backlog_records=waiting,
        backlog_age_seconds=max(0.0, taken.at - since / 1e6) if since is not None else 0.0,
        **{name: counted[name] for name in comparison.KEY_NUMBERS},
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
