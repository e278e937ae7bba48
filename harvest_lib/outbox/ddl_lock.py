"""The advisory lock for the creation of an outbox's tables: without it, concurrent CREATE … IF NOT EXISTS can fail.

Any role that may connect can hold the lock forever. So the lock is not taken if the tables exist, and the wait for the
lock is bounded. Callers check whether the tables exist before their transaction, and again under the lock.
"""

import time
from typing import Any

import psycopg

from harvest_lib.errors import DatabaseError

PATIENCE_SECONDS = 30.0
"""Longest wait for another session that creates tables."""

_PAUSE_SECONDS = 0.1

_TRY = "SELECT pg_try_advisory_xact_lock(hashtextextended('harvest ddl ' || %s, 0))"

# A session caches that a table name is missing. The session refreshes this cache when it locks a relation for the first
# time in a transaction, as it does to run this query.
_REFRESH = "SELECT FROM pg_class LIMIT 0"

_HOLDERS = """
SELECT 'pid ' || pid FROM pg_locks, hashtextextended('harvest ddl ' || %s, 0) AS wanted (key)
WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND classid::bigint << 32 | objid::bigint = wanted.key
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


def lock_ddl(connection: psycopg.Connection[Any], table: str) -> None:
    """Take the lock until the transaction ends: no other session creates tables of the outbox until then. Callers then
    check again which tables exist. Raises DatabaseError, which names the holder of the lock, after
    `PATIENCE_SECONDS`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while connection.execute(_TRY, (table,)).fetchone() != (True,):
        if time.monotonic() > deadline:
            holders = [row[0] for row in connection.execute(_HOLDERS, (table,)).fetchall()]
            raise DatabaseError(
                f"another command is creating tables beside {table}",
                evidence=f"{', '.join(holders) or 'it'} has gone on for {PATIENCE_SECONDS:g} s "
                "(pg_locks, locktype advisory)",
                next_step="let it finish, or end its session (pg_terminate_backend), then run this again",
            )
        time.sleep(_PAUSE_SECONDS)
    connection.execute(_REFRESH)
