"""The state of a replication slot: the log that the server keeps for it, and how soon it gives the slot up.

Promises
- Postgres is queried only on demand, once a minute at most, over a connection that is closed again: however
  long the reader waits for writers, the state is known.
- One row of `pg_replication_slots` is read, which every role may read.
"""

from contextlib import closing
from dataclasses import dataclass

from harvest_lib.pipeline.adaptors.postgres import catalog
from harvest_lib.postgres.database import connect
from harvest_lib.telemetry.rare_answer import RareAnswer

_STATE = """
SELECT wal_status, safe_wal_size, pg_wal_lsn_diff(pg_current_wal_insert_lsn(), restart_lsn)::bigint
FROM pg_replication_slots WHERE slot_name = %s AND NOT pg_is_in_recovery()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """One slot. `status` is Postgres' `wal_status`: reserved, extended, unreserved or lost. `retained_bytes` of its log
    are kept for the slot, None once it is lost; it may be lost after `safe_bytes` more: None without such a limit."""

    slot: str
    status: str
    retained_bytes: int | None
    safe_bytes: int | None


class SlotWatch:
    """Watches one slot of the server in a connection string."""

    def __init__(self, conninfo: str, slot: str) -> None:
        self._conninfo, self._slot = conninfo, slot
        self._answer: RareAnswer[SlotState | None] = RareAnswer(self._ask, None, name="harvest-slot")

    def seen(self) -> SlotState | None:
        """Return the last answer, None without an answer or a slot. For any thread; does not wait."""
        return self._answer.seen()

    def _ask(self) -> SlotState | None:
        with closing(connect(self._conninfo)) as connection:
            found = catalog.rows_of(connection, "slots", _STATE, (self._slot,))
        if not found:
            return None
        ((status, safe, retained),) = found
        return SlotState(slot=self._slot, status=status or "lost", retained_bytes=retained, safe_bytes=safe)
