"""Detects two pools on the same subscription, or two subscriptions in the same election, and reports the conflict on
both sides, before one pool deposes the other or waits for ever.  A leader writes its identity beside its epoch (column
`leader` of `<outbox>_subscriptions`). A process that is about to lead reads that identity. If it belongs to a living
leader of another pool, the process writes its own name into the row and does not begin. The leader finds that name at
its next check of the row.  A leader counts as alive while its connection for checkpoints is open and was used lately. A
living leader queries every second, but connections of a lost machine stay open for hours.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from harvest_lib.errors import DatabaseAccessDenied
from harvest_lib.leadership.pool import ConflictLog, Pool, conflict_on_outbox
from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import translated

_LEADERS = """
SELECT s.subscription, s.shard, s.leader_id::text, s.leader FROM {table} AS s
WHERE (s.subscription <> %(subscription)s OR s.shard = coalesce(%(shard)s, s.shard))
  AND s.leader ->> 'leader_id' = s.leader_id::text
  AND EXISTS (
    SELECT FROM pg_stat_activity AS a
    WHERE a.application_name = 'harvest leader ' || s.leader_id AND (
      a.state_change IS NULL OR a.state = 'active'
      OR a.state_change > clock_timestamp() - %(stale)s * interval '1 second'
    )
  )
"""

# The facts about topics stay: see `harvest_lib.harvester.housekeeping.added_partitions`.
_ANNOUNCE = """
UPDATE {table} SET leader = %(leader)s
  || CASE WHEN leader ? 'topics' THEN jsonb_build_object('topics', leader -> 'topics') ELSE '{{}}' END
WHERE subscription = %(subscription)s AND shard = %(shard)s
"""

_TELL = """
UPDATE {table} SET leader = jsonb_set(leader, '{{rival}}', %(rival)s || jsonb_build_object('at', clock_timestamp()))
WHERE subscription = %(theirs)s AND shard = %(shard)s AND leader_id = %(leader_id)s
"""

_LOOKS_EVERY_SECONDS = 1.0


class Rivals:
    """Detects other pools on the outbox of `pool`, which harvests `subscription`. One thread at a time may use it.

    `table` is the table of subscriptions. A leader that was silent for `stale_seconds` does not count as alive.
    """

    def __init__(self, pool: Pool, table: sql.Identifier, subscription: str, *, stale_seconds: float) -> None:
        self._pool = pool
        self._subscription = subscription
        self._table = table
        self._stale_seconds = stale_seconds + _LOOKS_EVERY_SECONDS
        self._conflicts = ConflictLog()

    def refuse(self, connection: psycopg.Connection[Any], shard: int | None = None, *, tell: bool = True) -> None:
        """Raise PoolConflict if a living leader of another pool has the shard (by default any shard), or if a leader of
        this election has another subscription. If `tell` is true, notify that leader first. A leader of this pool with
        another delivery is only notified and logged."""
        for subscription, led, leader_id, theirs in self._leaders(connection, shard):
            conflict = conflict_on_outbox(self._pool, theirs)
            if conflict is None:
                continue
            if tell:
                rival = Jsonb(self._pool.as_json())
                values = {"theirs": subscription, "shard": led, "leader_id": leader_id, "rival": rival}
                with suppress(DatabaseAccessDenied), translated():
                    self._execute(connection, _TELL, values)
            if subscription != self._subscription or not theirs.is_one_election(self._pool):
                raise conflict
            self._conflicts.log(conflict)

    def _leaders(self, connection: psycopg.Connection[Any], shard: int | None) -> list[tuple[str, int, str, Pool]]:
        """Return the shards that have a living leader with a known pool: subscription, shard, leader id and pool."""
        with translated():
            rows = self._execute(connection, _LEADERS, {"shard": shard, "stale": self._stale_seconds}).fetchall()
        found = [(*row[:3], Pool.of_json(row[3])) for row in rows]
        return [(name, led, leader_id, pool) for name, led, leader_id, pool in found if pool is not None]

    def announce(self, connection: psycopg.Connection[Any], shard: int, leader_id: UUID) -> None:
        """Write the identity of the leader into the row of the shard, beside the epoch."""
        leader = Jsonb({**self._pool.as_json(), "leader_id": str(leader_id)})
        self._execute(connection, _ANNOUNCE, {"shard": shard, "leader": leader})

    def hear(self, rival: object) -> None:
        """Log the conflict with the process that has written its name as `rival` into this leader's row, once for each
        process."""
        theirs = Pool.of_json(rival)
        if theirs is not None and (conflict := conflict_on_outbox(self._pool, theirs)) is not None:
            self._conflicts.log(conflict)

    def _execute(
        self, connection: psycopg.Connection[Any], statement: str, values: Mapping[str, Any]
    ) -> psycopg.Cursor[Any]:
        named = sql.SQL(statement).format(table=in_statement(self._table))
        return connection.execute(named, {"subscription": self._subscription, **values})
