"""What tables hold, read under one snapshot."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.pipeline.adaptors.postgres_catalog import Table, refusals
from harvest_lib.pipeline.adaptors.postgres_values import reader_of
from harvest_lib.pipeline.message import Message, Mode, Op

_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_NOW = "SELECT (extract(epoch FROM now()) * 1000)::int8"
_XMAX = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8"
_ENDED = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::int8 >= %s"

_GRANT = "GRANT SELECT ON the table, and USAGE ON its SCHEMA, TO the user that the pipeline has"


def copied(
    connection: psycopg.Connection[Any], tables: Sequence[Table], *, snapshot: str | None, batch_rows: int
) -> Iterator[Sequence[Message]]:
    """Return all rows, table by table, each table's last message one that says COMPLETE, as of one snapshot: one that
    was exported, by its name, or the present one. The connection is in autocommit, and stays so."""
    with refusals("to copy", _GRANT):
        connection.execute("SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0")
        connection.execute(_BEGIN)
        if snapshot is not None:
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(snapshot))
        row = connection.execute(_NOW).fetchone()
        assert row is not None  # noqa: S101 - a SELECT without FROM has one row
        for table in tables:
            yield from _table(connection, table, row[0], batch_rows)
        connection.execute("COMMIT")


def settled(connection: psycopg.Connection[Any]) -> Callable[[], bool]:
    """Return what tells whether all transactions that are open now have ended.

    One that wrote before a table was published is not sent. Before a snapshot is taken for a slot that was there
    already, such have to be over, so that the snapshot sees what they did.
    """
    with refusals("to look at transactions", "check the user's grants"):
        row = connection.execute(_XMAX).fetchone()

    def have_ended() -> bool:
        with refusals("to look at transactions", "check the user's grants"):
            found = connection.execute(_ENDED, row).fetchone()
        return bool(found and found[0])

    return have_ended


def _table(
    connection: psycopg.Connection[Any], table: Table, timestamp: int, batch_rows: int
) -> Iterator[Sequence[Message]]:
    names = list(table.columns)
    readers = [reader_of(oid) for oid in table.columns.values()]
    statement = sql.SQL("COPY (SELECT {} FROM {}{}) TO STDOUT").format(
        sql.SQL(", ").join(map(sql.Identifier, names)),
        table.identifier,
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
