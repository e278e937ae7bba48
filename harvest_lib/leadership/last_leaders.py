"""Last leaders of a subscription's shards, by their rows, and the check that their late records and commits are fenced.

A server frees a lock at once when it loses the session that held it, while its holder still believes that it leads. A
new holder need not wait for the end of that belief if late actions of the old holder have no effect:

- `transactional`: to begin is to fence the transactional ids of the shard. The old leader's open transaction is
  aborted, and it can commit nothing more. The checkpoint, read afterwards, covers all its commits.
- `sequenced`: to begin is to raise the epoch of the shard's row. Records that the old leader sends stay pending for
  ever, as its acknowledgements leave only once they were saved under its epoch.

Both hold for the subscription's row in Postgres and its data (checkpoint, parked records), which are written under the
epoch. So a leader writes its fence into its row, beside its epoch and in the same transaction. The next holder of the
lock begins at once if it would fence by the very same means; by any other, or none, it waits.

A holder that loses the lock before it reached its row has written nothing yet. Therefore the epochs are read under the
lock, and a term begins only from the epoch that was read: if two holders overlap in this way, the first counts.

A shard that never had a leader needs no wait, unless another process marks and purges the table: a session with its
name, or marked records at the head of the table, show this.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.errors import DatabaseAccessDenied, OutboxTableError
from harvest_lib.postgres.database import in_statement, translated

_log = logging.getLogger(__name__)

MARKS = "harvest mark"
"""The application name of a connection that marks and purges, unless the user has chosen another: such a leader may
have no row."""

_READ = """
SELECT shard, shards, epoch, leader_id IS NOT NULL, coalesce(
  leader ->> 'leader_id' = leader_id::text AND leader ->> 'fence' = %(fence)s, false
)
FROM {table} WHERE subscription = %(subscription)s
"""

_MARKS = """
SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = %(marks)s)
"""

# A leader that marks begins with the lowest ids. A few reset records may precede many marked records.
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
    """The last leaders, as the rows of a subscription have them."""

    epochs: Mapping[int, int] = field(default_factory=dict)
    """By shard; none if they could not be read."""
    are_fenced: bool = False
    """True if beginning fences all of them, so that there is nothing to wait for."""


UNKNOWN = LastLeaders()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionRows:
    """The rows of a subscription, as read by a candidate for its leadership."""

    table: sql.Identifier
    subscription: str
    shards: int
    fence: str
    """Means by which this member fences the previous leader: equal for members that fence each other; empty without
    any."""
    outbox: sql.Identifier | None = None
    """The table whose records may be marked; None for a layout without marks."""

    def read(self, connection: psycopg.Connection[Any]) -> LastLeaders:
        """Query the rows. Nothing is known if they are not visible to this role, or no longer exist."""
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
        """Return True if a process marks the table, or has left marked records at its head."""
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
    """Log once the leader id of the marks in a table that is about to be read."""
    _log.warning("marked_records_found", extra={"table": outbox, "leader_id": leader_id, "next_step": _NEXT_STEP})
