"""The conversation with Postgres in which a pool's lock is taken, shown to be held, and let go.

Two advisory locks of the session's database stand for a group:
- *lead*: held by the session that leads or is about to; the server releases it when the session ends, however it ends;
- *left*: held for a moment by a session that has just let go of the other one in order.

Nobody can take *left* without holding *lead*, and the server lets go of it by itself: the leaver may be frozen or gone.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.database import connect, translated

_SET = """
SELECT set_config('application_name', 'harvest leadership', false),
       set_config('idle_session_timeout', %(idle)s, false),
       set_config('statement_timeout', '0', false)
"""

_TRY = "SELECT pg_try_advisory_lock(%(lead)s)"

# A bigint key is shown in two halves.
_LOOK = """
SELECT coalesce(bool_or(key = %(lead)s AND pid = pg_backend_pid()), false) AS held,
       coalesce(bool_or(key = %(left)s), false) AS left_in_order
FROM (
  SELECT pid, classid::bigint << 32 | objid::bigint AS key FROM pg_locks
  WHERE locktype = 'advisory' AND granted AND objsubid = 1
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
) AS advisory
"""

# One message, hence one transaction, which the server brings to its end whatever becomes of us.
_LEAVE = """
SELECT pg_advisory_xact_lock({left});
SELECT pg_advisory_unlock({lead});
SELECT pg_sleep({seconds})
"""


_HOLDER = """
SELECT 'backend ' || a.pid || coalesce('@' || host(a.client_addr), '')
FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.classid::bigint << 32 | l.objid::bigint = %(lead)s
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What the server said when it was asked."""

    held: bool
    """This session holds the lock."""
    left_in_order: bool
    """A session that has just let go in order says so still."""


class LockSession:
    """One connection. Every call raises DatabaseError when it fails; the lock is gone then, or will be."""

    def __init__(self, conninfo: str, group: str, *, idle_timeout_seconds: float) -> None:
        """Connect. A session that says nothing for `idle_timeout_seconds` is ended by the server."""
        self._keys = {"lead": lock_key("lead", group), "left": lock_key("left", group)}
        self._connection: psycopg.Connection[tuple[object, ...]] = connect(conninfo)
        try:
            with translated():
                self._connection.execute(_SET, {"idle": f"{int(idle_timeout_seconds * 1000)}ms"})
        except BaseException:
            self.close()
            raise

    def try_lock(self) -> bool:
        """Take the lock if nobody has it."""
        with translated():
            row = self._connection.execute(_TRY, self._keys).fetchone()
        return row == (True,)

    def look(self) -> Sight:
        """Ask whether this session holds the lock, and whether another has just left in order."""
        with translated():
            row = self._connection.execute(_LOOK, self._keys).fetchone()
        held, left_in_order = row or (False, False)
        return Sight(held=held is True, left_in_order=left_in_order is True)

    def leave(self, seconds: float) -> None:
        """Let go of the lock, and have the server say for `seconds` that it was in order. Returns when that is over."""
        keys = {name: sql.Literal(key) for name, key in self._keys.items()}
        with translated():
            self._connection.execute(sql.SQL(_LEAVE).format(seconds=sql.Literal(seconds), **keys))

    def close(self) -> None:
        """End the session, and with it whatever it holds."""
        self._connection.close()


def lock_holder(connection: psycopg.Connection[Any], group: str) -> str | None:
    """Return the session that holds the group's lock, by process id and client address, or None."""
    with translated():
        row = connection.execute(_HOLDER, {"lead": lock_key("lead", group)}).fetchone()
    return None if row is None else str(row[0])


def lock_key(purpose: str, group: str) -> int:
    """Return the key of a group's lock: the first 64 bits of the SHA-256 of `harvest <purpose> <group>`, signed."""
    digest = hashlib.sha256(f"harvest {purpose} {group}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
