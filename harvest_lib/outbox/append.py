"""How writers append records, inside their own transaction.

Nothing about writing needs this module: a plain INSERT will do. What it adds is that a record that Kafka rejects
permanently is refused here, while the caller can still do something about it.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from harvest_lib.database import in_statement, translated
from harvest_lib.errors import OutboxTableError, RecordError
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.record import OutboxRecord, RecordLimits

if TYPE_CHECKING:
    import sqlalchemy

_Values = tuple[str, str, str | bytes | None, list[str], list[str | None]]

_INSERT = """
INSERT INTO {table} (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
VALUES (clock_timestamp(), %s, %s, {value}, %s::text[], %s::text[])
"""

# Text without its type would be read as bytea spells bytes, where that is the column's type, and bytes would be spelled
# out where it is text: both without an error.
_TEXT = "%s::text"
_BYTES = "coalesce((NULL::{table}).kafka_value, %s::bytea)"

_DOCUMENTED = RecordLimits()

# The width of a column of characters stands in its modifier, with four more; without one it has no limit.
_WIDTHS = """
SELECT max(CASE attname WHEN 'kafka_key' THEN nullif(atttypmod, -1) END) - 4,
       max(CASE attname WHEN 'kafka_value' THEN nullif(atttypmod, -1) END) - 4
FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attname IN ('kafka_key', 'kafka_value') AND NOT attisdropped
  AND atttypid IN ('varchar'::regtype, 'text'::regtype, 'bytea'::regtype)
HAVING count(*) = 2
"""

_known: "WeakKeyDictionary[object, dict[str, RecordLimits]]" = WeakKeyDictionary()
"""By connection and table: another connection may have another search path."""


def append(
    connection: "psycopg.Connection[Any] | sqlalchemy.Connection",
    records: Iterable[OutboxRecord],
    *,
    table: str = "outbox",
    limits: RecordLimits | None = None,
) -> int:
    """Insert records into the outbox and return how many; commits nothing, the transaction is the caller's.

    `connection` is psycopg's or SQLAlchemy's (over psycopg). Records get their ids in the order given. All records are
    checked before the first is sent: raises RecordError, and then nothing was written. Raises OutboxTableError if
    values are str and the column is BYTEA, or the other way round.

    How long a key and a value may be is what the columns of the table take, unless `limits` say otherwise. They are
    looked up once for each connection, and once more before a record is refused as too long.
    """
    records, driver = list(records), _psycopg(connection)
    if not records:
        return 0
    try:
        values = _checked(records, limits or _known_limits(driver, table) or _look_up(driver, table))
    except RecordError:
        if limits is not None:
            raise
        values = _checked(records, _look_up(driver, table))  # a column may be wider by now
    with _sent(table), driver.cursor() as cursor:
        cursor.executemany(_statement(table, values), values)
    return len(values)


async def append_async(
    connection: "psycopg.AsyncConnection[Any]",
    records: Iterable[OutboxRecord],
    *,
    table: str = "outbox",
    limits: RecordLimits | None = None,
) -> int:
    """Do as `append` does, on an async connection."""
    records = list(records)
    if not records:
        return 0
    try:
        values = _checked(
            records, limits or _known_limits(connection, table) or await _look_up_async(connection, table)
        )
    except RecordError:
        if limits is not None:
            raise
        values = _checked(records, await _look_up_async(connection, table))
    with _sent(table):
        async with connection.cursor() as cursor:
            await cursor.executemany(_statement(table, values), values)
    return len(values)


def _known_limits(connection: object, table: str) -> RecordLimits | None:
    return _known.get(connection, {}).get(table)


def _look_up(connection: "psycopg.Connection[Any]", table: str) -> RecordLimits:
    with translated(), connection.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute(_WIDTHS, (_name(table),)).fetchone()
    return _remembered(connection, table, row)


async def _look_up_async(connection: "psycopg.AsyncConnection[Any]", table: str) -> RecordLimits:
    with translated():
        async with connection.cursor(row_factory=tuple_row) as cursor:
            row = await (await cursor.execute(_WIDTHS, (_name(table),))).fetchone()
    return _remembered(connection, table, row)


def _remembered(connection: object, table: str, row: tuple[Any, ...] | None) -> RecordLimits:
    """Return the limits of the columns; of a table that the catalogue does not know, those of the documented one."""
    limits = _DOCUMENTED if row is None else RecordLimits(key_chars=row[0], value_chars=row[1])
    if row is not None:
        _known.setdefault(connection, {})[table] = limits
    return limits


def _name(table: str) -> str:
    return OutboxTable.parse(table).identifier.as_string(None)


def _checked(records: Iterable[OutboxRecord], limits: RecordLimits) -> Sequence[_Values]:
    values: list[_Values] = []
    for record in records:
        record.check(limits)
        names, contents = [name for name, _ in record.headers], [content for _, content in record.headers]
        values.append((record.topic, record.key, record.value, names, contents))
    if any(isinstance(value[2], bytes) for value in values) and any(isinstance(value[2], str) for value in values):
        raise RecordError(
            "some values are text and some are bytes", next_step="give all of one type: that of the column kafka_value"
        )
    return values


def _statement(table: str, values: Sequence[_Values]) -> sql.Composed:
    name = in_statement(OutboxTable.parse(table).identifier)
    value = _BYTES if any(isinstance(each[2], bytes) for each in values) else _TEXT
    return sql.SQL(_INSERT).format(table=name, value=sql.SQL(value).format(table=name))


@contextmanager
def _sent(table: str) -> Iterator[None]:
    """Turn psycopg's errors into ours, that of values of the other type into one that says so."""
    try:
        with translated():
            yield
    except OutboxTableError as error:
        if not isinstance(error.__cause__, psycopg.errors.DatatypeMismatch):
            raise
        raise OutboxTableError(
            f"the values are of another type than the column kafka_value of {table}",
            evidence=error.evidence,
            next_step="give all values as bytes if the column is BYTEA (`harvest init --value-type`), else as str",
        ) from error


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
