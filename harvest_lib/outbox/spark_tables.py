"""The tables of writers by Spark: a ledger for each table that they fill, and a schema for their staging tables.

`harvest init --spark` creates ledgers and schema, so that a writer's role needs no right to create tables beside the
outbox. Without the schema a writer creates its staging tables beside the table that it fills. `harvest_lib.spark` has
the statements that use them.
"""

from collections.abc import Sequence
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from harvest_lib.outbox.table import OutboxTable

STAGING_SCHEMA = "harvest_spark"
"""The schema of staging tables. A writer's role may create tables there, and owns those that it creates."""

CREATE_LEDGER: LiteralString = """
CREATE TABLE IF NOT EXISTS {ledger} (
    batch           text PRIMARY KEY,
    rows            bigint NOT NULL,
    content_hash    text NOT NULL,
    run             text NOT NULL,
    promoted_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    staging_seconds double precision NOT NULL,
    promote_seconds double precision NOT NULL
)
"""

_CREATE_SCHEMA = sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(STAGING_SCHEMA))

# Two concurrent CREATE TABLE IF NOT EXISTS can both find no table, and one of the two then fails.
LOCK_DDL = "SELECT pg_advisory_xact_lock(hashtextextended('harvest_lib.spark ddl', 0))"


def spark_statements(tables: Sequence[OutboxTable]) -> list[sql.Composed]:
    """Return the statements that create the schema, and the ledgers of the tables, unless they exist."""
    return [_CREATE_SCHEMA, *(sql.SQL(CREATE_LEDGER.strip()).format(ledger=each.batches.identifier) for each in tables)]


def create_spark_tables(connection: psycopg.Connection[Any], tables: Sequence[OutboxTable]) -> None:
    """Create the schema, and the ledgers of the tables, unless they exist. Raises psycopg's errors."""
    with connection.transaction():
        connection.execute(LOCK_DDL)
        exists = connection.execute("SELECT to_regnamespace(%s) IS NOT NULL", (STAGING_SCHEMA,)).fetchone()
        schema, *ledgers = spark_statements(tables)
        if exists != (True,):  # Postgres asks for the right to create a schema even if the schema exists
            connection.execute(schema)
        for ledger in ledgers:
            connection.execute(ledger)
