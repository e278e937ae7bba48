"""Moves of an outbox from another server to this server: the table `<outbox>_moves`, and the check for moved rows.

If a row was written on this server, its transaction_id is a transaction that began after the row's segment was created.
If a row came by a dump or by replication, its transaction_id is a transaction of the former server.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from harvest_lib.outbox.native_table import beside
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import translated

_CREATE = """
CREATE TABLE IF NOT EXISTS {moves} (
  moved_at           TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT clock_timestamp(),
  from_system        TEXT NOT NULL,
  to_system          TEXT NOT NULL,
  last_id            BIGINT,
  keeps_transactions BOOLEAN NOT NULL
)
"""

_ADD = """
INSERT INTO {moves} (from_system, to_system, last_id, keeps_transactions)
VALUES (%(from_system)s, %(to_system)s, %(last_id)s, %(keeps_transactions)s)
"""

_READ = "SELECT moved_at, from_system, to_system, last_id, keeps_transactions FROM {moves} ORDER BY moved_at"

# The catalog row of a system column is never changed, so its xmin is the transaction that created the table.
_SEGMENTS = """
SELECT c.oid::bigint, n.nspname, c.relname, pg_snapshot_xmax(pg_current_snapshot())::text::bigint
  - mod(mod(pg_snapshot_xmax(pg_current_snapshot())::text::numeric, 4294967296) - a.xmin::text::numeric + 4294967296,
        4294967296)::bigint AS made_in
FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attname = 'ctid'
WHERE i.inhparent = to_regclass(%s) ORDER BY c.oid
"""

_LOWEST = "SELECT transaction_id::text::bigint FROM ONLY {segment} ORDER BY transaction_id LIMIT 1"

_HIGHEST = """
SELECT transaction_id >= pg_snapshot_xmax(pg_current_snapshot()) FROM ONLY {segment}
ORDER BY transaction_id DESC LIMIT 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One move of the outbox to another server. Rows up to the id `last_id` were moved. `keeps_transactions`:
    transaction ids continue on the new server, as after pg_upgrade."""

    moved_at: datetime
    from_system: str
    to_system: str
    last_id: int | None
    keeps_transactions: bool


@dataclass(frozen=True, slots=True)
class Moves:
    """The moves of an outbox, stored in `<outbox>_moves`."""

    outbox: OutboxTable

    @property
    def table(self) -> OutboxTable:
        """The table that lists the moves."""
        return beside(self.outbox, "_moves")

    def read(self, connection: psycopg.Connection[Any]) -> list[Move]:
        """Return the moves, the earliest first; an empty list if the table does not exist."""
        if not self.table.exists(connection):
            return []
        with translated(), connection.cursor(row_factory=class_row(Move)) as cursor:
            return cursor.execute(sql.SQL(_READ).format(moves=self.table.identifier)).fetchall()

    def add(self, connection: psycopg.Connection[Any], **move: Any) -> None:
        """Store a move, in the caller's transaction. Creates the table if it does not exist."""
        names = {"moves": in_statement(self.table.identifier)}
        connection.execute(sql.SQL(_CREATE).format(**names))
        connection.execute(sql.SQL(_ADD).format(**names), move)

    def has_foreign_rows(self, connection: psycopg.Connection[Any]) -> bool:
        """Return True if a row's transaction_id is older than the row's segment, or not assigned yet on this server."""
        with translated():
            segments = connection.execute(_SEGMENTS, (str(self.outbox),)).fetchall()
            for _, schema, name, made_in in segments:
                names = {"segment": sql.Identifier(schema, name)}
                lowest = connection.execute(sql.SQL(_LOWEST).format(**names)).fetchone()
                if lowest is not None and lowest[0] < made_in:
                    return True
                highest = connection.execute(sql.SQL(_HIGHEST).format(**names)).fetchone()
                if highest is not None and highest[0]:
                    return True
        return False
