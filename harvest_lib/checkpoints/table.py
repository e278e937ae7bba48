"""Progress of subscriptions: one row each, and one per shard, in the table `<outbox>_subscriptions`.

Promises
- Epochs fence: a leader raises the row's epoch first, and only the holder of the present one saves. A fenced leader's
  save changes nothing, and it learns that it was fenced.
- A checkpoint never goes backwards within a generation: each is numbered, and a lower number is refused.
- Rewinding raises the generation: a leader's save of the one before is refused. It keeps its epoch, so it still leads,
  and `leadership_status` has it go on from the new place.
- Nobody leads a subscription that is divided or read otherwise than configured, or of which the checkpoint is another
  outbox's: CheckpointError, before any epoch is raised.
- A checkpoint names its author: the outbox's identity, the subscription, the leader and its epoch. The row lists the
  leaders that there were since the last one that saved.
- A save is on disk when it returns.
"""

import enum
import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from harvest_lib.checkpoints.record import Checkpoint as Checkpoint  # noqa: PLC0414 - who takes it from here
from harvest_lib.checkpoints.record import read_checkpoint
from harvest_lib.database import connect, in_statement, translated
from harvest_lib.errors import CheckpointError
from harvest_lib.leadership.pool import announced
from harvest_lib.leadership.rivals import Rivals
from harvest_lib.outbox.identity import OutboxIdentity, check_identity, identity_of
from harvest_lib.source.filters import Subscription

# Rows and no advisory lock: that could be held forever by any role that may connect, such as a writer of the outbox.
_LOCK = "SELECT shard FROM {table} WHERE subscription = %(subscription)s ORDER BY shard FOR UPDATE"

_FIRST = """
INSERT INTO {table} (subscription, shard, shards, source) VALUES (%(subscription)s, 0, %(shards)s, %(source)s)
ON CONFLICT (subscription, shard) DO NOTHING
"""

_KINDS = "SELECT DISTINCT shards, source FROM {table} WHERE subscription = %(subscription)s ORDER BY shards, source"

_LEAD = """
INSERT INTO {table} AS s (subscription, shard, shards, source, epoch, leader_id)
VALUES (%(subscription)s, %(shard)s, %(shards)s, %(source)s, 1, %(leader_id)s)
ON CONFLICT (subscription, shard) DO UPDATE SET epoch = s.epoch + 1, leader_id = excluded.leader_id, updated_at = now()
WHERE s.epoch = coalesce(%(after)s::bigint, s.epoch) OR s.leader_id = ANY (%(tried)s::uuid[])
RETURNING generation, epoch, until::text, checkpoint
"""

_RENEW = """
UPDATE {table} SET epoch = epoch + 1, updated_at = now()
WHERE subscription = %(subscription)s AND shard = %(shard)s AND epoch = %(epoch)s AND leader_id = %(leader_id)s
RETURNING generation, epoch, until::text, checkpoint
"""

_ANNOUNCE = "SELECT set_config('application_name', %s, false)"

_SAVE = """
UPDATE {table} SET seen = %(seen)s::pg_snapshot, holds = %(holds)s, checkpoint = %(checkpoint)s, updated_at = now()
WHERE subscription = %(subscription)s AND shard = %(shard)s
  AND generation = %(generation)s AND epoch = %(epoch)s AND leader_id = %(leader_id)s
  AND coalesce((checkpoint ->> 'number')::bigint, 0) <= %(number)s
"""

_LAST = """
SELECT epoch, leader_id, checkpoint, generation FROM {table}
WHERE subscription = %(subscription)s AND shard = %(shard)s
"""

_LIST_LEADERS = """
UPDATE {table} SET checkpoint = checkpoint || %(leaders)s::jsonb
WHERE subscription = %(subscription)s AND shard = %(shard)s AND epoch = %(epoch)s AND leader_id = %(leader_id)s
  AND checkpoint IS NOT NULL
"""

_STATUS = """
SELECT generation, until::text, checkpoint FROM {table} AS s
WHERE subscription = %(subscription)s AND shard = %(shard)s AND epoch = %(epoch)s AND leader_id = %(leader_id)s
"""
_RIVAL = ", to_jsonb(s) -> 'leader' -> 'rival'"
# The leader id as well: a row that was removed and made again begins with the epochs that it had before.


_NO_EPOCH = -1
"""That of a leader that did not come to lead. Lower than any."""
_SHARDS = 2**31 - 1
"""So many numbers there are for one."""
_MOST_LEADERS, _RECENT_LEADERS = 256, 16
"""So many are listed, and so many of the last ones once the author of Kafka's checkpoint is known."""


class LeadershipStatus(enum.Enum):
    """The status of a leader since its last check."""

    LEADS = "leads"
    MOVED = "moved"
    """It leads, but the subscription was rewound, or given an end: go on from its checkpoint."""
    FENCED = "fenced"


class CheckpointTable:
    """The checkpoints of one subscription and shard, in Postgres. Used by one thread at a time.

    All calls raise DatabaseUnavailable when the database cannot be asked; the next one connects again.
    """

    def __init__(
        self,
        conninfo: str,
        table: sql.Identifier,
        subscription: Subscription,
        *,
        outbox: sql.Identifier | None = None,
        rivals: Rivals | None = None,
    ) -> None:
        """`outbox` is the table whose checkpoints they have to be; `rivals` notices other pools."""
        self._conninfo = conninfo
        self._outbox = outbox
        self._origin: dict[str, Any] = {}
        self.identity: OutboxIdentity | None = None
        self.leaders: dict[str, str] = {}
        """By epoch: the leaders since the last that saved, and the present one."""
        self.older_led = False
        """True if a leader since the last that saved was of a version that does not write its identity."""
        self._table = table
        self._subscription = subscription
        self._rivals = rivals
        status = _STATUS if rivals is None else _STATUS.replace(" FROM", f"{_RIVAL} FROM", 1)
        names = {"table": in_statement(table)}
        self._first, self._lead, self._renew, self._save, self._status = (
            sql.SQL(each).format(**names) for each in (_FIRST, _LEAD, _RENEW, _SAVE, status)
        )
        self._row = {"subscription": subscription.name, "shard": subscription.shard}
        self._connection: psycopg.Connection[Any] | None = None
        self._leader_id: UUID | None = None
        self._tried: set[UUID] = set()
        """The leader ids under which we may have raised the epoch, heard of or not, since an answer was heard last."""
        self._generation = self._epoch = 0
        self._until: str | None = None

    def lead(self, leader_id: UUID, after_epoch: int | None = None) -> Checkpoint:
        """Raise the epoch, fencing the previous leader, and return the subscription's checkpoint.

        If somebody has raised it since it was `after_epoch`, nothing is changed, and `leadership_status` says that we
        were fenced. Raises CheckpointError if it has another number of shards or another source, and PoolConflict if a
        leader of another pool has it.
        """
        subscription = self._subscription
        values = {
            **self._row,
            "shards": subscription.shards,
            "source": subscription.source,
            "leader_id": leader_id,
            "after": after_epoch,
        }
        self._leader_id = leader_id
        self.close()  # so that the new connection carries the id
        connection = self.connected()
        if self._rivals is not None:
            self._rivals.refuse(connection, subscription.shard)
        with translated(), connection.transaction():
            while not lock_subscription(connection, self._table, subscription.name):
                connection.execute(self._first, values)  # waits for any other that begins it, and then locks its row
            check_subscription(connection, self._table, subscription)
            before = self._before(connection)
            self._tried.add(leader_id)
            row = connection.execute(self._lead, {**values, "tried": list(self._tried)}).fetchone()
            if row is None:
                self._epoch, self._tried = _NO_EPOCH, set()
                return self._checkpoint(0, None)
            self._generation, self._epoch, self._until, saved = row
            self._sign(before)
            if self._outbox is not None:
                self._list_leaders(connection)
            if self._rivals is not None:
                self._rivals.announce(connection, subscription.shard, leader_id)
        self._tried = {leader_id}  # earlier attempts have ended: the row was locked for this
        return self._checkpoint(self._generation, saved)

    def _before(self, connection: psycopg.Connection[Any]) -> Mapping[str, Any]:
        """Return the record that the last leader has left, once it is known to be of this outbox."""
        self.leaders = {}
        if self._outbox is None:
            return {}
        self.identity = identity_of(connection, self._outbox)
        statement = sql.SQL(_LAST + "FOR UPDATE").format(table=in_statement(self._table))
        row = connection.execute(statement, self._row).fetchone()
        epoch, leader_id, saved, generation = row or (0, None, None, 0)
        self._checkpoint(generation, saved)
        check_identity(connection, saved or {}, self.identity, self._subscription.name)
        self.leaders = dict((saved or {}).get("leaders", {}))
        is_older = leader_id is not None and str(epoch) not in self.leaders
        self.older_led = is_older or bool((saved or {}).get("older"))
        if leader_id is not None:
            self.leaders[str(epoch)] = str(leader_id)
        return saved or {}

    def look(self) -> Checkpoint:
        """Return the subscription's checkpoint, without leading. Raises CheckpointError if it is another outbox's."""
        statement = sql.SQL(_LAST).format(table=in_statement(self._table))
        connection = self.connected()
        self.identity = identity_of(connection, self._outbox) if self._outbox is not None else None
        with translated():
            row = connection.execute(statement, self._row).fetchone()
        saved, generation = row[2:] if row is not None else (None, 0)
        checkpoint = self._checkpoint(generation, saved)
        if saved and self.identity is not None:
            check_identity(connection, saved, self.identity, self._subscription.name)
        return checkpoint

    def _sign(self, before: Mapping[str, Any]) -> None:
        """Have checkpoints saved from now on name their author."""
        if self._outbox is not None:
            self.leaders[str(self._epoch)] = str(self._leader_id)
            was = {"was": before["was"]} if before.get("was") else {}
            self._origin = {"identity": str(self.identity), **was, **self._signature()}

    def forget_leaders(self, record: Mapping[str, Any]) -> None:
        """Forget those before the author of Kafka's checkpoint, which cannot have written a later one."""
        author = str(record.get("epoch"))
        if author not in self.leaders or self.leaders[author] != record.get("leader_id"):
            return
        since = sorted((each for each in self.leaders if int(each) > int(author)), key=int)[-_RECENT_LEADERS:]
        if len(since) + 1 < len(self.leaders):
            self.leaders = {each: self.leaders[each] for each in (author, *since)}
            with translated():
                self._list_leaders(self.connected())

    def _list_leaders(self, connection: psycopg.Connection[Any]) -> None:
        """Write the list into the row: its first and its last ones, if they are too many."""
        if len(self.leaders) > _MOST_LEADERS:
            # A delivering leader has read Kafka's checkpoint and forgotten most before it: its author is an early one.
            listed, half = sorted(self.leaders, key=int), _MOST_LEADERS // 2
            self.leaders = {each: self.leaders[each] for each in (*listed[:half], *listed[-half:])}
        more = {"leaders": self.leaders, **({"older": True} if self.older_led else {})}
        statement = sql.SQL(_LIST_LEADERS).format(table=in_statement(self._table))
        connection.execute(statement, {**self._held(), "leaders": Jsonb(more)})

    def _signature(self) -> dict[str, Any]:
        return {**self._row, "leader_id": str(self._leader_id), "epoch": self._epoch}

    @property
    def origin(self) -> Mapping[str, Any]:
        """Return the origin that checkpoints get from this leader."""
        return self._origin

    def sign(self, **more: Any) -> None:
        """Have the checkpoints say more of where they come from."""
        self._origin |= more

    @contextmanager
    def rehearsed(self) -> Iterator[None]:
        """Rehearse a leader's statements, on a shard that does not exist, and undo them with all that is done inside.

        Raises DatabaseAccessDenied for statements that a leader would be refused later, when it would be waited out.
        Nobody leads by these checkpoints afterwards.
        """
        leader: dict[str, Any] = {"leader_id": UUID(int=0), "after": None, "tried": []}
        leader |= {"shards": self._subscription.shards, "source": self._subscription.source}
        self._row["shard"] = -1 - secrets.randbelow(_SHARDS)  # of its own: no other one waits for it
        with translated(), self.connected().transaction(force_rollback=True):
            self.connected().execute(self._lead, {**self._row, **leader})
            self.save(Checkpoint(generation=0))
            self.leadership_status()
            yield

    def leadership_status(self) -> tuple[LeadershipStatus, Checkpoint | None]:
        """Return the status of this leader, and its checkpoint unless it was fenced; MOVED is returned once.

        Raises CheckpointError if the subscription was given another number of shards, or another source.
        """
        with translated():
            row = self.connected().execute(self._status, self._held()).fetchone()
        if row is None:
            check_subscription(self.connected(), self._table, self._subscription)
            return LeadershipStatus.FENCED, None
        before, (self._generation, self._until, saved, *rival) = (self._generation, self._until), row
        if self._rivals is not None:
            self._rivals.hear(*rival)
        moved = before != (self._generation, self._until)
        return LeadershipStatus.MOVED if moved else LeadershipStatus.LEADS, self._checkpoint(self._generation, saved)

    def renew(self) -> Checkpoint | None:
        """Raise the epoch once more and return the subscription's checkpoint; None if we were fenced.

        An earlier save without an answer counts now, or never will.
        """
        with translated():
            row = self.connected().execute(self._renew, self._held()).fetchone()
        if row is None:
            return None
        self._generation, self._epoch, self._until, saved = row
        if self._outbox is not None:
            self.leaders[str(self._epoch)] = str(self._leader_id)
            self._origin |= self._signature()
        return self._checkpoint(self._generation, saved)

    def save(self, checkpoint: Checkpoint) -> bool:
        """Write a checkpoint; False if this leader was fenced, the subscription was rewound since, or the checkpoint
        is older than the one there."""
        values = {
            **self._held(),
            "generation": checkpoint.generation,
            "seen": checkpoint.seen,
            "holds": checkpoint.holds,
            "number": checkpoint.number,
            "checkpoint": Jsonb({**checkpoint.as_json(), **self._signed(checkpoint)}, dumps=_dumps),
        }
        with translated():
            return self.connected().execute(self._save, values, prepare=True).rowcount == 1

    def _signed(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Return the saver, and the checkpoint's author if that is another: it is still the last in Kafka."""
        if not self._origin:
            return {}
        origin = checkpoint.origin
        author = {str(origin["epoch"]): origin["leader_id"]} if {"epoch", "leader_id"} <= origin.keys() else {}
        return {**self._origin, "leaders": {**author, str(self._epoch): str(self._leader_id)}}

    @property
    def holder(self) -> Mapping[str, Any]:
        """Return the identity of this leader: its subscription, shard and epoch."""
        return {**self._row, "epoch": self._epoch}

    @property
    def epoch(self) -> int:
        """Return the epoch under which this leader led last; one that nobody has if it did not come to lead."""
        return self._epoch

    @property
    def source(self) -> str:
        """Return the kind of the positions."""
        return self._subscription.source

    def close(self) -> None:
        """Let go of the connection. Safe to repeat."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _checkpoint(self, generation: int, saved: Mapping[str, Any] | None) -> Checkpoint:
        name, shard = self._subscription.name, self._subscription.shard
        checkpoint = read_checkpoint(saved, name, shard) if saved else Checkpoint(generation=generation)
        return replace(checkpoint, generation=generation)

    def _held(self) -> dict[str, Any]:
        return {**self._row, "epoch": self._epoch, "leader_id": self._leader_id}

    def connected(self) -> psycopg.Connection[Any]:
        """Return the connection; others write with it too, under the epoch."""
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._conninfo)
            with translated():
                self._connection.execute("SET statement_timeout = '30s'")
                if self._leader_id is not None:
                    self._connection.execute(_ANNOUNCE, (announced(self._leader_id),))
        return self._connection


def lock_subscription(connection: psycopg.Connection[Any], table: sql.Identifier, name: str) -> bool:
    """Keep others from leading, moving or dividing a subscription, until the end of the transaction; False if it has no
    row to lock. `table` is that of the subscriptions."""
    locked = connection.execute(sql.SQL(_LOCK).format(table=in_statement(table)), {"subscription": name})
    return locked.fetchone() is not None


def check_subscription(connection: psycopg.Connection[Any], table: sql.Identifier, subscription: Subscription) -> None:
    """Raise CheckpointError if the subscription has another number of shards, or another source, than configured."""
    statement = sql.SQL(_KINDS).format(table=in_statement(table))
    with translated():
        kinds = connection.execute(statement, {"subscription": subscription.name}).fetchall()
    name = subscription.name
    for shards, source in kinds:
        if shards != subscription.shards:
            raise CheckpointError(
                f"the subscription {name!r} is divided into {shards}, not {subscription.shards}",
                evidence=f"its rows in {table.as_string(None)} say shards {shards}, the configuration "
                f"{subscription.shards}: a key would change its leader while its records are on their way",
                next_step=f"set `shards: {shards}`, or change the number with "
                f"`harvest subscriptions reshard {name} --shards {subscription.shards}`, which keeps each key's order",
            )
        if source != subscription.source:
            raise CheckpointError(
                f"the position of the subscription {name!r} is one of source {source}, not {subscription.source}",
                evidence=f"its rows in {table.as_string(None)} say so",
                next_step=f"set `source: {source}`, or convert the position, repeating what it cannot express, with "
                f"`harvest subscriptions rewind {name} --to mirror --source {subscription.source}`",
            )


def _dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
