"""Changes of a table in use. A change's lock blocks all other sessions, so it is requested and held only briefly.

Promise: if a change waits for its lock, a writer waits behind it for at most `lock_timeout`. Between two attempts of
the change, all waiting sessions continue.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import psycopg
from psycopg import sql

from harvest_lib.errors import DatabaseError
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.postgres.translation import translated

LOCK_TIMEOUT_SECONDS = 0.2
PATIENCE_SECONDS = 60.0
"""Longest time for which a change is attempted again before it fails."""

_PAUSE_SECONDS = 0.5
_SHOWN = 5

_HOLDERS = """
SELECT coalesce('pid ' || l.pid || coalesce(' (' || a.state || ')', ''), 'a prepared transaction')
FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.granted AND l.relation = to_regclass(%(table)s)
  AND l.pid IS DISTINCT FROM pg_backend_pid()
GROUP BY 1 ORDER BY min(a.xact_start) NULLS FIRST
"""
"""Query for the sessions that hold a lock on the table. The oldest transaction, the likely obstacle, comes first."""

_SNAPSHOTS = """
SELECT 'pid ' || pid || coalesce(' (' || state || ')', '') || ', by its snapshot' FROM pg_stat_activity
WHERE backend_xmin IS NOT NULL AND datname = current_database() AND pid <> pg_backend_pid()
ORDER BY xact_start NULLS FIRST
"""

# This function does not wait: a statement that waited would keep its snapshot, and CREATE INDEX CONCURRENTLY would wait
# for that snapshot.
_TRY_ALONE = "SELECT pg_try_advisory_lock(hashtextextended('harvest changes ' || %s, 0))"

_NOT_ALONE = "SELECT pg_advisory_unlock(hashtextextended('harvest changes ' || %s, 0))"

Result = TypeVar("Result")


@contextmanager
def exclusively(
    connection: psycopg.Connection[Any], table: OutboxTable, patience_seconds: float = PATIENCE_SECONDS
) -> Iterator[None]:
    """Prevent other commands from changing the segments of this table. Calls of the same session may be nested.

    Raises DatabaseError if another command is still changing the segments after `patience_seconds`.
    """
    deadline, name = time.monotonic() + patience_seconds, (str(table),)
    with translated():
        while connection.execute(_TRY_ALONE, name).fetchone() != (True,):
            if time.monotonic() > deadline:
                raise DatabaseError(
                    f"another command is changing {table}",
                    evidence=f"it has gone on for {patience_seconds:g} s (pg_locks, locktype advisory)",
                    next_step="let it finish, then run this one again",
                )
            time.sleep(_PAUSE_SECONDS)
    try:
        yield
    finally:
        with suppress(psycopg.Error):  # the lock of a closed session is gone too
            connection.execute(_NOT_ALONE, name)


def with_short_locks(
    connection: psycopg.Connection[Any],
    table: OutboxTable,
    change: Callable[[], Result],
    *,
    patience_seconds: float = PATIENCE_SECONDS,
    in_transaction: bool = True,
    waits_for_snapshots: bool = False,
) -> Result:
    """Run a change in a transaction, and repeat it until it gets its locks within the lock timeout.

    The change must allow a repetition from the start after a lock was refused. After `patience_seconds`, raises a
    DatabaseError that names the sessions with a lock on the table and, if `waits_for_snapshots`, the sessions with a
    snapshot.
    """
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            with translated():
                return _attempt(connection, change, in_transaction=in_transaction)
        except DatabaseError as error:
            if not isinstance(error.__cause__, psycopg.errors.LockNotAvailable | psycopg.errors.DeadlockDetected):
                raise
            if time.monotonic() > deadline:
                found = [_HOLDERS, _SNAPSHOTS] if waits_for_snapshots else [_HOLDERS]
                raise _refused(connection, table, patience_seconds, found) from error
        time.sleep(_PAUSE_SECONDS * (0.5 + random.random()))  # noqa: S311 - keeps two commands apart


def _attempt(connection: psycopg.Connection[Any], change: Callable[[], Result], *, in_transaction: bool) -> Result:
    timeout = sql.SQL("SET {} lock_timeout = {}")
    seconds = sql.Literal(f"{int(LOCK_TIMEOUT_SECONDS * 1000)}ms")
    if in_transaction:
        with connection.transaction():
            connection.execute(timeout.format(sql.SQL("LOCAL"), seconds))
            return change()
    connection.execute(timeout.format(sql.SQL("SESSION"), seconds))
    try:
        return change()
    finally:
        if not connection.closed:
            connection.execute("RESET lock_timeout")


def _refused(
    connection: psycopg.Connection[Any], table: OutboxTable, patience_seconds: float, queries: Sequence[str]
) -> DatabaseError:
    with translated():
        found = [connection.execute(each, {"table": str(table)}).fetchall() for each in queries]
    holders = [name for rows in found for (name,) in rows]
    kinds, unknown = "a lock on it", "several sessions in turn"
    if len(queries) > 1:
        kinds += ", or an older snapshot that may read it"
        unknown += ", or by sessions that a role without pg_read_all_stats does not see"
    return DatabaseError(
        f"{table} could not be changed within {patience_seconds:g} s: there was always {kinds}",
        evidence=f"held by {', '.join(holders[:_SHOWN]) or unknown}",
        next_step="end the transactions that have been open for long (pg_stat_activity, pg_prepared_xacts) and run the "
        "command again: it goes on from here",
    )
