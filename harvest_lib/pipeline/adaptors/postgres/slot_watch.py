"""The state of a replication slot: how much log the server retains for it, and how soon the server invalidates it.

Promises
- Postgres is queried only on demand and at most once a minute, over a separate connection that is closed after the
  query. So the state is known even while the reader waits for writers.
- The query reads one row of `pg_replication_slots`, which every role may read.
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
    """State of a slot. `status` is Postgres' `wal_status`: reserved, extended, unreserved or lost.

    `retained_bytes`: the size of the log that the server retains for the slot, None if the slot is lost. `safe_bytes`:
    how much the log may grow before the slot may be lost, None if there is no limit."""

    slot: str
    status: str
    retained_bytes: int | None
    safe_bytes: int | None


class SlotWatch:
    """Queries the state of a slot in the background. `conninfo` names its server."""

    def __init__(self, conninfo: str, slot: str) -> None:
        self._conninfo, self._slot = conninfo, slot
        self._answer: RareAnswer[SlotState | None] = RareAnswer(self._ask, None, name="harvest-slot")

    def seen(self) -> SlotState | None:
        """Return the last known state; None if there is no answer yet, or no such slot. Any thread may call it. It does
        not block."""
        return self._answer.seen()

    def _ask(self) -> SlotState | None:
        with closing(connect(self._conninfo)) as connection:
            found = catalog.rows_of(connection, "slots", _STATE, (self._slot,))
        if not found:
            return None
        ((status, safe, retained),) = found
        return SlotState(slot=self._slot, status=status or "lost", retained_bytes=retained, safe_bytes=safe)
