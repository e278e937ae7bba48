"""Contents of tables: all rows, read under one snapshot; and single values, as they are by now."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg import sql

from harvest_lib.database import lift_timeouts
from harvest_lib.errors import AdaptorError
from harvest_lib.pipeline.adaptors.postgres.catalog import Table, present, refusals, rows_of
from harvest_lib.pipeline.adaptors.postgres.values import reader_of
from harvest_lib.pipeline.message import Message, Mode, Op
from harvest_lib.sql_ascii import ESCAPED

_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_NOW = "SELECT (extract(epoch FROM now()) * 1000)::int8"
_XMAX = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8"
_ENDED = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::int8 >= %s"

_GRANT = (
    "GRANT SELECT ON the table, and USAGE ON its SCHEMA, TO the user that the pipeline has; where rows have policies, "
    "ALTER ROLE … BYPASSRLS"
)


def copied(
    connection: psycopg.Connection[Any], tables: Sequence[Table], *, snapshot: str | None, batch_rows: int
) -> Iterator[Sequence[Message]]:
    """Return all rows, table by table, each table's last message one that says COMPLETE, as of one snapshot: one that
    was exported, by its name, or the present one. The connection is in autocommit, and stays so."""
    with refusals("to copy", _GRANT):
        lift_timeouts(connection)
        connection.execute(_BEGIN)
        if snapshot is not None:
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(snapshot))
        row = connection.execute(_NOW).fetchone()
        assert row is not None  # noqa: S101 - a SELECT without FROM has one row
        for table in tables:
            yield from _table(connection, table, row[0], batch_rows)
        connection.execute("COMMIT")


def settled(connection: psycopg.Connection[Any]) -> Callable[[], bool]:
    """Return a function that returns True once all transactions that are open now have ended.

    One that wrote before a table was published is not sent. Before a snapshot is taken for a slot that was there
    already, such have to be over, so that the snapshot sees their changes.
    """
    (latest,) = rows_of(connection, "transactions", _XMAX)
    return lambda: rows_of(connection, "transactions", _ENDED, latest) == [(True,)]


def row_of(
    connection: psycopg.Connection[Any], table: Table, key: Mapping[str, str], columns: Sequence[str]
) -> Mapping[str, str | None] | None:
    """Return columns of the row with a key, as text, but dropped ones; None if there is no such row."""
    try:
        return _row(connection, table, key, columns)
    except AdaptorError as error:
        if not isinstance(error.__cause__, pg.UndefinedColumn):
            raise
    there = present(connection, table)
    left = [each for each in columns if each in there]
    return _row(connection, table, key, left) if left and there.issuperset(key) else {}


def _row(
    connection: psycopg.Connection[Any], table: Table, key: Mapping[str, str], columns: Sequence[str]
) -> Mapping[str, str | None] | None:
    statement = sql.SQL("SELECT {} FROM {} WHERE {}").format(
        sql.SQL(", ").join(map(sql.Identifier, columns)),
        table.rows,
        sql.SQL(" AND ").join(sql.SQL("{} = {}").format(sql.Identifier(name), value) for name, value in key.items()),
    )
    with refusals(f"to read what a change of {table.namespace} left out", _GRANT):
        found = connection.execute(statement).pgresult
    if found is None or found.ntuples == 0:
        return None
    # As it stands on the wire: text as changes have it.
    values = [found.get_value(0, place) for place in range(len(columns))]
    return {
        name: value.decode("utf-8", ESCAPED) if value is not None else None
        for name, value in zip(columns, values, strict=True)
    }


def _table(
    connection: psycopg.Connection[Any], table: Table, timestamp: int, batch_rows: int
) -> Iterator[Sequence[Message]]:
    names = list(table.columns)
    readers = [reader_of(oid) for oid in table.columns.values()]
    statement = sql.SQL("COPY (SELECT {} FROM {}{}) TO STDOUT").format(
        sql.SQL(", ").join(map(sql.Identifier, names)),
        table.rows,
        sql.SQL(f" WHERE {table.row_filter}" if table.row_filter else ""),
    )
    batch: list[Message] = []
    # By COPY, since that spells values as changes do.
    with refusals(f"to copy {table.namespace}", _GRANT), connection.cursor().copy(statement) as copy:
        for row in copy.rows():
            data = {
                name: read(value) if value is not None else None
                for name, read, value in zip(names, readers, row, strict=True)
            }
            batch.append(Message(Op.INSERT, timestamp, table.namespace, data, Mode.COPY))
            if len(batch) == batch_rows:
                yield batch
                batch = []
    yield [*batch, Message(Op.NOOP, timestamp, table.namespace, {}, Mode.COMPLETE)]
