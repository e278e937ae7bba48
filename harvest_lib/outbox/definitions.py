"""Checks of an existing table: it must have its current name, and the columns of its CREATE TABLE statement."""

import re
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.errors import OutboxTableError
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.postgres.translation import translated

_COLUMN = re.compile(r"^  ([a-z_]+) +([A-Z].*?),?$", re.MULTILINE)

_FORMER = {"low_watermark": "seen", "retention_hold": "holds"}
"""Former name of each renamed column. The proposed remedy renames the column, which preserves its values."""

_THERE = """
SELECT attname::text, attnotnull FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
"""


def check_name(connection: psycopg.Connection[Any], table: OutboxTable, former: OutboxTable) -> None:
    """Raise OutboxTableError if `table` does not exist, but exists under its former name `former`."""
    if former.exists(connection) and not table.exists(connection):
        names = former.identifier.as_string(None), sql.Identifier(table.parts[-1]).as_string(None)
        raise OutboxTableError(
            f"the table {former} has its former name",
            evidence=f"its name is now {table}, and this table does not exist",
            next_step=f"stop its harvesters, and as the owner: ALTER TABLE {names[0]} RENAME TO {names[1]}; then start "
            "the harvesters of this version",
        )


def check_columns(connection: psycopg.Connection[Any], table: OutboxTable, create: str) -> None:
    """Raise OutboxTableError if a table lacks a column of the statement `create`, or allows nulls in a column that is
    NOT NULL in `create`. Does nothing if the table does not exist."""
    with translated():
        there = dict(connection.execute(_THERE, (str(table),)).fetchall())
    name = table.identifier.as_string(None)
    wrong, changes, statements = [], [], []
    for column, definition in _COLUMN.findall(create) if there else ():
        if column not in there and _FORMER.get(column) in there:
            wrong.append(f"{column} has its former name {_FORMER[column]}")
            statements.append(f"ALTER TABLE {name} RENAME COLUMN {_FORMER[column]} TO {column}")
        elif column not in there:
            wrong.append(f"{column} is missing")
            changes.append(f"ADD COLUMN {column} {definition}")
        elif "NOT NULL" in definition and not there[column]:
            wrong.append(f"{column} allows nulls")
            changes.append(f"ALTER COLUMN {column} SET NOT NULL")
    if changes:
        statements.append(f"ALTER TABLE {name} {', '.join(changes)}")
    if wrong:
        raise OutboxTableError(
            f"the table {name} does not have the columns that `harvest init` gives it",
            evidence="; ".join(wrong),
            next_step=f"stop its harvesters, and as the owner: {'; '.join(statements)}; then run what "
            "`harvest grants postgres` prints. If Postgres refuses the change because rows lack a value: resolve the "
            "records that they list (`harvest park`) with the version that wrote them, or delete the rows",
        )
