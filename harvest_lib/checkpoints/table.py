"""Progress of subscriptions: the table `<outbox>_subscriptions`, with a row for each shard of each subscription.

Promises
- Epochs fence: a leader first raises the row's epoch, and only the leader with the current epoch can save. If a fenced
  leader saves, nothing changes, and the save returns False.
- A checkpoint never goes backwards within a generation: checkpoints are numbered, and a lower number is refused.
- A rewind raises the generation, and a leader's save with the previous generation is refused. The epoch does not
  change: the leader still leads, and `leadership_status` makes it continue from the new position.
- No process leads a subscription whose shards or source differ from the configuration, or whose checkpoint belongs to
  another outbox: the process gets a CheckpointError before it raises an epoch.
- Each save and each `vouch` raises the row's witness. A checkpoint in Kafka contains a witness that was already on
  disk. So if the row has a lower witness, the row and its server were restored to an earlier time.
- A checkpoint identifies its author: the outbox's identity, the subscription, the leader and its epoch. The row lists
  the last leader that saved and all later leaders.
- A save is on disk when it returns.
"""

import enum
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from harvest_lib.checkpoints import row_statements as rows
from harvest_lib.checkpoints.authors import Authors
from harvest_lib.checkpoints.record import compact, read_checkpoint
from harvest_lib.checkpoints.refusals import FIELD as REFUSED
from harvest_lib.checkpoints.refusals import check_server, remember
from harvest_lib.checkpoints.subscription_rows import check_subscription, lock_subscription
from harvest_lib.errors import CheckpointError, OutboxTableError, ServerRegressed
from harvest_lib.leadership.pool import announced
from harvest_lib.leadership.rivals import Rivals
from harvest_lib.outbox.identity import check_identity, identity_of
from harvest_lib.postgres.database import connect, in_statement
from harvest_lib.postgres.translation import translated
from harvest_lib.record.checkpoint import OutboxCheckpoint
from harvest_lib.source.filters import Subscription

_NO_EPOCH = -1
"""The epoch of a process that does not lead. It is lower than all epochs of leaders."""
_SHARDS = 2**31 - 1
"""Number of shard numbers, all negative, from which a rehearsal chooses one at random."""


class LeadershipStatus(enum.Enum):
    """The status of a leader, and whether its subscription was changed since the leader's last check."""

    LEADS = "leads"
    MOVED = "moved"
    """The leader still leads, but the subscription was rewound or given an end: continue from its checkpoint."""
    FENCED = "fenced"


class CheckpointTable:
    """The row of a subscription's shard, with its checkpoint. A single thread uses it at a time.

    All calls raise DatabaseUnavailable if the database does not answer; the next call connects again.
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
        """`outbox` is the outbox to which the checkpoints must belong. `rivals` detects other pools."""
        self._conninfo = conninfo
        self._outbox = outbox
        self.authors = Authors()
        self._table = table
        self.subscription = subscription
        self._rivals = rivals
        status = rows.STATUS if rivals is None else rows.STATUS.replace(" FROM", f"{rows.RIVAL} FROM", 1)
        names = {"table": in_statement(table)}
        self._first, self._lead, self._renew, self._save, self._status, self._vouch = (
            sql.SQL(each).format(**names) for each in (rows.FIRST, rows.LEAD, rows.RENEW, rows.SAVE, status, rows.VOUCH)
        )
        self._row = {"subscription": subscription.name, "shard": subscription.shard}
        self._connection: psycopg.Connection[Any] | None = None
        self._leader_id: UUID | None = None
        self._tried: set[UUID] = set()
        """Leader ids with which this process has tried to raise the epoch since the database last answered."""
        self._generation = self._epoch = 0
        self._until: str | None = None
        self._saved: Mapping[str, Any] = {}  # the row's checkpoint at the last read, as JSON
        self.witness = 0
        """The row's witness at the last read or write."""

    def lead(self, leader_id: UUID, after_epoch: int | None = None) -> OutboxCheckpoint:
        """Raise the epoch, which fences the previous leader, and return the subscription's checkpoint.

        If another leader has raised the epoch above `after_epoch`, nothing changes, and `leadership_status` reports
        that this leader is fenced. Raises CheckpointError if the subscription has another number of shards or another
        source, and PoolConflict if a leader of another pool leads it.
        """
        subscription = self.subscription
        values = {
            **self._row,
            "shards": subscription.shards,
            "source": subscription.source,
            "leader_id": leader_id,
            "after": after_epoch,
        }
        self._leader_id = leader_id
        self.close()  # so that the new connection has the leader id in its application name
        connection = self.connected()
        if self._rivals is not None:
            self._rivals.refuse(connection, subscription.shard)
        with translated(), connection.transaction():
            while not lock_subscription(connection, self._table, subscription.name):
                connection.execute(self._first, values)  # waits for a process that inserts the same row
            check_subscription(connection, self._table, subscription)
            if self._outbox is not None:
                self._read_authors(connection, self._outbox)
            self._tried.add(leader_id)
            row = connection.execute(self._lead, {**values, "tried": list(self._tried)}).fetchone()
            if row is None:
                self._epoch, self._tried = _NO_EPOCH, set()
                return self._checkpoint(0, None)
            self._generation, self._epoch, self._until, saved = row
            if self._outbox is not None:
                self.authors.sign(self._row, self._epoch, leader_id)
                self._list_leaders(connection)
            if self._rivals is not None:
                self._rivals.announce(connection, subscription.shard, leader_id)
        self._tried = {leader_id}  # earlier attempts have ended, since this attempt has locked the row
        return self._checkpoint(self._generation, saved)

    def _read_authors(self, connection: psycopg.Connection[Any], outbox: sql.Identifier) -> None:
        """Check that the row's checkpoint belongs to this outbox, then read its list of leaders."""
        statement = sql.SQL(rows.LAST + "FOR UPDATE").format(table=in_statement(self._table))
        identity = self.authors.identity = identity_of(connection, outbox)
        row = connection.execute(statement, self._row).fetchone()
        epoch, leader_id, saved, generation = row or (0, None, None, 0)
        self._checkpoint(generation, saved)
        if saved:
            check_identity(connection, saved, identity, self.subscription.name)
        self.authors.read(saved or {}, epoch, leader_id)

    def look(self) -> OutboxCheckpoint:
        """Return the subscription's checkpoint without leading. If the table or the row does not exist, return an
        initial checkpoint. Raises CheckpointError if the checkpoint belongs to another outbox."""
        statement = sql.SQL(rows.LAST).format(table=in_statement(self._table))
        connection = self.connected()
        identity = self.authors.identity = identity_of(connection, self._outbox) if self._outbox is not None else None
        row = None
        with translated(), suppress(psycopg.errors.UndefinedTable):  # a start creates the table
            row = connection.execute(statement, self._row).fetchone()
        epoch, leader_id, saved, generation = row or (0, None, None, 0)
        checkpoint = self._checkpoint(generation, saved)
        self.authors.read(saved or {}, epoch, leader_id)
        if saved and identity is not None:
            check_identity(connection, saved, identity, self.subscription.name)
        return checkpoint

    def forget_leaders(self, record: Mapping[str, Any]) -> None:
        """Remove the leaders before the author of Kafka's checkpoint from the row's list."""
        if self.authors.forget_before(record):
            with translated():
                self._list_leaders(self.connected())

    def _list_leaders(self, connection: psycopg.Connection[Any]) -> None:
        statement = sql.SQL(rows.LIST_LEADERS).format(table=in_statement(self._table))
        connection.execute(statement, {**self.holder, "leaders": Jsonb(self.authors.listed())})

    @contextmanager
    def rehearsed(self) -> Iterator[None]:
        """Run a leader's statements on a shard that does not exist, then the `with` block, and roll everything back.

        Raises DatabaseAccessDenied if Postgres refuses a statement: without this rehearsal, a leader would later wait
        until it has the missing right. Do not lead with this object afterwards.
        """
        leader: dict[str, Any] = {"leader_id": UUID(int=0), "after": None, "tried": []}
        leader |= {"shards": self.subscription.shards, "source": self.subscription.source}
        self._row["shard"] = shard = -1 - secrets.randbelow(_SHARDS)  # a random shard, which no process waits for
        with translated(), self.connected().transaction(force_rollback=True):
            led = self.connected().execute(self._lead, {**self._row, **leader})
            if not led.rowcount:
                table = self._table.as_string(None)
                raise OutboxTableError(
                    f"the table {table} does not keep what is written into it",
                    evidence="the row of a leader was passed over, without an error",
                    next_step=f"see its triggers and rules with psql's `\\d {table}`, and disable the trigger that "
                    "does it",
                )
            self.save(OutboxCheckpoint(generation=0))
            self.leadership_status()
            if self._rivals is not None:
                self._rivals.announce(self.connected(), shard, leader["leader_id"])
            yield
            self.connected().execute("SET CONSTRAINTS ALL IMMEDIATE")  # run deferred triggers before the rollback

    def leadership_status(self) -> tuple[LeadershipStatus, OutboxCheckpoint | None]:
        """Return two values: the status of this leader, and the row's checkpoint (None if the leader is fenced). MOVED
        is returned once for each change. Raises CheckpointError if the number of shards or the source was changed."""
        with translated():
            row = self.connected().execute(self._status, self.holder).fetchone()
        if row is None:
            check_subscription(self.connected(), self._table, self.subscription)
            return LeadershipStatus.FENCED, None
        before, (self._generation, self._until, saved, *rival) = (self._generation, self._until), row
        if self._rivals is not None:
            self._rivals.hear(*rival)
        moved = before != (self._generation, self._until)
        return LeadershipStatus.MOVED if moved else LeadershipStatus.LEADS, self._checkpoint(self._generation, saved)

    def renew(self) -> OutboxCheckpoint | None:
        """Raise the epoch again and return the subscription's checkpoint; None if this leader is fenced.

        An earlier save that got no answer is now either part of the returned checkpoint, or can never be applied.
        """
        with translated():
            row = self.connected().execute(self._renew, self.holder).fetchone()
        if row is None:
            return None
        self._generation, self._epoch, self._until, saved = row
        if self._outbox is not None:
            self.authors.sign(self._row, self._epoch, self._leader_id)
        return self._checkpoint(self._generation, saved)

    def save(self, checkpoint: OutboxCheckpoint) -> bool:
        """Write a checkpoint. Return False if this leader is fenced, the subscription was rewound, or the stored
        checkpoint is newer."""
        values = {
            **self.holder,
            "generation": checkpoint.generation,
            "low_watermark": checkpoint.low_watermark,
            "retention_hold": checkpoint.retention_hold,
            "number": checkpoint.number,
            "checkpoint": Jsonb(
                {**checkpoint.as_json(), **self.authors.saved(checkpoint), "witness": self.witness + 1}, dumps=compact
            ),
        }
        return self._write(self._save, values)

    def vouch(self) -> bool:
        """Raise the row's witness durably. Return False if this leader is fenced, or the subscription was rewound."""
        witness = Jsonb({"witness": self.witness + 1})
        return self._write(self._vouch, {**self.holder, "generation": self._generation, "witness": witness})

    def _write(self, statement: sql.Composed, values: Mapping[str, Any]) -> bool:
        with translated():
            written = self.connected().execute(statement, values, prepare=True).rowcount == 1
        self.witness += written
        return written

    def require(self, checkpoint: OutboxCheckpoint, *, tell: bool = True) -> None:
        """Raise ServerRegressed or CheckpointError if the server lacks records before a checkpoint, or if an earlier
        check has stored a refusal of the checkpoint. With `tell`, store the reason in the row."""
        try:
            check_server(self.connected(), self._saved, checkpoint, self.subscription.name)
        except (ServerRegressed, CheckpointError) as error:
            if tell:
                self.remember(checkpoint, error)
            raise

    def remember(self, checkpoint: OutboxCheckpoint, error: ServerRegressed | CheckpointError) -> None:
        """Store in the row why a checkpoint was refused, if the evidence could disappear and is not stored yet."""
        if (error.wears_off or isinstance(error, CheckpointError)) and not self._saved.get(REFUSED):
            remember(self.connected(), self._table, self._row, checkpoint, error, witness=self.witness)

    @property
    def holder(self) -> Mapping[str, Any]:
        """The identity of this leader, as parameters of statements: subscription, shard, epoch and leader id."""
        return {**self._row, "epoch": self._epoch, "leader_id": self._leader_id}

    @property
    def epoch(self) -> int:
        """The epoch of this leader's last term; -1 after a term that could not begin, 0 before the first term."""
        return self._epoch

    def close(self) -> None:
        """Close the connection. Safe to repeat."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _checkpoint(self, generation: int, saved: Mapping[str, Any] | None) -> OutboxCheckpoint:
        name, shard = self.subscription.name, self.subscription.shard
        checkpoint = read_checkpoint(saved, name, shard) if saved else OutboxCheckpoint(generation=generation)
        self._saved, self.witness = saved or {}, checkpoint.witness
        return replace(checkpoint, generation=generation)

    def connected(self) -> psycopg.Connection[Any]:
        """Return the connection, after connecting if needed. Other modules use it for writes that check the epoch."""
        if self._connection is None or self._connection.closed:
            settings = {"statement_timeout": "30s"}
            if self._leader_id is not None:
                settings["application_name"] = announced(self._leader_id)
            self._connection = connect(self._conninfo, settings)
        return self._connection
