"""The native table: goharvest's columns, a column for the transaction that wrote the record, and partitions by id.

The partitions are called segments.

Promises
- Every id has a segment, even without any maintenance: the last segment, the tail, has no upper bound.
- There is no default partition: with a default partition, detaching a segment would stop writers.
- The creation of tables changes no existing table.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import psycopg
from psycopg import sql

from harvest_lib.outbox import native_table_queries as queries
from harvest_lib.outbox.checks import check_clauses
from harvest_lib.outbox.ddl_lock import lock_ddl
from harvest_lib.outbox.definitions import check_columns, check_name
from harvest_lib.outbox.table import LONGEST_NAME_BYTES, OutboxTable
from harvest_lib.postgres.translation import translated

ColumnType = Literal["varchar", "text", "bytea"]

DEFAULT_SEGMENT_SIZE = 10_000_000
"""Number of ids in a segment: about 2 GB if records have 200 bytes."""

DEFAULT_AHEAD = 4
"""Number of segments with an upper bound to have ready before the tail, the current segment included."""

_SQL_TYPES: dict[ColumnType, str] = {"varchar": "VARCHAR(10000)", "text": "TEXT", "bytea": "BYTEA"}
_TAIL = "tail"


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeTable:
    """The definition of a native table and its side tables, for `create_statements` and `create`."""

    outbox: OutboxTable
    value_type: ColumnType = "varchar"
    segment_size: int = DEFAULT_SEGMENT_SIZE
    ahead: int = DEFAULT_AHEAD
    has_checks: bool = False
    """Add the constraints of `checks`, which refuse records that Kafka rejects permanently."""

    def __post_init__(self) -> None:
        if self.segment_size < 1 or self.ahead < 1:
            raise ValueError(f"a segment holds at least 1 id, and 1 is ahead: {self.segment_size}, {self.ahead}")

    def create_statements(self) -> Sequence[sql.Composed]:
        """Return the statements that create the table and its side tables, in the order to run them."""
        outbox = self.outbox
        return [
            sql.SQL(queries.CREATE).format(
                table=outbox.identifier,
                value_type=sql.SQL(_SQL_TYPES[self.value_type]),
                checks=check_clauses() if self.has_checks else sql.SQL(""),
            ),
            index_statement(outbox),
            *segment_statements(outbox, first=0, count=self.ahead, size=self.segment_size),
            *beside_statements(outbox),
        ]

    def create(self, connection: psycopg.Connection[Any]) -> bool:
        """Create the table and its side tables, unless a relation of that name exists. Return True if the table was
        created."""
        if self.outbox.exists(connection):
            return False
        with translated(), connection.transaction():
            lock_ddl(connection, str(self.outbox))
            if self.outbox.exists(connection):
                return False
            for statement in self.create_statements():
                connection.execute(statement)
        return True


def create_beside(connection: psycopg.Connection[Any], outbox: OutboxTable) -> bool:
    """Create the missing side tables of a native table, in the same schema. Return True if a table was created. Raises
    OutboxTableError if an existing side table lacks a column of its definition."""
    placed = outbox.placed(connection)
    check_beside(connection, placed)
    if _has_all_beside(connection, placed):
        return False
    check_former_names(connection, placed)
    with translated(), connection.transaction():
        lock_ddl(connection, str(outbox))
        if _has_all_beside(connection, placed):  # even CREATE … IF NOT EXISTS requires the privilege to create
            return False
        for statement in beside_statements(placed):
            connection.execute(statement)
    return True


def check_beside(connection: psycopg.Connection[Any], outbox: OutboxTable) -> None:
    """Raise OutboxTableError if an existing side table lacks a column of its definition."""
    check_columns(connection, outbox.subscriptions, queries.SUBSCRIPTIONS)
    check_columns(connection, outbox.segments, queries.SEGMENTS)
    check_columns(connection, outbox.parked_ids, queries.PARKED_IDS)


def check_former_names(connection: psycopg.Connection[Any], outbox: OutboxTable) -> None:
    """Raise OutboxTableError if a side table is missing, but exists under its former name."""
    check_name(connection, outbox.parked_ids, beside(outbox, "_set_aside"))


def _has_all_beside(connection: psycopg.Connection[Any], placed: OutboxTable) -> bool:
    names = [str(each) for each in (placed.subscriptions, placed.segments, placed.parked_ids)]
    statement = "SELECT bool_and(to_regclass(name) IS NOT NULL) FROM unnest(%s::text[]) AS name"
    with translated():
        row = connection.execute(statement, (names,)).fetchone()
    return row == (True,)


def beside_statements(outbox: OutboxTable) -> list[sql.Composed]:
    """Return the statements that create the side tables of a native table."""
    return [
        sql.SQL(queries.SUBSCRIPTIONS).format(subscriptions=outbox.subscriptions.identifier),
        sql.SQL(queries.SEGMENTS).format(segments=outbox.segments.identifier),
        sql.SQL(queries.PARKED_IDS).format(
            parked_ids=outbox.parked_ids.identifier, index=sql.Identifier(beside(outbox, "_parked_ids_key").parts[-1])
        ),
    ]


def index_statement(outbox: OutboxTable) -> sql.Composed:
    """Return the statement that creates the index on (transaction_id, id), by which sources find new records."""
    name = shortened(outbox.parts[-1], "_transaction_id_idx")
    return sql.SQL(queries.INDEX).format(index=sql.Identifier(name), table=outbox.identifier)


def segment_statements(outbox: OutboxTable, *, first: int, count: int, size: int) -> list[sql.Composed]:
    """Return the statements that create `count` segments of `size` ids each, from id `first` on, and the tail after
    them.

    A segment that begins at 0 also contains all lower ids, so every id has a segment.
    """
    lowers = [first + number * size for number in range(count)]
    statements = [segment_statement(outbox, lower, lower + size) for lower in lowers]
    return [*statements, _segment(outbox, tail_of(outbox), first + count * size, None)]


def segment_statement(outbox: OutboxTable, lower: int, upper: int) -> sql.Composed:
    """Return the statement that creates the segment of the ids from `lower` up to, but not including, `upper`."""
    return _segment(outbox, segment_of(outbox, lower), lower, upper)


def segment_of(outbox: OutboxTable, lower: int) -> OutboxTable:
    """Return the name of the segment that begins with the id `lower`."""
    return beside(outbox, f"_from_{lower}")


def tail_of(outbox: OutboxTable) -> OutboxTable:
    """Return the name of the tail, the segment without an upper bound."""
    return beside(outbox, f"_{_TAIL}")


def _segment(outbox: OutboxTable, segment: OutboxTable, lower: int, upper: int | None) -> sql.Composed:
    return sql.SQL(queries.SEGMENT).format(
        segment=segment.identifier,
        table=outbox.identifier,
        lower=sql.Literal(lower) if lower else sql.SQL("MINVALUE"),
        upper=sql.Literal(upper) if upper is not None else sql.SQL("MAXVALUE"),
    )


def beside(outbox: OutboxTable, suffix: str) -> OutboxTable:
    """Return the name of an outbox's side table: the outbox's name with this suffix, in the same schema."""
    return OutboxTable((*outbox.parts[:-1], shortened(outbox.parts[-1], suffix)))


def shortened(name: str, suffix: str) -> str:
    """Append a suffix to a name. If the result would be too long for Postgres, replace the end of the name by a
    hash."""
    if len((name + suffix).encode()) <= LONGEST_NAME_BYTES:
        return name + suffix
    end = f"_{hashlib.sha256(name.encode()).hexdigest()[:8]}{suffix}"
    return name.encode()[: LONGEST_NAME_BYTES - len(end)].decode(errors="ignore") + end
