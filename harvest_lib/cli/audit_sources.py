"""The records that `harvest audit` compares with Kafka: queries of the outbox, a query of the caller, or a file."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from psycopg import sql

    from harvest_lib import audit as audits
    from harvest_lib.config import HarvestConfig

    _Records = Iterator[audits.CommittedRecord]

_RECORDS = "SELECT id, kafka_key FROM (SELECT {columns} FROM {table} WHERE true {filter}) AS record"
# In a database in SQL_ASCII contents are not selected, because bytes that are not text in any encoding arrive in Kafka
# in several forms.
_CONTENTS = """
SELECT id, kafka_key, kafka_topic, CASE WHEN getdatabaseencoding() <> 'SQL_ASCII' THEN CONTENT END
FROM (SELECT {columns} FROM {table} WHERE true {filter}) AS record
"""
_PARKED = "SELECT id, kafka_key FROM {parked} WHERE kafka_topic = ANY (ARRAY[{topics}]::text[])"
_IS_LISTED = "{id} IN (SELECT id FROM {parked_ids} WHERE subscription = {subscription})"


class AuditSources(NamedTuple):
    """The committed records; a function that repeats the query of committed records, None without a query; and the
    undelivered records."""

    committed: "_Records"
    committed_again: "Callable[[], _Records] | None"
    pending: "_Records"


def committed_and_pending(
    harvest: "HarvestConfig",
    topics: list[str],
    committed: str | Path | None,
    pending: str | None,
    id_header: str | None,
) -> AuditSources:
    """Return the records to compare with Kafka. `committed` is a query or a file, `pending` a query. If `committed` is
    None, the committed records are read from the outbox. If `pending` is None, the undelivered records are read from
    the outbox, but only if the compared ids are the ids in the outbox."""
    from harvest_lib import audit as audits

    conninfo = harvest.data_source.conninfo()

    def from_database(query: "str | sql.Composed | None") -> "_Records":
        return audits.read_query(conninfo, query, topics=topics) if query is not None else iter(())

    outbox = waiting = None
    outbox_has_the_ids = id_header is None and not isinstance(committed, Path)
    if committed is None or (pending is None and outbox_has_the_ids):
        outbox, waiting = _outbox_queries(harvest, topics)
    waits = from_database(pending or (waiting if outbox_has_the_ids else None))
    if isinstance(committed, Path):
        return AuditSources(audits.read_file(committed, topics=topics), None, waits)
    again = partial(from_database, committed) if committed is not None else None
    return AuditSources(from_database(committed or outbox), again, waits)


def _outbox_queries(harvest: "HarvestConfig", topics: list[str]) -> "tuple[sql.Composed, sql.Composed]":
    """Return two queries of the outbox: all records, and undelivered or parked records.

    Both queries select records of the given topics that pass the subscription's filter, and apply the setting
    `columns`. If rows stay in the outbox after delivery, the subscription's position decides which rows count as
    delivered. The queries fail if row security hides rows from this role, because hidden rows would look delivered.
    Raises DatabaseError and CheckpointError.
    """
    from psycopg import sql

    from harvest_lib.audit.records import CONTENT
    from harvest_lib.harvester.assembly.factory import make_selection
    from harvest_lib.outbox import OutboxTable
    from harvest_lib.outbox.parking import ParkedIdTable
    from harvest_lib.outbox.row_security import all_rows_guard
    from harvest_lib.postgres.database import connect, in_statement
    from harvest_lib.source.filters import filter_conditions
    from harvest_lib.source.parked import parked_table
    from harvest_lib.subscriptions.delivered import delivered, shards_of

    table = OutboxTable.parse(harvest.outbox_table)
    with connect(harvest.data_source.conninfo()) as connection:
        shards = shards_of(connection, table, harvest.subscription)
        parked = parked_table(connection, table, harvest)
        is_parked = parked.exists(connection)
        is_mapped = harvest.columns is not None  # rows of a mapped table may change after their delivery
        is_bytes = not is_mapped and table.value_type(connection) == "bytea"
    value = "kafka_value" if is_bytes else "convert_to(kafka_value, 'UTF8')"
    records = _RECORDS if is_mapped else _CONTENTS.replace("CONTENT", CONTENT.format(value=value))
    own = make_selection(harvest, table)
    listed = sql.SQL(", ").join(in_statement(sql.Literal(each)) for each in topics)
    conditions: list[sql.Composable] = [
        sql.SQL("{} = ANY (ARRAY[{}]::text[])").format(own.columns["kafka_topic"], listed),
        *(filter_conditions(shards[0].topics, shards[0].keys, own.columns) if shards else ()),
    ]
    every = replace(own, conditions=conditions, guard=all_rows_guard([table.identifier]))
    waits: sql.Composable = sql.SQL("true")
    if any(not each.marks for each in shards):
        waits = sql.SQL("NOT ({})").format(delivered(shards, own.columns))
        if is_parked and isinstance(parked, ParkedIdTable):
            is_listed = sql.SQL(_IS_LISTED).format(
                id=own.columns["id"],
                parked_ids=in_statement(parked.table.identifier),
                subscription=in_statement(sql.Literal(harvest.subscription)),
            )
            waits = sql.SQL("({} OR {})").format(waits, is_listed)
    waiting = replace(every, conditions=[*conditions, waits]).fill(_RECORDS)
    if is_parked and not isinstance(parked, ParkedIdTable):
        also = sql.SQL(_PARKED).format(parked=in_statement(parked.table.identifier), topics=listed)
        waiting = sql.SQL("({}) UNION ALL ({})").format(waiting, also)
    return every.fill(records), waiting
