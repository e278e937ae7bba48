"""The session in Postgres that takes a pool's lock, proves that it holds the lock, and releases the lock.

Four advisory locks in the session's database belong to a group:
- *lead*: held by the session that leads or is about to lead; the server releases it when the session ends in any way;
- *left*: held for a moment by a session that has just released *lead* in order;
- *stand*: shared by all sessions that hold or want *lead*, so that the holder knows whether another session wants it;
- *group*: shared by the same sessions, so that sessions in the server's other databases detect them.

The keys of the first three locks are made of the group and the outbox, so that two outboxes in the same database do not
wait for each other. The key of *group* is made of the group alone, and is the same in every database.

A session takes *left* only while it holds *lead*. The server releases *left* by itself, because the process that leaves
may be frozen or dead.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.errors import DatabaseUnavailable
from harvest_lib.leadership.last_leaders import LastLeaders, SubscriptionRows
from harvest_lib.postgres.database import connect
from harvest_lib.postgres.translation import translated

_SET = """
SELECT set_config('application_name', 'harvest leadership', false),
       set_config('idle_session_timeout', %(idle)s, false),
       set_config('statement_timeout', '0', false)
"""

_TRY = "SELECT pg_try_advisory_lock(%(lead)s)"
_STAND = "SELECT pg_try_advisory_lock_shared(%(stand)s), pg_try_advisory_lock_shared(%(group)s)"

_TABLE = "SELECT to_regclass(%s)::oid::bigint"

# `pg_locks` shows a bigint key in two halves.
_LOOK = """
SELECT coalesce(bool_or(is_ours AND key = %(lead)s AND pid = pg_backend_pid()), false) AS held,
       coalesce(bool_or(is_ours AND key = %(left)s), false) AS left_in_order,
       coalesce(bool_or(is_ours AND key = %(stand)s AND pid <> pg_backend_pid()), false) AS others_stand,
       coalesce(to_regclass(%(outbox)s)::oid::bigint <> %(table)s, false) AS is_another,
       coalesce(string_agg(DISTINCT datname, ', ') FILTER (WHERE key = %(group)s AND NOT is_ours), '') AS elsewhere
FROM (
  SELECT pid, datname, datname = current_database() AS is_ours, classid::bigint << 32 | objid::bigint AS key
  FROM pg_locks JOIN pg_database AS d ON d.oid = database
  WHERE locktype = 'advisory' AND granted AND objsubid = 1
) AS advisory
"""

# The statements are a single message, hence a single transaction: the server completes it even if this process dies.
_LEAVE = """
SELECT pg_advisory_xact_lock({left});
SELECT pg_advisory_unlock({lead});
SELECT pg_sleep({seconds})
"""


_HOLDER = """
SELECT 'backend ' || a.pid || coalesce('@' || host(a.client_addr), '')
FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.mode = 'ExclusiveLock'
  AND l.classid::bigint << 32 | l.objid::bigint = %(lead)s
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockObservation:
    """The server's answer about the lock."""

    held: bool
    """True if this session holds the lock."""
    left_in_order: bool
    """True while a session that has just released the lock in order still holds *left*."""
    others_stand: bool = False
    """True if another session would take the lock if it were free."""
    elsewhere: str = ""
    """Names of the server's other databases in which sessions of the group stand for a lock."""


class LockSession:
    """A session on one connection. Each method raises DatabaseError if it fails. Then the lock is lost, or soon will be
    lost."""

    def __init__(self, conninfo: str, group: str, *, idle_timeout_seconds: float, outbox: str = "") -> None:
        """Connect. The server ends a session without a query for `idle_timeout_seconds`. `outbox` is the quoted name of
        the outbox table; empty for a lock of the group alone."""
        self._outbox = outbox
        self._connection: psycopg.Connection[tuple[object, ...]] = connect(conninfo)
        try:
            with translated():
                self._connection.execute(_SET, {"idle": f"{int(idle_timeout_seconds * 1000)}ms"})
            self._table = _table(self._connection, outbox)
            self._keys = lock_keys(group, self._table)
            with translated():
                self._connection.execute(_STAND, self._keys)
        except BaseException:
            self.close()
            raise

    def try_lock(self) -> bool:
        """Take the lock if no other session has it. Return True if this session has the lock now."""
        with translated():
            return self._connection.execute(_TRY, self._keys).fetchone() == (True,)

    def look(self) -> LockObservation:
        """Query whether this session holds the lock, and whether another session has just left in order."""
        with translated():
            values = {**self._keys, "outbox": self._outbox or None, "table": self._table}
            row = self._connection.execute(_LOOK, values).fetchone()
        held, left_in_order, others_stand, is_another, elsewhere = row or (False, False, False, False, "")
        # A table that replaced this outbox, as in `harvest migrate`, has another lock.
        return LockObservation(
            held=held is True and is_another is not True,
            left_in_order=left_in_order is True,
            others_stand=others_stand is True,
            elsewhere=str(elsewhere),
        )

    def last_leaders(self, rows: SubscriptionRows) -> LastLeaders:
        """Return the last leaders. Call this only while this session holds the lock, because every earlier holder has
        lost the lock then."""
        return rows.read(self._connection)

    def leave(self, seconds: float) -> None:
        """Release the lock, and hold *left* for `seconds` as the signal of an orderly release. Blocks for this time."""
        names = {name: sql.Literal(self._keys[name]) for name in ("lead", "left")}
        with translated():
            self._connection.execute(sql.SQL(_LEAVE).format(seconds=sql.Literal(seconds), **names))

    def close(self) -> None:
        """End the session. The server releases all of its locks."""
        self._connection.close()


def lock_holder(connection: psycopg.Connection[Any], group: str, outbox: str = "") -> str | None:
    """Return a text with the process id and the client address of the session that holds the group's lock of an outbox.
    Return None if no session holds the lock."""
    keys = lock_keys(group, _table(connection, outbox))
    with translated():
        row = connection.execute(_HOLDER, keys).fetchone()
    return None if row is None else str(row[0])


def lock_keys(group: str, table: int | None) -> dict[str, int]:
    """Return the keys of a group's four locks, for the outbox with the oid `table`: a dictionary from the lock's name
    to its key."""
    of = f"{group} {table}" if table is not None else group
    keys = {purpose: lock_key(purpose, of) for purpose in ("lead", "left", "stand")}
    return {**keys, "group": lock_key("group", group)}


def _table(connection: psycopg.Connection[Any], outbox: str) -> int | None:
    """Return the oid of the outbox; None if `outbox` is empty. Raises DatabaseUnavailable if the outbox is not
    visible."""
    if not outbox:
        return None
    with translated():
        row = connection.execute(_TABLE, (outbox,)).fetchone()
    if row is None or row[0] is None:
        raise DatabaseUnavailable(
            "the outbox is not visible, so no process can stand for its lock",
            evidence=f"there is no {outbox}, or it is in a schema that this role may not use",
            next_step="create it, or grant USAGE on its schema: it is asked again",
        )
    return int(row[0])


def lock_key(purpose: str, group: str) -> int:
    """Return the key of a group's lock: the first 64 bits of the SHA-256 of `harvest <purpose> <group>`, signed."""
    digest = hashlib.sha256(f"harvest {purpose} {group}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
