"""Last leaders of a subscription's shards, and the check whether a new leader's begin fences their late actions.

When a server loses the session that held a lock, the server frees the lock at once, but the old holder still believes
that it leads. A new holder need not wait for the end of that belief if late actions of the old holder have no effect:

- `transactional`: a leader begins by fencing the transactional ids of the shard. This aborts the old leader's open
  transaction, and the old leader can commit nothing more. The new leader then reads the checkpoint, which covers all
  commits of the old leader.
- `sequenced`: a leader begins by raising the epoch of the shard's row. Records that the old leader still sends stay
  pending for ever: a leader sends acknowledgements only after they were saved under its epoch.

In both cases the subscription's row in Postgres and its data (checkpoint, parked records) are safe too, because they
are written under the epoch. A leader writes its means of fencing into its row, beside its epoch and in the same
transaction. The next holder of the lock begins at once if it fences by the same means, and waits if it does not.

A holder that loses the lock before it has written its row leaves no trace there. Therefore the epochs are read under
the lock, and a term begins only if the epoch is still equal to the epoch that was read. If two such holders overlap,
the first holder to write its row leads.

A shard that never had a leader needs no wait, unless another process marks and purges the table. Signs of such a
process are a session with its application name, or marked records at the head of the table.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.errors import DatabaseAccessDenied, OutboxTableError
from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import translated

_log = logging.getLogger(__name__)

MARKS = "harvest mark"
"""The default application name of a connection that marks and purges. A leader that marks may have no row."""

_READ = """
SELECT shard, shards, epoch, leader_id IS NOT NULL, coalesce(
  leader ->> 'leader_id' = leader_id::text AND leader ->> 'fence' = %(fence)s, false
)
FROM {table} WHERE subscription = %(subscription)s
"""

_MARKS = """
SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = %(marks)s)
"""

# A leader marks the lowest ids first. A few reset records may precede many marked records.
_MARKED = """
SELECT leader_id::text FROM (SELECT leader_id FROM {outbox} ORDER BY id LIMIT 100) AS head
WHERE leader_id IS NOT NULL LIMIT 1
"""


_NEXT_STEP = (
    "stop whatever still marks the table (goharvest, another pool): this process only reads it, "
    "and both would send the same records"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastLeaders:
    """The last leaders of a subscription's shards, according to its rows."""

    epochs: Mapping[int, int] = field(default_factory=dict)
    """The epoch of each shard; empty if the epochs could not be read."""
    are_fenced: bool = False
    """True if a new leader's begin fences all last leaders, so that no wait is needed."""


UNKNOWN = LastLeaders()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionRows:
    """Reads the rows of a subscription, for a candidate for its leadership."""

    table: sql.Identifier
    subscription: str
    shards: int
    fence: str
    """Means by which this member fences the previous leader. Members with equal means can fence each other. Empty if
    this member does not fence."""
    outbox: sql.Identifier | None = None
    """The table whose records may be marked; None for a layout without marks."""

    def read(self, connection: psycopg.Connection[Any]) -> LastLeaders:
        """Query the rows. Return UNKNOWN if this role may not see them, or if their table does not exist any more."""
        values = {"subscription": self.subscription, "fence": self.fence}
        statement = sql.SQL(_READ).format(table=in_statement(self.table))
        try:
            with translated():
                rows = connection.execute(statement, values).fetchall()
                rows = rows or [(shard, self.shards, 0, False, False) for shard in range(self.shards)]
                is_new = not all(was_led for *_, was_led, _ in rows)
                is_marked = is_new and self._is_marked(connection)
        except (DatabaseAccessDenied, OutboxTableError):
            return UNKNOWN
        are_ours = {(shard, shards) for shard, shards, *_ in rows} == {
            (each, self.shards) for each in range(self.shards)
        }
        are_known = all(is_fenced or not was_led for *_, was_led, is_fenced in rows) and not is_marked
        return LastLeaders(
            epochs={**dict.fromkeys(range(self.shards), 0), **{shard: epoch for shard, _, epoch, *_ in rows}},
            are_fenced=bool(self.fence) and are_ours and are_known,
        )

    def _is_marked(self, connection: psycopg.Connection[Any]) -> bool:
        """Return True if a process marks the table, or if there are marked records at the head of the table."""
        if connection.execute(_MARKS, {"marks": MARKS}).fetchone() != (False,):
            return True
        if self.outbox is None or not self.fence:
            return False
        marked = connection.execute(sql.SQL(_MARKED).format(outbox=self.outbox)).fetchone()
        if marked is not None:
            _say_marked(self.outbox.as_string(None), *marked)
        return marked is not None


@cache
def _say_marked(outbox: str, leader_id: str) -> None:
    """Log, once, the leader id in the marked records of a table that is about to be read."""
    _log.warning("marked_records_found", extra={"table": outbox, "leader_id": leader_id, "next_step": _NEXT_STEP})
