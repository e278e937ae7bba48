"""`outbox`: the records of the native outbox table, read through a subscription that belongs to the pipeline.

Each record becomes an insert in the namespace of its topic, with the data
`{"id": 7, "key": "…", "value": "…", "headers": [["name", "value"]]}`. The value is bytes if the column is `bytea`.

    NOOP  outbox/SUBSCRIPTION  {"generation": …, "number": …, "delivered": …, "position": {…}}

Promises
- The promises of the snapshot source hold: no record is skipped, records of a key come in the order of their commits
  (if writers lock the key), and a record is on disk before it is returned. The reader does not change rows.
- Retention does not drop a record before all writers have written it, because only `kept` writes the subscription's
  checkpoint.
- If two readers share a subscription, the later reader deposes the earlier reader. The earlier reader stops with an
  error.
- After `harvest subscriptions rewind`, the pipeline continues at the new position when it is next started. If the
  subscription has a filter, only matching records are read. If the subscription has a last snapshot, reading ends with
  this snapshot.
- A removed subscription is an error: since the removal, retention may have dropped records that were not read.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast
from uuid import uuid4

import psycopg
from psycopg import sql
from pydantic import Field

from harvest_lib.checkpoints.table import CheckpointTable
from harvest_lib.clock import unix_ms
from harvest_lib.config.data_source import DataSource
from harvest_lib.config.subscription_name import PATTERN
from harvest_lib.errors import CheckpointError, DatabaseUnavailable, OutboxTableError
from harvest_lib.native import NativeRows, encode
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.pipeline.adaptors import Adaptor, Options, Reader, Side
from harvest_lib.pipeline.encoded_messages import BYTES, EncodedMessages, JoinedMessages
from harvest_lib.pipeline.extended_json import as_dumped, dumps, quoted
from harvest_lib.pipeline.message import Mode, Op, PipelineMessage
from harvest_lib.postgres.database import connect, in_statement
from harvest_lib.postgres.translation import translated
from harvest_lib.record import ID, KEY, TOPIC, VALUE, Row
from harvest_lib.record.checkpoint import OutboxCheckpoint
from harvest_lib.source.filters import Subscription, subscription_filter
from harvest_lib.source.selection import Selection
from harvest_lib.source.snapshot import SnapshotSource

_log = logging.getLogger(__name__)

_IS_THERE = "SELECT EXISTS (SELECT FROM {} WHERE subscription = %s)"

_INSERT, _NOOP = BYTES[Mode.SYNC, Op.INSERT], BYTES[Mode.SYNC, Op.NOOP]
_PARTS = {"id": ID, "key": KEY, "value": VALUE}
"""The fields of a message that are unchanged columns of the row, each with the index of its column."""

_SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.005, 0.05
_AWAY_SECONDS = 0.5


class OutboxReading(Options):
    """The options of reading an outbox through a subscription."""

    data_source: DataSource
    """The Postgres server and database, as in `dataSource`."""

    outbox_table: str = Field(default="outbox", min_length=1)
    """The native outbox table. Default: outbox."""

    subscription: str = Field(pattern=PATTERN)
    """Name of the subscription. A missing subscription is created, and reads all records from the beginning."""

    batch_rows: int = Field(default=5_000, ge=1, le=100_000)
    """Records in a batch, at most. Default: 5,000."""


class OutboxReader(Reader):
    """`Reader` of an outbox."""

    needs_data = False

    def __init__(self, options: OutboxReading) -> None:
        self._options = options
        self._namespace = f"outbox/{options.subscription}"
        self._source: SnapshotSource | None = None
        self._checkpoints: CheckpointTable | None = None
        self._generation = -1
        self._saved = 0

    def read(self, last: Mapping[str, PipelineMessage]) -> Iterator[Sequence[PipelineMessage]]:
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
            except DatabaseUnavailable as error:  # the database is expected to come back without an operator
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
            yield messages_of(page.rows, unix_ms(), self._namespace, place)

    def kept(self, last: Mapping[str, PipelineMessage]) -> None:
        """See `Reader`. Raises CheckpointError if another reader uses the subscription, or if the subscription was
        rewound."""
        place = last.get(self._namespace)
        if place is None or self._source is None or self._checkpoints is None:
            return
        if place.data["generation"] != self._generation or place.data["number"] <= self._saved:
            return  # the position is older than the rewind of the subscription, or is saved already
        low_watermark, hold = self._source.retention_bounds(place.data["position"])
        try:
            checkpoint = OutboxCheckpoint(**place.data, low_watermark=low_watermark, retention_hold=hold)
            is_saved = self._checkpoints.save(checkpoint)
        except DatabaseUnavailable:
            return  # the next call of `read` reports it
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
                    next_step="convert it to the native layout: `harvest migrate`",
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

    def _newer(self, checkpoint: OutboxCheckpoint, logged: Mapping[str, Any]) -> OutboxCheckpoint:
        """Return the checkpoint to continue from. If the subscription was rewound after the log was written, that is
        the subscription's checkpoint, else the log's. Raises CheckpointError if the two belong to different
        subscriptions."""
        if checkpoint.generation > logged["generation"]:
            return checkpoint
        if checkpoint.generation < logged["generation"] or checkpoint.number > logged["number"]:
            raise CheckpointError(
                f"the subscription {self._options.subscription!r} is not the subscription of the pipeline's log",
                evidence=f"it has generation {checkpoint.generation} and checkpoint {checkpoint.number}, the log "
                f"{logged['generation']} and {logged['number']}",
                next_step="give each pipeline a `subscription` of its own; if the subscription was recreated, "
                "move the pipeline's folder away",
            )
        return OutboxCheckpoint(**logged)


def messages_of(
    rows: Sequence[Row], timestamp: int, namespace: str, place: Mapping[str, Any]
) -> "JoinedMessages | OutboxMessages":
    """Return an insert for each record of a page, followed by a NOOP with the position after the page.

    `place` is the data of the NOOP, `namespace` its namespace. The messages are encoded in C if the native library is
    in use and can encode all rows, else in Python."""
    found = encode(rows, dumps(place)) if isinstance(rows, NativeRows) else None
    if found is None:
        return OutboxMessages(list(rows), timestamp, namespace, place)
    encoded, topics = found
    heads = [(timestamp, _INSERT, topic.encode()) for topic in topics]
    return JoinedMessages(encoded, [*heads, (timestamp, _NOOP, namespace.encode())])


class OutboxMessages(EncodedMessages):
    """The messages that `messages_of` returns, encoded in Python."""

    __slots__ = ("_place", "_rows")

    def __init__(self, rows: Sequence[Row], timestamp: int, namespace: str, place: Mapping[str, Any]) -> None:
        """See `messages_of`."""
        topics = {topic: (timestamp, _INSERT, topic.encode()) for topic in {row[TOPIC] for row in rows}}
        heads = [topics[row[TOPIC]] for row in rows]
        heads.append((timestamp, _NOOP, namespace.encode()))
        super().__init__(heads, [*_encoded(rows), dumps(place)])
        self._rows = rows
        self._place = place

    def data(self, place: int) -> Mapping[str, Any]:
        """See `EncodedMessages`."""
        return _data(self._rows[place]) if place < len(self._rows) else self._place

    def column(self, name: str, begin: int, end: int) -> Sequence[Any]:
        """See `EncodedMessages`."""
        part = _PARTS.get(name)
        if part is None:
            return super().column(name, begin, end)
        found = [row[part] for row in self._rows[begin:end]]
        return found if end <= len(self._rows) else [*found, self._place.get(name)]


def _data(row: Row) -> Mapping[str, Any]:
    record_id, _, key, value, names, contents = row
    headers = [[name, content] for name, content in zip(names, contents, strict=False)]
    return {"id": record_id, "key": key, "value": value, "headers": headers}


def _encoded(rows: Sequence[Row]) -> Iterator[bytes]:
    """Yield the data of each row, encoded exactly as `dumps` encodes it."""
    for row in rows:
        record_id, _, key, value, names, contents = row
        try:
            text = "null" if value is None else quoted(cast("str", value))
            headers = _pair(names[0], contents[0]) if len(names) == len(contents) == 1 else _pairs(names, contents)
            found = as_dumped(f'{{"id":{record_id},"key":{quoted(key)},"value":{text},"headers":[{headers}]}}')
        except TypeError:  # bytes, or an array of arrays
            found = None
        yield dumps(_data(row)) if found is None else found


def _pairs(names: Sequence[str], contents: Sequence[str | None]) -> str:
    return ",".join([_pair(name, content) for name, content in zip(names, contents, strict=False)])


def _pair(name: str, content: str | None) -> str:
    return f"[{quoted(name)},{'null' if content is None else quoted(content)}]"


ADAPTOR = Adaptor(
    summary="the records of the native outbox table, by a subscription",
    reads=Side(options=OutboxReading, make=OutboxReader),
)
