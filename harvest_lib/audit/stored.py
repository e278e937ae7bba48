"""An audit of an outbox from end to end, in this process, whose result is stored in `harvest_audit`.

    the logs' ends ─► a snapshot of Postgres ─► the logs to their ends now ─► comparison ─► one transaction of results

A record that was in Kafka before the snapshot, and that the snapshot does not have, was never committed. A record that
the snapshot counts as delivered is in Kafka now, or is lost. A record that came to Kafka after the snapshot counts
neither as lost nor as never committed. The audit by Spark has the same numbers and writes the same tables.
"""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, LiteralString, NamedTuple

import psycopg
from psycopg import sql

from harvest_lib.audit import results
from harvest_lib.audit.committed import read_query
from harvest_lib.audit.comparison import temporary_database
from harvest_lib.audit.kafka_log import committed_ends, read_topics
from harvest_lib.audit.outbox_query import KEY_ENCODING, hiding_named, outbox_query, shows_all_rows, states
from harvest_lib.audit.records import CONTENT
from harvest_lib.audit.summarizing import Summarizing
from harvest_lib.audit.summary import AuditSummary
from harvest_lib.audit.unchanged import require_unchanged
from harvest_lib.config import HarvestConfig
from harvest_lib.errors import ConfigError
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.segments import Segments
from harvest_lib.outbox.table import Beside
from harvest_lib.postgres.database import connect, lift_timeouts, server_time
from harvest_lib.postgres.translation import translated
from harvest_lib.source.selection import columns_of
from harvest_lib.subscriptions.delivered import shards_of
from harvest_lib.subscriptions.shards import SubscriptionShard

_PAGE_ROWS = 5_000
_ROWS: LiteralString = """
SELECT record, key, content, topic, state, (extract(epoch FROM since) * 1000000)::bigint FROM ({rows}) AS taken
"""
# Contents are unknown in `SQL_ASCII`, where bytes that are no valid text reach Kafka in several forms.
_CONTENT = "CASE WHEN getdatabaseencoding() <> 'SQL_ASCII' THEN {content} END"

# What an outbox still has whose rows are deleted on delivery.
_LEFT: LiteralString = """
SELECT id AS record, convert_to(kafka_key, {encoding}) AS key, NULL::bytea AS content, kafka_topic AS topic,
       {waits} AS state, CASE WHEN isfinite(create_time) THEN create_time END AS since
FROM {outbox} WHERE kafka_topic = ANY ({topics}::text[])
"""
_PARKED: LiteralString = """
UNION ALL SELECT id, convert_to(kafka_key, {encoding}), NULL, kafka_topic, {parked_}, NULL
FROM {parked} WHERE kafka_topic = ANY ({topics}::text[])
"""


class _Read(NamedTuple):
    """What was read in a snapshot: the Unix time by Postgres's clock, and the lowest outbox id that was not dropped
    (None if nothing was dropped)."""

    at: float
    floor: int | None


def stored_audit(
    config: HarvestConfig, topics: Sequence[str], *, audit_id: str, committed: str | None = None
) -> AuditSummary:
    """Compare the topics with the committed records, write the result tables, and return the summary.

    An outbox that keeps its rows is read itself. If rows are deleted on delivery, `committed` must be a query of the
    committed records, as for `harvest audit --committed`: outbox id, key, topic. A second audit of the same `audit_id`
    replaces the first.

    Raises ConfigError, TopicMissing or another KafkaError, OutboxTableError, CheckpointError or another DatabaseError.
    After an error the result tables are unchanged.
    """
    kafka, conninfo = config.kafka_settings(for_producer=False), config.data_source.conninfo()
    begins = committed_ends(kafka, topics)
    table, run = OutboxTable.parse(config.outbox_table), str(uuid.uuid4())
    with connect(conninfo) as connection:
        results.prepare(connection)
    with temporary_database() as records:
        compared = Summarizing(records)
        read_at = None
        if committed is not None:
            with connect(conninfo) as connection:
                read_at = server_time(connection)
            only = topics[0] if len(topics) == 1 else None
            compared.add_delivered(read_query(conninfo, committed, topics=topics), only)
        with connect(conninfo) as connection, _snapshot(connection):
            read = _add_outbox(connection, table, config, topics, compared, knows_more=committed is not None)
        compared.add_observed(chain.from_iterable(read_topics(kafka, topics)))
        compared.compare(begins, read.floor)
        summary = compared.summary(audit_id, read.at if read_at is None else min(read_at, read.at))
        with connect(conninfo) as connection:
            try:
                results.stage(connection, compared.findings(), run=run)
                results.promote(connection, summary, run=run, outbox=table, topics=topics)
            finally:
                results.clear(connection, run=run)
    return summary


@contextmanager
def _snapshot(connection: psycopg.Connection[Any]) -> Iterator[None]:
    with translated(), connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        lift_timeouts(connection)
        yield


def _add_outbox(
    connection: psycopg.Connection[Any],
    table: OutboxTable,
    config: HarvestConfig,
    topics: Sequence[str],
    compared: Summarizing,
    *,
    knows_more: bool,
) -> _Read:
    at = server_time(connection)
    is_mapped = config.columns is not None
    kind = "native" if is_mapped else table.check_columns(connection)
    with hiding_named():
        shards = shards_of(connection, table, config.subscription)
    is_purged = kind != "native" or config.source == "mark" or any(each.marks for each in shards)
    if is_purged and not knows_more:
        raise _unknown_committed(table)
    placed = table.placed(connection)
    beside: tuple[Beside, ...] = ("parked",) if is_purged else ("subscriptions", "parked_ids")
    read = [placed, *filter(None, (placed.beside(connection, name) for name in beside))]
    # The locks prevent changes of the tables and of their policies until the transaction ends.
    require_unchanged(connection, read)
    shows_all_rows(connection, *read)
    rows = _left(read, topics) if is_purged else _kept(connection, table, config, shards, topics)
    with connection.cursor(name="harvest_audit") as cursor:
        cursor.itersize = _PAGE_ROWS
        cursor.execute(sql.SQL(_ROWS).format(rows=rows).as_string(connection).encode())
        compared.add_outbox(cursor)
    floor = None if is_purged or is_mapped else Segments(table).read(connection)[0].lower
    return _Read(at=at, floor=floor)


def _left(read: Sequence[OutboxTable], topics: Sequence[str]) -> sql.Composed:
    names = {"topics": sql.Literal(list(topics)), "encoding": sql.SQL(KEY_ENCODING), **states()}
    rows = sql.SQL(_LEFT).format(outbox=read[0].identifier, **names)
    return rows + sql.SQL(_PARKED).format(parked=read[1].identifier, **names) if len(read) > 1 else rows


def _kept(
    connection: psycopg.Connection[Any],
    table: OutboxTable,
    config: HarvestConfig,
    shards: Sequence[SubscriptionShard],
    topics: Sequence[str],
) -> sql.Composed:
    """Return the statement for an outbox that keeps its rows. Rows of a mapped table may change after their delivery,
    so their contents are not compared."""
    if config.columns is not None:
        columns = columns_of(config.columns)
        listed = sql.SQL(", ").join(
            sql.SQL("{} AS {}").format(columns[name], sql.Identifier(name))
            for name in ("id", "transaction_id", "kafka_topic", "kafka_key", "create_time")
        )
        rows = sql.SQL("(SELECT {} FROM {})").format(listed, table.identifier)
        text = sql.SQL(rows.as_string(connection).replace("%%", "%"))
        return outbox_query(connection, table, shards, topics=topics, content=sql.SQL("NULL::bytea"), rows=text)
    value = "o.kafka_value" if table.value_type(connection) == "bytea" else "convert_to(o.kafka_value, 'UTF8')"
    content = sql.SQL(_CONTENT.format(content=CONTENT.format(value=value)))
    return outbox_query(connection, table, shards, topics=topics, content=content)


def _unknown_committed(table: OutboxTable) -> ConfigError:
    return ConfigError(
        f"the rows of {table} are deleted on delivery, so the outbox cannot show whether a delivered record was lost",
        field="committed",
        next_step='give a query of the table that keeps them, as in `harvest audit --committed "SELECT outbox_id, '
        'tail_number FROM flights"`; or audit by Spark, with the business table and its ledger',
    )
