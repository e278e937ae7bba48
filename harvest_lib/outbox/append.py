"""Functions with which writers append records to the outbox, inside the writer's own transaction.

A plain INSERT does the same without this module. The module adds a check: it refuses a record that Kafka would reject
permanently, before the record is committed and while the writer can still correct it.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg import errors as pg
from psycopg import sql

from harvest_lib.errors import DatabaseAccessDenied, HarvestError, OutboxTableError, RecordError
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.outbox.writers import AsyncWay, Way, async_way_of, postgres_error, way_of
from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import evidence_of
from harvest_lib.record import OutboxRecord, RecordLimits
from harvest_lib.telemetry.trace_context import TRACEPARENT, TRACESTATE, current_headers

if TYPE_CHECKING:
    import asyncpg
    import sqlalchemy
    import sqlalchemy.ext.asyncio
    import sqlalchemy.orm

_POLICY = "row-level security policy"
_SHOWN_TOPICS = 3
_TRACED = {TRACEPARENT, TRACESTATE}
_Values = tuple[str, str, str | bytes | None, list[str], list[str | None]]

_INSERT = """
INSERT INTO {table} (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
VALUES (clock_timestamp(), %s, %s, {value}, %s::text[], %s::text[])
"""

# The casts make a value of the wrong type an error. Without them, a bytea column would decode a str, and a text column
# would store the textual form of bytes, both without an error.
_TEXT = "%s::text"
_BYTES = "coalesce((NULL::{table}).kafka_value, %s::bytea)"

# atttypmod of a varchar column is its width plus 4; -1 means that the column has no limit.
_WIDTHS = """
SELECT max(CASE attname WHEN 'kafka_key' THEN nullif(atttypmod, -1) END) - 4,
       max(CASE attname WHEN 'kafka_value' THEN nullif(atttypmod, -1) END) - 4,
       bool_or(attname = 'kafka_value' AND atttypid = 'bytea'::regtype)
FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attname IN ('kafka_key', 'kafka_value') AND NOT attisdropped
  AND atttypid IN ('varchar'::regtype, 'text'::regtype, 'bytea'::regtype)
HAVING count(*) = 2
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """Limits of a table's columns, and whether the column of values is BYTEA. The defaults apply to the documented
    table."""

    limits: RecordLimits = field(default_factory=RecordLimits)
    takes_bytes: bool = False


_known: "WeakKeyDictionary[object, dict[str, _Columns]]" = WeakKeyDictionary()
"""The columns of each connection and table name. On another connection, the same name may mean another table, because
of the search path."""


def append(
    connection: "psycopg.Connection[Any] | sqlalchemy.Connection | sqlalchemy.orm.Session | Any",
    records: Iterable[OutboxRecord],
    *,
    table: str = "outbox",
    limits: RecordLimits | None = None,
) -> int:
    """Insert records into the outbox and return their number. Commits nothing: the caller ends the transaction.

    `connection` is a connection of psycopg, a Connection or Session of SQLAlchemy (over psycopg), or Django's
    `django.db.connection` (in a block of `transaction.atomic`). A Session is flushed first. Records get their ids in
    the order given. All records are checked before the first is inserted: after a RecordError, no record was written.
    Raises OutboxTableError if values are str and the column is BYTEA, or values are bytes and the column is text; a
    dict or a list becomes JSON, which fits both types. Raises DatabaseAccessDenied if the role may not insert the
    records. All other errors, such as a serialization failure, a timeout or a lost connection, are raised by psycopg,
    SQLAlchemy or Django as for any statement.

    The columns of the table limit the length of keys and values, unless the caller gives `limits`. The widths of the
    columns are read once for each connection, and again before a record is refused as too long.

    If OpenTelemetry has a current span, records without the headers `traceparent` and `tracestate` get both headers
    from the span's context.
    """
    records, way = list(records), way_of(connection)
    if not records:
        return 0
    with _explained(table, records):
        columns = _known_columns(way.driver, table) or (_look_up(way, table) if _asks(records, limits) else _Columns())
        try:
            values = _checked(records, limits, columns)
        except RecordError:
            if limits is not None:
                raise
            values = _checked(records, limits, _look_up(way, table))  # a column may be wider by now
        way.insert(_statement(table, values), values)
    return len(values)


async def append_async(
    connection: "psycopg.AsyncConnection[Any] | asyncpg.Connection[Any] | sqlalchemy.ext.asyncio.AsyncConnection | "
    "sqlalchemy.ext.asyncio.AsyncSession",
    records: Iterable[OutboxRecord],
    *,
    table: str = "outbox",
    limits: RecordLimits | None = None,
) -> int:
    """Do the same as `append` on an async connection: a connection of psycopg, a connection of asyncpg in a
    transaction, or an AsyncConnection or AsyncSession of SQLAlchemy over either driver."""
    records, way = list(records), await async_way_of(connection)
    if not records:
        return 0
    with _explained(table, records):
        columns = _known_columns(way.driver, table)
        if columns is None:
            columns = await _look_up_async(way, table) if _asks(records, limits) else _Columns()
        try:
            values = _checked(records, limits, columns)
        except RecordError:
            if limits is not None:
                raise
            values = _checked(records, limits, await _look_up_async(way, table))
        await way.insert(_statement(table, values), values)
    return len(values)


def _asks(records: Sequence[OutboxRecord], limits: RecordLimits | None) -> bool:
    """Return True if the table's columns must be looked up: for their widths, or to encode JSON for a BYTEA column."""
    return limits is None or any(isinstance(record.value, dict | list) for record in records)


def _known_columns(connection: object, table: str) -> _Columns | None:
    try:
        return _known.get(connection, {}).get(table)
    except TypeError:  # asyncpg's proxy of a pooled connection does not support weak references
        return None


def _look_up(way: Way, table: str) -> _Columns:
    return _remembered(way.driver, table, way.fetch(_WIDTHS, (str(OutboxTable.parse(table)),)))


async def _look_up_async(way: AsyncWay, table: str) -> _Columns:
    return _remembered(way.driver, table, await way.fetch(_WIDTHS, (str(OutboxTable.parse(table)),)))


def _remembered(connection: object, table: str, row: Sequence[Any] | None) -> _Columns:
    """Return the limits in a catalogue row, and remember them. If `row` is None, the catalogue lacks the table: return
    the documented limits."""
    if row is None:
        return _Columns()
    columns = _Columns(limits=RecordLimits(key_chars=row[0], value_chars=row[1]), takes_bytes=row[2])
    with suppress(TypeError):
        _known.setdefault(connection, {})[table] = columns
    return columns


def _checked(records: Iterable[OutboxRecord], limits: RecordLimits | None, columns: _Columns) -> Sequence[_Values]:
    values: list[_Values] = []
    traced = current_headers()
    for record in records:
        record.check(limits or columns.limits)
        headers, payload = record.header_pairs, record.payload
        if columns.takes_bytes and isinstance(record.value, dict | list) and isinstance(payload, str):
            payload = payload.encode()
        if traced and _TRACED.isdisjoint(name for name, _ in headers):
            headers += traced
        names, contents = [name for name, _ in headers], [content for _, content in headers]
        values.append((record.topic, record.key, payload, names, contents))
    if any(isinstance(value[2], bytes) for value in values) and any(isinstance(value[2], str) for value in values):
        raise RecordError(
            "some values are text and some are bytes", next_step="give all of one type: that of the column kafka_value"
        )
    return values


def _statement(table: str, values: Sequence[_Values]) -> str:
    name = in_statement(OutboxTable.parse(table).identifier)
    value = _BYTES if any(isinstance(each[2], bytes) for each in values) else _TEXT
    return sql.SQL(_INSERT).format(table=name, value=sql.SQL(value).format(table=name)).as_string(None)


@contextmanager
def _explained(table: str, records: Sequence[OutboxRecord]) -> Iterator[None]:
    """Turn errors about the outbox's definition or grants into HarvestErrors. All other errors of the driver, of
    SQLAlchemy or of Django pass unchanged: the caller retries or handles them."""
    try:
        yield
    except Exception as error:
        found = postgres_error(error)
        ours = None if found is None else _ours(found, table, records)
        if ours is None:
            raise
        raise ours from error


def _ours(error: psycopg.Error, table: str, records: Sequence[OutboxRecord]) -> HarvestError | None:
    evidence = evidence_of(error)
    if isinstance(error, pg.DatatypeMismatch):
        return OutboxTableError(
            f"the values are of another type than the column kafka_value of {table}",
            evidence=evidence,
            next_step="give all values as bytes if the column is BYTEA (`harvest init --value-type`), else as str",
        )
    if isinstance(error, pg.UndefinedTable | pg.UndefinedColumn | pg.UndefinedFunction | pg.InvalidSchemaName):
        return OutboxTableError(
            f"the table {table} does not exist, or is not an outbox table",
            evidence=evidence,
            next_step="create it with `harvest init`, or name another: append(…, table=…)",
        )
    if not isinstance(error, pg.InsufficientPrivilege):
        return None
    if _POLICY in evidence or error.diag.source_function == "ExecWithCheckOptions":  # in the server's language
        topics = sorted({record.topic for record in records})
        return DatabaseAccessDenied(
            f"a policy of {table} refuses the records of this role",
            evidence=f"{evidence}; topics: {', '.join(topics[:_SHOWN_TOPICS])}",
            next_step="as the owner, run what `harvest grants postgres` prints with `--writer` for each role that "
            "writes, and `--allow ROLE=TOPIC` for each of its topics",
        )
    return DatabaseAccessDenied(
        f"this role may not write to {table}",
        evidence=evidence,
        next_step="as the owner, run what `harvest grants postgres` prints with `--writer` for each role that writes, "
        "and `--allow` for its topics where they are restricted",
    )
