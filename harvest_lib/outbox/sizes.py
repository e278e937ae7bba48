"""Disk usage of an outbox and of its database, measured by file sizes: no row is read.

SQL cannot report the free space of the disk. To get a warning, configure a limit for the size of the database:
`databaseLimitBytes`.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg

from harvest_lib.errors import DatabaseAccessDenied, DatabaseUnavailable
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.postgres.translation import translated

# pg_partition_tree returns no row for a table without partitions.
_OUTBOX = """
SELECT coalesce(
  (SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree(%(table)s::regclass)),
  pg_total_relation_size(%(table)s::regclass)
)::bigint
"""

_DATABASE = "SELECT pg_database_size(current_database())"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes in bytes, indexes included: `outbox` of all segments, `database` of the whole database. `database` is None
    if this role may not read it, or if the query takes too long."""

    outbox: int
    database: int | None


def read_sizes(connection: psycopg.Connection[Any], outbox: OutboxTable) -> Sizes:
    """Return the current sizes. `outbox` must include its schema."""
    with translated():
        found = connection.execute(_OUTBOX, {"table": str(outbox)}).fetchone()
    database = None
    with suppress(DatabaseAccessDenied, DatabaseUnavailable), translated():  # DatabaseUnavailable: a timeout
        row = connection.execute(_DATABASE).fetchone()
        database = row[0] if row is not None else None
    return Sizes(outbox=found[0] or 0 if found is not None else 0, database=database)
