"""The table of heartbeats of Dagster's runs, beside the outbox: its name and its creation.

`harvest init --dagster` creates it. `dagster_harvest.heartbeat` has the statements that use it.
"""

from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.outbox.table import OutboxTable

TABLE = "harvest_daemons"

_CREATE = """\
CREATE TABLE IF NOT EXISTS {table} (
  name          text NOT NULL,
  code_location text NOT NULL,
  slot          integer NOT NULL,
  run_id        text NOT NULL,
  generation    bigint NOT NULL,
  host          text NOT NULL,
  pid           integer NOT NULL,
  started_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  heartbeat_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  stopped_at    timestamptz,
  PRIMARY KEY (name, code_location, slot)
)"""

# Two concurrent CREATE TABLE IF NOT EXISTS can both find no table, and one of the two then fails.
_LOCK_DDL = "SELECT pg_advisory_xact_lock(hashtextextended('harvest_daemons ddl', 0))"


def daemons_table(outbox: OutboxTable) -> OutboxTable:
    """Return the name of the table, in the schema of the outbox."""
    return OutboxTable((*outbox.parts[:-1], TABLE))


def create_daemons_statement(outbox: OutboxTable) -> sql.Composed:
    """Return the statement that creates the table unless it exists."""
    return sql.SQL(_CREATE).format(table=daemons_table(outbox).identifier)


def create_daemons(connection: psycopg.Connection[Any], outbox: OutboxTable) -> None:
    """Create the table unless it exists. Raises psycopg's errors."""
    with connection.transaction():
        connection.execute(_LOCK_DDL)
        connection.execute(create_daemons_statement(outbox))
