"""Parked records."""

from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.outbox.table import OutboxTable

_CREATE = """
CREATE TABLE IF NOT EXISTS {parked} (
  id          BIGINT PRIMARY KEY,
  kafka_topic TEXT NOT NULL,
  kafka_key   TEXT NOT NULL,
  reason      TEXT NOT NULL,
  held        BOOLEAN NOT NULL,
  parked_at   TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
  record      JSONB NOT NULL
)"""


class ParkedRecords:
    """Parked records of an outbox."""

    def __init__(self, table: OutboxTable) -> None:
        self._table = table.parked

    def create(self, connection: psycopg.Connection[Any]) -> None:
        """Create the table unless it is there."""
        connection.execute(sql.SQL(_CREATE).format(parked=self._table.identifier))
