"""The table of heartbeats, in the outbox's own database: a row per daemon, timed by Postgres's clock.

Promises
- A single run owns a row. While that run is alive, a second run cannot claim the row, unless the second run has a later
  generation. The supervisor gives a later generation to the successor of a dead run.
- A replaced run detects the replacement at its next heartbeat, however long its process was frozen.
- The row records an orderly stop of its run.
"""

import os
import socket
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, LiteralString, Self

import psycopg
from psycopg import sql

from harvest_lib.errors import LifecycleError
from harvest_lib.grants.needed import creating, using
from harvest_lib.outbox import OutboxTable

TABLE = "harvest_daemons"

_CREATE = """
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

_CLAIM = """
INSERT INTO {table} AS daemon (name, code_location, slot, run_id, generation, host, pid)
VALUES (%(name)s, %(location)s, %(slot)s, %(run_id)s, coalesce(%(generation)s, 1), %(host)s, %(pid)s)
ON CONFLICT (name, code_location, slot) DO UPDATE SET
  run_id = excluded.run_id, generation = coalesce(%(generation)s, daemon.generation + 1), host = excluded.host,
  pid = excluded.pid, started_at = clock_timestamp(), heartbeat_at = clock_timestamp(), stopped_at = NULL
WHERE daemon.generation < %(generation)s
   OR daemon.run_id = excluded.run_id
   OR (coalesce(%(generation)s >= daemon.generation, true) AND (daemon.stopped_at IS NOT NULL
       OR daemon.heartbeat_at < clock_timestamp() - make_interval(secs => %(stale)s)))
RETURNING generation
"""

_RENEW = """
UPDATE {table} SET heartbeat_at = clock_timestamp()
WHERE name = %(name)s AND code_location = %(location)s AND slot = %(slot)s AND run_id = %(run_id)s
"""

_STOP = """
UPDATE {table} SET stopped_at = clock_timestamp()
WHERE name = %(name)s AND code_location = %(location)s AND slot = %(slot)s AND run_id = %(run_id)s
"""

_READ = """
SELECT run_id, generation, host, pid, extract(epoch FROM clock_timestamp() - heartbeat_at)::float8,
       stopped_at IS NOT NULL
FROM {table} WHERE name = %(name)s AND code_location = %(location)s AND slot = %(slot)s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatPlace:
    """The key of a row: the daemon's name, its code location, and the number of the run among the location's runs."""

    name: str
    location: str
    slot: int = 0

    def values(self) -> dict[str, Any]:
        return {"name": self.name, "location": self.location, "slot": self.slot}


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The last heartbeat of a run. Ages are in seconds, by Postgres's clock."""

    run_id: str
    generation: int
    host: str
    pid: int
    age_seconds: float
    is_stopped: bool


class HeartbeatTable:
    """The table of heartbeats, on an autocommit connection of the caller. All methods raise DatabaseError."""

    def __init__(self, connection: psycopg.Connection[Any], table: sql.Identifier) -> None:
        self._connection = connection
        self._table = table

    @classmethod
    def beside(cls, connection: psycopg.Connection[Any], outbox: OutboxTable) -> Self:
        """Return the table in the schema of the outbox."""
        return cls(connection, OutboxTable((*outbox.parts[:-1], TABLE)).identifier)

    def create(self) -> None:
        """Create the table unless it exists."""
        if self._exists():
            return
        with self._made(), self._connection.transaction():
            self._connection.execute(_LOCK_DDL)
            self._connection.execute(self._fill(_CREATE))

    def claim(self, place: HeartbeatPlace, *, run_id: str, generation: int | None, stale_after_seconds: float) -> int:
        """Claim the row for a run, and return the run's generation. Without `generation` the run gets the next number.

        Raises LifecycleError if another living run has the row.
        """
        values = {
            **place.values(),
            "run_id": run_id,
            "generation": generation,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "stale": stale_after_seconds,
        }
        with self._used():
            row = self._connection.execute(self._fill(_CLAIM), values).fetchone()
        if row is not None:
            return int(row[0])
        other = self.read(place)
        raise LifecycleError(
            f"another run harvests {place.name!r} in the code location {place.location!r} already",
            evidence=f"run {other.run_id}, generation {other.generation}, on {other.host}, sent a heartbeat "
            f"{other.age_seconds:.1f} s ago"
            if other is not None
            else "its row was taken meanwhile",
            next_step="leave the starting to the supervisor, or terminate the other run first",
        )

    def renew(self, place: HeartbeatPlace, run_id: str) -> bool:
        """Record a heartbeat; return True if the row still belongs to the run."""
        with self._used():
            return self._connection.execute(self._fill(_RENEW), {**place.values(), "run_id": run_id}).rowcount == 1

    def stop(self, place: HeartbeatPlace, run_id: str) -> None:
        """Record that a run has stopped in order."""
        with self._used():
            self._connection.execute(self._fill(_STOP), {**place.values(), "run_id": run_id})

    def read(self, place: HeartbeatPlace) -> Heartbeat | None:
        """Return the last heartbeat in the row, None if no run has ever claimed the row."""
        if not self._exists():
            return None
        with self._used():
            row = self._connection.execute(self._fill(_READ), place.values()).fetchone()
        if row is None:
            return None
        run_id, generation, host, pid, age, is_stopped = row
        return Heartbeat(
            run_id=run_id,
            generation=generation,
            host=host,
            pid=pid,
            age_seconds=max(0.0, age),
            is_stopped=is_stopped,
        )

    def _used(self) -> AbstractContextManager[None]:
        return using(self._connection, self._table, "SELECT, INSERT, UPDATE")

    def _made(self) -> AbstractContextManager[None]:
        return creating(self._connection, f"the table {TABLE}", self._table)

    def _exists(self) -> bool:
        with self._made():  # a role without rights to the schema cannot see the table
            name = self._table.as_string(self._connection)
            row = self._connection.execute("SELECT to_regclass(%s) IS NOT NULL", (name,)).fetchone()
        return row is not None and bool(row[0])

    def _fill(self, statement: LiteralString) -> sql.Composed:
        return sql.SQL(statement).format(table=self._table)
