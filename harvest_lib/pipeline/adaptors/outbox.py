"""`outbox`: the records of the native outbox table, read by a subscription of the pipeline's own.

A record is an insert under its topic: `{"id": 7, "key": "…", "value": "…", "headers": [["name", "value"]]}`; the value
is bytes where the column is.

    NOOP  outbox/SUBSCRIPTION  {"generation": …, "number": …, "delivered": …, "position": {…}}

Promises
- What the snapshot source promises: nothing is skipped, a key's records come in the order in which they were committed
  (if writers lock the key), what is returned was on disk before. Rows are only read.
- Retention keeps what has not reached every writer: the subscription's checkpoint is written in `kept`, never earlier.
- Of two that read by one subscription the later deposes the earlier, which stops.
- A subscription that is rewound (`harvest subscriptions rewind`) goes on from there, when the pipeline is next started.
  One that was added with a filter reads what that lets through; one with a snapshot to stop at reads no further.
- A subscription that was removed is an error: nothing was kept for it since.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import sql
from pydantic import Field

from harvest_lib.checkpoints.table import Checkpoint, CheckpointTable
from harvest_lib.clock import unix_ms
from harvest_lib.config.data_source import DataSource
from harvest_lib.database import connect, in_statement, translated
from harvest_lib.errors import CheckpointError, DatabaseUnavailable, OutboxTableError
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.pipeline.adaptors import Adaptor, Options, Side
from harvest_lib.pipeline.message import Message, Op
from harvest_lib.record import Row
from harvest_lib.source.filters import Subscription, subscription_filter
from harvest_lib.source.selection import Selection
from harvest_lib.source.snapshot import SnapshotSource

_log = logging.getLogger(__name__)

_IS_THERE = "SELECT EXISTS (SELECT FROM {} WHERE subscription = %s)"

_SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.005, 0.05
_AWAY_SECONDS = 0.5


class OutboxReading(Options):
    """A subscription to an outbox."""

    data_source: DataSource
    """Where Postgres is, as in `dataSource`."""

    outbox_table: str = Field(default="outbox", min_length=1)
    """The native outbox table. Default: outbox."""

    subscription: str = Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")
    """Its name, made if it is not there: then it has all records from the beginning."""

    batch_rows: int = Field(default=5_000, ge=1, le=100_000)
    """Records in a batch, at most. Default: 5,000."""


class OutboxReader:
    """`Reader` of an outbox."""

    def __init__(self, options: OutboxReading) -> None:
        self._options = options
        self._namespace = f"outbox/{options.subscription}"
        self._source: SnapshotSource | None = None
        self._checkpoints: CheckpointTable | None = None
        self._generation = -1
        self._saved = 0

    def read(self, last: Mapping[str, Message]) -> Iterator[Sequence[Message]]:
        before = last.get(self._namespace)
        source, checkpoints = self._open(is_begun=before is not None)
        checkpoint = checkpoints.lead(uuid4())
        if before is not None:
            checkpoint = self._newer(checkpoint, before.data)
        position = source.open(checkpoint.position)
        number, delivered = checkpoint.number, checkpoint.delivered
        generation = self._generation = checkpoint.generation
        pause = _SHORTEST_PAUSE_SECONDS
        waits = False
        while True:
            try:
                position = source.open(position) if waits else position
                page = source.read(self._options.batch_rows)
                waits = False
            except DatabaseUnavailable as error:  # it comes back by itself
                if not waits:
                    _log.warning(
                        "reader_waits", extra={"subscription": self._options.subscription, "reason": error.evidence}
                    )
                page, waits, pause = None, True, _AWAY_SECONDS
                source.close()
            if page is None:
                yield []
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                continue
            pause = _SHORTEST_PAUSE_SECONDS
            number, delivered, position = number + 1, delivered + len(page.rows), page.position
            place = {"generation": generation, "number": number, "delivered": delivered, "position": position}
            now = unix_ms()
            yield [*(_message(row, now) for row in page.rows), Message(Op.NOOP, now, self._namespace, place)]

    def kept(self, last: Mapping[str, Message]) -> None:
        """See `Reader`. Raises CheckpointError if another reads by the subscription, or it was moved."""
        place = last.get(self._namespace)
        if place is None or self._source is None or self._checkpoints is None:
            return
        if place.data["generation"] != self._generation or place.data["number"] <= self._saved:
            return  # of before the subscription was rewound, or said already
        seen, holds = self._source.retention_bounds(place.data["position"])
        try:
            is_saved = self._checkpoints.save(_checkpoint(place.data, seen=seen, holds=holds))
        except DatabaseUnavailable:
            return  # the next one says more
        if not is_saved:
            raise CheckpointError(
                f"the subscription {self._options.subscription!r} is another's by now, or was moved",
                evidence="its checkpoint cannot be written",
                next_step="see `harvest subscriptions list`; start the pipeline again to go on from its position",
            )
        self._saved = place.data["number"]

    def close(self) -> None:
        source, self._source = self._source, None
        checkpoints, self._checkpoints = self._checkpoints, None
        if source is not None:
            source.close()
        if checkpoints is not None:
            checkpoints.close()

    def _open(self, *, is_begun: bool) -> tuple[SnapshotSource, CheckpointTable]:
        options, subscription = self._options, Subscription(name=self._options.subscription)
        conninfo = options.data_source.conninfo()
        with connect(conninfo) as connection:
            table = OutboxTable.parse(options.outbox_table).placed(connection)
            if table.kind(connection) != "native":
                raise OutboxTableError(
                    f"the outbox {options.outbox_table} cannot be read by subscriptions: it is of goharvest's layout",
                    evidence="it has no column `transaction_id`",
                    next_step="make it the native one: `harvest migrate`",
                )
            if is_begun:
                self._require_there(connection, table)
        self._source = SnapshotSource(
            conninfo,
            Selection(table=table.identifier),
            subscription=subscription.name,
            filter_lookup=subscription_filter(table, subscription),
        )
        self._checkpoints = CheckpointTable(
            conninfo, table.subscriptions.identifier, subscription, outbox=table.identifier
        )
        return self._source, self._checkpoints

    def _require_there(self, connection: psycopg.Connection[Any], table: OutboxTable) -> None:
        statement = sql.SQL(_IS_THERE).format(in_statement(table.subscriptions.identifier))
        with translated():
            row = connection.execute(statement, (self._options.subscription,)).fetchone()
        if row is None or not row[0]:
            raise CheckpointError(
                f"the subscription {self._options.subscription!r} is not there any more",
                evidence="the pipeline's log has come some way by it; since it was removed, retention may have dropped "
                "records that it had not passed",
                next_step="move the pipeline's folder away and start again: it reads all that the outbox still has",
            )

    def _newer(self, checkpoint: Checkpoint, logged: Mapping[str, Any]) -> Checkpoint:
        """Return where to go on: the log is ahead of the subscription, unless that was rewound since."""
        if checkpoint.generation > logged["generation"]:
            return checkpoint
        if checkpoint.generation < logged["generation"] or checkpoint.number > logged["number"]:
            raise CheckpointError(
                f"the subscription {self._options.subscription!r} is not the one that the pipeline's log is of",
                evidence=f"it has generation {checkpoint.generation} and checkpoint {checkpoint.number}, the log "
                f"{logged['generation']} and {logged['number']}",
                next_step="give each pipeline a `subscription` of its own; if this one's was removed and recreated, "
                "move the pipeline's folder away",
            )
        return _checkpoint(logged)


def _checkpoint(place: Mapping[str, Any], **seen: Any) -> Checkpoint:
    return Checkpoint(
        generation=place["generation"],
        number=place["number"],
        delivered=place["delivered"],
        position=place["position"],
        **seen,
    )


def _message(row: Row, timestamp: int) -> Message:
    record_id, topic, key, value, names, contents = row
    headers = [[name, content] for name, content in zip(names, contents, strict=False)]
    return Message(Op.INSERT, timestamp, topic, {"id": record_id, "key": key, "value": value, "headers": headers})


ADAPTOR = Adaptor(
    summary="the records of the native outbox table, by a subscription",
    reads=Side(options=OutboxReading, make=OutboxReader),
)
