"""The table of heartbeats, in the outbox's own database: a row per daemon, timed by Postgres's clock.

Promises
- A single run owns a row. While that run is alive, a second run cannot claim the row, unless the second run has a later
  generation. The supervisor gives a later generation to the successor of a dead run.
- A replaced run detects the replacement at its next heartbeat, however long its process was frozen.
- The row records an orderly stop of its run.

A row with the slot -1 belongs to the supervisor of a code location, and has the time of its last tick. If a location is
renamed or removed, its supervisor ticks no more, and the supervisor of another location ends its runs.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, LiteralString, Self

import psycopg
from psycopg import sql

from harvest_lib.errors import DatabaseAccessDenied, LifecycleError
from harvest_lib.grants.dagster import COMMANDS
from harvest_lib.grants.needed import using
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.daemons import create_daemons, daemons_table
from harvest_lib.postgres.translation import translated

_SUPERVISOR_SLOT = -1
_AWAY_SECONDS = 300.0
"""A supervisor without a tick for this time is gone. Dagster may tick late if many sensors share a thread."""

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

# A location without a row of its supervisor is left alone: the supervisor may be about to tick for the first time.
_ABANDONED = """
SELECT run.run_id FROM {table} AS run JOIN {table} AS supervisor USING (name, code_location)
WHERE name = %(name)s AND code_location <> %(location)s AND run.slot >= 0 AND supervisor.slot = %(slot)s
  AND run.stopped_at IS NULL AND run.heartbeat_at > clock_timestamp() - make_interval(secs => %(stale)s)
  AND supervisor.heartbeat_at < clock_timestamp() - make_interval(secs => %(away)s)
ORDER BY run.run_id
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

    def __init__(self, connection: psycopg.Connection[Any], outbox: OutboxTable) -> None:
        self._connection = connection
        self._outbox = outbox
        self._table = daemons_table(outbox).identifier

    @classmethod
    def beside(cls, connection: psycopg.Connection[Any], outbox: OutboxTable) -> Self:
        """Return the table in the schema of the outbox."""
        return cls(connection, outbox)

    def create(self) -> None:
        """Create the table unless it exists. Raises DatabaseAccessDenied, with the commands for the owner."""
        if not self._exists():
            with self._made():
                create_daemons(self._connection, self._outbox)

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

    def supervise(self, name: str, location: str, *, stale_after_seconds: float) -> list[str]:
        """Record a tick of the supervisor of a code location. Return the ids of runs of the same daemon that live in
        locations whose supervisor is gone."""
        if not self._exists():
            return []
        place = HeartbeatPlace(name=name, location=location, slot=_SUPERVISOR_SLOT)
        before = self.read(place)
        self.claim(place, run_id="supervisor", generation=None, stale_after_seconds=stale_after_seconds)
        if before is not None and before.age_seconds >= _AWAY_SECONDS:
            return []  # no supervisor has ticked meanwhile, such as while Dagster's daemon was down
        values = {**place.values(), "stale": stale_after_seconds, "away": _AWAY_SECONDS}
        with self._used():
            return [row[0] for row in self._connection.execute(self._fill(_ABANDONED), values)]

    def _used(self) -> AbstractContextManager[None]:
        return using(self._connection, self._table, "SELECT, INSERT, UPDATE")

    @contextmanager
    def _made(self) -> Iterator[None]:
        try:
            with translated():
                yield
        except DatabaseAccessDenied as error:
            raise DatabaseAccessDenied(
                f"the user {self._connection.info.user!r} may not make the table {daemons_table(self._outbox)}",
                evidence=error.evidence,
                next_step=COMMANDS,
            ) from error

    def _exists(self) -> bool:
        with self._made():  # a role without rights to the schema cannot see the table
            name = self._table.as_string(self._connection)
            row = self._connection.execute("SELECT to_regclass(%s) IS NOT NULL", (name,)).fetchone()
        return row is not None and bool(row[0])

    def _fill(self, statement: LiteralString) -> sql.Composed:
        return sql.SQL(statement).format(table=self._table)
