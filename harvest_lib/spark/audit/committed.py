"""Postgres' side of the audit: the committed records as of one snapshot, and the records still to be delivered.

If rows stay in the outbox (a native table that the harvester reads without marking), the committed records are the rows
of the outbox, and the subscription's row shows how far they were delivered. If rows are deleted on delivery, the
committed records are the business rows of the batches in the ledger; rows that are still in the outbox wait, and parked
rows could not be sent.

All reads of one audit see the same snapshot, which a read-only transaction on the driver keeps alive. So Spark's tasks
read the same rows, however often and whenever they read.

Row-level security could hide rows from the audit's role, and a loss of hidden rows in Kafka would go unnoticed. So the
audit refuses a table with hidden rows. It checks the policies after it has read the table, because from then on its
locks prevent changes of the policies. The audit also refuses tables that were rewritten or emptied after the snapshot
was taken, because the snapshot does not show their rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import psycopg
from psycopg import sql
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from harvest_lib.audit.outbox_query import hiding_named, outbox_query, shows_all_rows, states
from harvest_lib.audit.records import CONTENT, MUST_COME
from harvest_lib.audit.unchanged import require_unchanged
from harvest_lib.errors import ConfigError, OutboxTableError
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.segments import Segments
from harvest_lib.postgres.table_names import name_parts
from harvest_lib.postgres.translation import translated
from harvest_lib.spark.audit import queries
from harvest_lib.spark.sink.database import JdbcTarget
from harvest_lib.subscriptions.delivered import shards_of
from harvest_lib.subscriptions.shards import SubscriptionShard

_PART_ROWS = 1_000_000
_MOST_PARTS = 10_000
_FETCH_ROWS = 5_000
_BLOCK_IDS = 4_096

Committed = Literal["auto", "outbox", "ledger"]
"""Source of the committed records; `auto` chooses by the outbox and its subscription."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Business:
    """The business table whose records are audited. The name of its ledger is the table's name with `_batches`
    appended.

    `id_column` is an integer column. The header `id_header` of a row's record has the same value.
    """

    table: str = "flights"
    id_column: str = "flight_id"
    id_header: str = "event-id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A query for Spark. The column `by`, with values from `lowest` to `highest`, divides the rows into parts."""

    statement: str
    by: str
    lowest: int
    highest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The backlog of an outbox whose rows are deleted on delivery. `since` is the creation time of the oldest record,
    in microseconds of Unix time."""

    records: int
    since: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """All reads of an audit in Postgres, as of a snapshot. `at` is the snapshot's Unix time by the server's clock.

    `floor` is the lowest outbox id that was not dropped, None if nothing was dropped. `waiting` is None if the
    comparison itself counts the backlog. `policies_apply` is true if policies of row-level security apply, and show
    all rows.
    """

    snapshot: str
    visible: str
    at: float
    committed: Read
    policies_apply: bool
    everything: Read | None = None
    states: Read | None = None
    waiting: Waiting | None = None
    floor: int | None = None
    id_header: str | None = None
    target: JdbcTarget = field(repr=False)

    def read(self, spark: SparkSession, still_open: DataFrame | None = None) -> DataFrame:
        """Return the committed records with the columns record, since, state, content and is_new.

        `still_open` are records that earlier audits did not find in Kafka. The state of these records is read again.
        """
        rows = self._read(spark, self.committed).withColumn("is_new", F.lit(True))
        if self.states is None:
            if still_open is None or self.everything is None or not (ranges := _ranges(still_open)):
                return rows
            known = self._among(spark, self.everything, still_open, ranges)
            return rows.unionByName(known.withColumn("is_new", F.lit(False)))
        # Nearly all committed records are purged, so the few records that are not purged are the small side of the
        # join.
        left = self._read(spark, self.states).groupBy("record").agg(F.max("state").alias("state"))
        rows = rows.join(left, "record", "left").withColumn("state", F.coalesce("state", F.lit(MUST_COME)))
        return rows.withColumn("content", F.lit(None).cast("bigint"))  # the values of purged rows are unknown

    def keys_of(self, spark: SparkSession, records: DataFrame) -> DataFrame | None:
        """Return topic and key of committed records, None if the rows are purged, so that both are unknown."""
        if self.everything is None:
            return None
        return self._among(spark, self.everything, records, _ranges(records)).select("topic", "key")

    def _among(
        self, spark: SparkSession, what: Read, records: DataFrame, ranges: Sequence[tuple[int, int]]
    ) -> DataFrame:
        statement = queries.within(what.statement, ranges)
        again = Read(statement=statement, by="part", lowest=ranges[0][0], highest=ranges[-1][1])
        return self._read(spark, again).join(records, "record", "left_semi")

    def _read(self, spark: SparkSession, what: Read) -> DataFrame:
        parts = min(_MOST_PARTS, max(2, -(-(what.highest - what.lowest + 1) // _PART_ROWS)))
        options = {
            **self.target.properties,
            "fetchsize": str(_FETCH_ROWS),
            "sessionInitStatement": queries.in_snapshot(self.snapshot, policies_apply=self.policies_apply),
            "url": self.target.url,
            "dbtable": f"({what.statement}) AS taken",
            "partitionColumn": what.by,
            "lowerBound": str(what.lowest),
            "upperBound": str(what.highest + 1),
            "numPartitions": str(parts),
        }
        return spark.read.format("jdbc").options(**options).load().drop(what.by)


def known_from(
    connection: psycopg.Connection[Any], outbox: OutboxTable, subscription: str, committed: Committed
) -> tuple[Committed, Sequence[SubscriptionShard]]:
    """Return two values: the source of committed records, `outbox` or `ledger`, and the subscription's shards. The
    shards are empty if they were not read.

    `auto` chooses the outbox for a native table, unless its subscription marks rows. Raises OutboxTableError, or
    CheckpointError if the outbox has subscriptions, but none of this name.
    """
    kind = outbox.check_columns(connection)
    if committed == "outbox":
        outbox.check_native(connection)
    if committed == "ledger" or kind != "native":
        return "ledger", ()
    with hiding_named():
        shards = shards_of(connection, outbox, subscription)
    marks = committed == "auto" and any(each.marks for each in shards)
    return ("ledger" if marks else "outbox"), shards


def taken_from_outbox(
    connection: psycopg.Connection[Any],
    outbox: OutboxTable,
    shards: Sequence[SubscriptionShard],
    *,
    topics: Sequence[str],
    target: JdbcTarget,
    before: str | None = None,
) -> Taken:
    """Return the reads of a native outbox for the topics. `before` is the snapshot of an earlier audit: `committed`
    leaves out the rows that this snapshot saw.

    The connection must be in the transaction that keeps the snapshot.
    """
    placed = outbox.placed(connection)
    content = _content(connection, outbox)
    statement = outbox_query(connection, outbox, shards, topics=topics, content=content)
    snapshot, at, visible = _snapshot(connection)
    everything = _read(connection, statement, sql.SQL("id"), outbox.identifier)
    require_unchanged(connection, _existing(connection, placed, placed.subscriptions, placed.parked_ids))
    return Taken(
        snapshot=snapshot,
        visible=visible,
        at=at,
        committed=everything if before is None else _since(connection, statement, before, outbox.identifier),
        everything=everything,
        policies_apply=shows_all_rows(connection, outbox, placed.parked_ids),
        floor=Segments(outbox).read(connection)[0].lower,
        target=target,
    )


def taken_from_ledger(
    connection: psycopg.Connection[Any],
    outbox: OutboxTable,
    business: Business,
    *,
    topics: Sequence[str],
    target: JdbcTarget,
) -> Taken:
    """Return the reads of an outbox whose rows are deleted on delivery: business rows of the batches in the ledger, and
    outbox rows that still wait or are parked."""
    table, ledger = OutboxTable.parse(business.table), OutboxTable(name_parts(business.table, "_batches"))
    _check_business(connection, table, ledger, business.id_column)
    id_column = sql.Identifier("b", business.id_column)
    statement = sql.SQL(queries.BUSINESS).format(
        business=table.identifier, ledger=ledger.identifier, id=id_column, **states()
    )
    names = {
        "outbox": outbox.identifier,
        "header": sql.Literal(business.id_header),
        "topics": sql.Literal(list(topics)),
    }
    left = [sql.SQL(queries.LEFT).format(**names, **states())]
    parked = outbox.beside(connection, "parked")
    if parked is not None:
        left.append(sql.SQL(queries.PARKED).format(parked=parked.identifier, **names, **states()))
    with translated():
        waiting = connection.execute(sql.SQL(queries.WAITING).format(**names)).fetchone()
    require_unchanged(connection, [outbox, table, ledger, *([parked] if parked else [])])
    snapshot, at, visible = _snapshot(connection)
    return Taken(
        snapshot=snapshot,
        visible=visible,
        at=at,
        committed=_read(connection, statement, sql.Identifier(business.id_column), table.identifier),
        states=_read(connection, sql.Composed(left), sql.SQL("id"), outbox.identifier),
        policies_apply=shows_all_rows(connection, outbox, *([parked] if parked else []), table, ledger),
        waiting=Waiting(records=waiting[0], since=waiting[1]) if waiting else None,
        id_header=business.id_header,
        target=target,
    )


def _content(connection: psycopg.Connection[Any], outbox: OutboxTable) -> sql.SQL:
    is_bytes = outbox.value_type(connection) == "bytea"
    content = CONTENT.format(value="o.kafka_value" if is_bytes else "convert_to(o.kafka_value, 'UTF8')")
    return sql.SQL(queries.CONTENT.format(content=content))


def _existing(connection: psycopg.Connection[Any], *tables: OutboxTable) -> list[OutboxTable]:
    return [each for each in tables if each.exists(connection)]


def _check_business(
    connection: psycopg.Connection[Any], business: OutboxTable, ledger: OutboxTable, id_column: str
) -> None:
    for name, wanted in ((str(business), id_column), (str(ledger), "promoted_at")):
        with translated():
            columns = dict(connection.execute(queries.COLUMNS, {"table": name}).fetchall())
        if not columns:
            raise OutboxTableError(
                f"there is no table {name}: the outbox is purged, so what was committed must be known from it",
                evidence="the audit compares with the business rows of the batches in the ledger",
                next_step="name the business table by --table",
            )
        if wanted not in columns or (name == str(business) and columns[wanted] not in queries.INTEGERS):
            raise ConfigError(
                f"the table {name} has no integer column {wanted!r}"
                if name == str(business)
                else f"the table {name} is not a ledger: it has no column {wanted!r}",
                field="--id-column",
                next_step="name the column whose value the record's header has",
            )


def _snapshot(connection: psycopg.Connection[Any]) -> tuple[str, float, str]:
    with translated():
        (row,) = connection.execute(queries.EXPORT)
    return row[0], row[1], row[2]


def _read(
    connection: psycopg.Connection[Any], statement: sql.Composed, column: sql.Composable, table: sql.Identifier
) -> Read:
    with translated():
        row = connection.execute(sql.SQL(queries.BOUNDS).format(column=column, table=table)).fetchone()
    lowest, highest = row if row is not None else (0, 0)
    return Read(statement=statement.as_string(None), by="part", lowest=lowest, highest=highest)


def _since(connection: psycopg.Connection[Any], statement: sql.Composed, before: str, table: sql.Identifier) -> Read:
    since = sql.SQL(queries.SINCE).format(before=sql.Literal(before))
    with translated():
        row = connection.execute(sql.SQL(queries.BOUNDS_SINCE).format(table=table, since=since)).fetchone()
    lowest, highest = row if row is not None else (0, 0)
    both = sql.SQL("{} AND {}").format(statement, since)
    return Read(statement=both.as_string(None), by="part", lowest=lowest, highest=highest)


def _ranges(records: DataFrame) -> list[tuple[int, int]]:
    """Return a few ranges of ids that contain all the records. Waiting records mostly have adjacent ids."""
    blocks = records.groupBy(F.floor(F.col("record") / _BLOCK_IDS)).agg(F.min("record"), F.max("record")).collect()
    ranges: list[tuple[int, int]] = []
    for _, low, high in sorted(map(tuple, blocks)):
        if ranges and low - ranges[-1][1] <= _BLOCK_IDS:
            ranges[-1] = (ranges[-1][0], high)
        else:
            ranges.append((low, high))
    return ranges
