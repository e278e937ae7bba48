"""How writers append records, inside their own transaction.

Nothing about writing needs this module: a plain INSERT will do. What it adds is that a record Kafka could never take
is refused here, while the caller can still do something about it.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from harvest_lib.database import in_statement, translated
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.record import OutboxRecord, RecordLimits

if TYPE_CHECKING:
    import sqlalchemy

_Values = tuple[str, str, str | None, list[str], list[str | None]]

_INSERT = """
INSERT INTO {table} (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
VALUES (clock_timestamp(), %s, %s, %s, %s::text[], %s::text[])
"""

_DEFAULT_LIMITS = RecordLimits()


def append(
    connection: "psycopg.Connection[Any] | sqlalchemy.Connection",
    records: Iterable[OutboxRecord],
    *,
    table: str = "outbox",
    limits: RecordLimits = _DEFAULT_LIMITS,
) -> int:
    """Insert records into the outbox and return how many; commits nothing, the transaction is the caller's.

    `connection` is psycopg's or SQLAlchemy's (over psycopg). Records get their ids in the order given. All records are
    checked before the first is sent: raises RecordError, and then nothing was written.
    """
    values = _checked(records, limits)
    if not values:
        return 0
    with translated(), _psycopg(connection).cursor() as cursor:
        cursor.executemany(_statement(table), values)
    return len(values)


async def append_async(
    connection: "psycopg.AsyncConnection[Any]",
    records: Iterable[OutboxRecord],
    *,
    table: str = "outbox",
    limits: RecordLimits = _DEFAULT_LIMITS,
) -> int:
    """Do as `append` does, on an async connection."""
    values = _checked(records, limits)
    if not values:
        return 0
    with translated():
        async with connection.cursor() as cursor:
            await cursor.executemany(_statement(table), values)
    return len(values)


def _checked(records: Iterable[OutboxRecord], limits: RecordLimits) -> Sequence[_Values]:
    values: list[_Values] = []
    for record in records:
        record.check(limits)
        names, contents = [name for name, _ in record.headers], [content for _, content in record.headers]
        values.append((record.topic, record.key, record.value, names, contents))
    return values


def _statement(table: str) -> sql.Composed:
    return sql.SQL(_INSERT).format(table=in_statement(OutboxTable.parse(table).identifier))


def _psycopg(connection: "psycopg.Connection[Any] | sqlalchemy.Connection") -> "psycopg.Connection[Any]":
    if isinstance(connection, psycopg.Connection):
        return connection
    driver = getattr(getattr(connection, "connection", None), "driver_connection", None)
    if not isinstance(driver, psycopg.Connection):
        found = type(connection if driver is None else driver).__name__
        raise TypeError(f"expected a psycopg or SQLAlchemy connection over psycopg, not {found}")
    if not connection.in_transaction():
        connection.begin()  # what goes past SQLAlchemy does not begin its transaction, and its commit would do nothing
    return driver
