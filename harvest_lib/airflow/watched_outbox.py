"""The outbox as a watcher of Airflow reads it: a subscription whose records become events.

    position in the subscription's row ── read: events ──► Airflow stores them ── save ──► the next position

Promises
- Each committed record is in an event, however late and with whatever id its transaction commits: the position is a
  snapshot of Postgres, as for every subscription.
- Retention keeps the segments of records whose events were not saved.
- Events that are read again, after a kill, are the same: same ids of records, same id of the event. For this, the
  snapshot at which a window of several records to an event ends is stored before the first event of the window is
  returned.
- Events of different records have different ids, even if an outbox is made anew or restored from a backup, and ids of
  records come again.
- A watcher that was replaced by another saves nothing: see the epochs of `CheckpointTable`.

An event is a dict for JSON:

    id       `<subscription>:<digest>:<id of the first record>`, the same whenever the event is repeated; the digest is
             of the identity of the table and of the server's timeline
    ids      ids of the records, ascending
    topics   topics of the records, each once
    keys     keys of the records, in the order of `ids`; only if they were asked for
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import uuid4

from psycopg import sql

from harvest_lib.checkpoints.table import CheckpointTable, LeadershipStatus
from harvest_lib.config import HarvestConfig
from harvest_lib.errors import CheckpointError, ConfigError, DatabaseUnavailable, OutboxTableError
from harvest_lib.harvester.assembly.factory import make_selection
from harvest_lib.outbox import OutboxTable, create_beside
from harvest_lib.outbox.identity import identity_of
from harvest_lib.outbox.kept_rows import keeps_rows
from harvest_lib.postgres.database import connect
from harvest_lib.record import ID, KEY, TOPIC, Row
from harvest_lib.source import Position, Selection, SnapshotSource
from harvest_lib.source.filters import Subscription, subscription_filter
from harvest_lib.source.selection import COLUMNS
from harvest_lib.subscriptions.admin import Subscriptions

PAGE_RECORDS = 500
"""Records that are read before the events of earlier ones are stored."""

_MOST_RECORDS = 1_000
_BEFORE_ALL_IDS = -(2**63)
_CHECK_SECONDS = 2.0
_DIGEST_LENGTH = 8
_LEFT_OUT = {
    "kafka_value": sql.SQL("NULL::text"),
    **{name: sql.SQL("ARRAY[]::text[]") for name in ("kafka_header_keys", "kafka_header_values")},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """What a watcher reads. `name` is the subscription. Without `topics` and `keys`, a regular expression of Postgres,
    the filter that the subscription has is used. `start`, `now` or `beginning`, counts if there is no such subscription
    yet. An event has at most `most_records` records, which became visible together."""

    name: str
    topics: Sequence[str] = ()
    keys: str | None = None
    start: str = "now"
    most_records: int = 1
    shows_keys: bool = False

    def check(self) -> None:
        """Raise ConfigError for a number of records that is out of range."""
        if not 1 <= self.most_records <= _MOST_RECORDS:
            raise ConfigError(
                f"an event cannot have {self.most_records} records",
                field="most_records",
                next_step=f"choose 1 to {_MOST_RECORDS}",
            )


class WatchedEvent(NamedTuple):
    """An event of a number of records, and the position after it. `payload` is None for a position that only passes
    records which the filter leaves out."""

    payload: dict[str, Any] | None
    position: Position
    records: int


class WatchReplaced(CheckpointError):
    """Another watcher reads the subscription, or a command moved it: go on at the position that it has now."""


class WatchedOutbox:
    """A watcher's connection to its subscription. A single thread uses it at a time.

    Calls raise DatabaseUnavailable if Postgres does not answer; the same call may be repeated. They raise another
    HarvestError if a retry will not help; then `close` and `open`.
    """

    def __init__(self, config: HarvestConfig, watch: WatchSettings) -> None:
        """Prepare; nothing is read yet. Raises ConfigError."""
        watch.check()
        if watch.name == config.subscription:
            raise ConfigError(
                f"the subscription {watch.name!r} is the one that the harvester delivers by",
                field="name",
                next_step="give the watcher a name of its own",
            )
        self._config = config
        self._watch = watch
        self._subscription = Subscription(name=watch.name)
        self._table = OutboxTable.parse(config.outbox_table)
        self._checkpoints: CheckpointTable | None = None
        self._source: SnapshotSource | None = None
        self._checked = 0.0
        self._held: list[Row] = []  # records of the window that do not fill an event yet

    def open(self) -> str:
        """Add the subscription unless it exists, take it over from a former watcher, and continue at its position.
        Return the position's snapshot."""
        conninfo = self._config.data_source.conninfo()
        with connect(conninfo) as connection:
            if self._config.columns is not None or not keeps_rows(connection, self._table):
                raise OutboxTableError(
                    f"no watcher can follow the outbox {self._table}: its rows are deleted when they were delivered",
                    evidence="it has goharvest's layout or mapped columns, or a subscription that marks",
                    next_step="watch the topic instead, by TopicEventTrigger; or turn it into the native table "
                    "(`harvest migrate`) and harvest with `source: snapshot`",
                )
            create_beside(connection, self._table)
            table = self._table.placed(connection)
            identity = identity_of(connection, table.identifier)
            self._subscribe(Subscriptions(connection, table, make_selection(self._config, table)))
        self._checkpoints = CheckpointTable(
            conninfo, table.subscriptions.identifier, self._subscription, outbox=table.identifier
        )
        self._checkpoint = self._checkpoints.lead(uuid4())
        if self._checkpoint.kept_in != "postgres":
            raise ConfigError(
                f"the subscription {self._watch.name!r} belongs to a harvester",
                field="name",
                next_step="give the watcher a name of its own",
            )
        self._checkpoints.require(self._checkpoint)
        self._outbox, self._identity = table, identity
        self._go_on_at(self._checkpoint.position)
        self._held = []
        return str(self._at["prev"])

    def _go_on_at(self, position: Position | None) -> None:
        self._source = SnapshotSource(
            self._config.data_source.conninfo(),
            Selection(table=self._outbox.identifier, columns={**COLUMNS, **_LEFT_OUT}),
            subscription=self._watch.name,
            filter_lookup=subscription_filter(self._outbox, self._subscription),
        )
        self._at = self._source.open(position)
        # After a restore or a failover, other records may have the ids of records that had their events.
        place = f"{self._identity}/{self._at['server']['timeline']}/{self._at['server'].get('forked', '')}"
        self._prefix = f"{self._watch.name}:{sha256(place.encode()).hexdigest()[:_DIGEST_LENGTH]}"

    def _subscribe(self, subscriptions: Subscriptions) -> None:
        watch = self._watch
        shards = subscriptions.readable(watch.name)
        if not shards:
            subscriptions.add(watch.name, start=watch.start, topics=watch.topics or None, keys=watch.keys)
            return
        found = sorted(shards[0].topics or ()), shards[0].keys
        if (watch.topics or watch.keys is not None) and found != (sorted(watch.topics), watch.keys):
            raise ConfigError(
                f"the subscription {watch.name!r} has another filter: topics {found[0]}, keys {found[1]!r}",
                field="topics, keys",
                next_step="give the watcher another name; or, to begin again, "
                f"`harvest subscriptions remove {watch.name}`",
            )

    def read(self) -> list[WatchedEvent]:
        """Return the next events; an empty list if there are none yet. With several records to an event, call it only
        when every earlier position is saved, because it saves the place where a window begins. Raises WatchReplaced."""
        try:
            if self._source is None:
                self._go_on_at(self._at)
            assert self._source is not None  # noqa: S101 - it is open now
            while (page := self._source.read(PAGE_RECORDS)) is not None:
                events = self._events(page.rows, self._at, page.position)
                self._at = page.position
                if events:
                    return events
            self._check()
        except DatabaseUnavailable:
            self._source, source = None, self._source
            if source is not None:
                source.close()
            raise
        return []

    def _events(self, rows: Sequence[Row], before: Position, after: Position) -> list[WatchedEvent]:
        """Return the events of the records between two positions, and of those that are held from the window's earlier
        pages."""
        rows, is_over, most = [*self._held, *rows], "cur" not in after, self._watch.most_records
        window = {name: after[name] for name in ("source", "prev", "server")}
        window |= (
            {"prev": before["prev"], "cur": before.get("cur", after["prev"])} if is_over else {"cur": after["cur"]}
        )
        if most > 1 and "cur" not in before and rows:
            self.save({**window, "after": _BEFORE_ALL_IDS})
        parts = [rows[n : n + most] for n in range(0, len(rows), most)]
        self._held = parts.pop() if parts and not is_over and len(parts[-1]) < most else []
        events = [WatchedEvent(self._payload(part), {**window, "after": part[-1][ID]}, len(part)) for part in parts]
        if is_over:
            last = events.pop() if events else WatchedEvent(None, after, 0)
            events.append(last._replace(position=after))
        return events

    def _payload(self, rows: Sequence[Row]) -> dict[str, Any]:
        payload: dict[str, Any] = {
            "id": f"{self._prefix}:{rows[0][ID]}",
            "ids": [row[ID] for row in rows],
            "topics": sorted({row[TOPIC] for row in rows}),
        }
        if self._watch.shows_keys:
            payload["keys"] = [row[KEY] for row in rows]
        return payload

    def save(self, position: Position, records: int = 0) -> None:
        """Store the position after `records` further records. Raises WatchReplaced if another watcher reads the
        subscription, or if a command moved it."""
        assert self._source is not None  # noqa: S101 - it is open
        assert self._checkpoints is not None  # noqa: S101 - it is open
        watermark, hold = self._source.retention_bounds(position)
        checkpoint = replace(
            self._checkpoint,
            number=self._checkpoint.number + 1,
            position=position,
            delivered=self._checkpoint.delivered + records,
            low_watermark=watermark,
            retention_hold=hold,
        )
        if not self._checkpoints.save(checkpoint):
            raise self._replaced()
        self._checkpoint = checkpoint

    def _check(self) -> None:
        """Raise WatchReplaced if a save would be refused. It looks every two seconds at most."""
        assert self._checkpoints is not None  # noqa: S101 - it is open
        if time.monotonic() - self._checked < _CHECK_SECONDS:
            return
        self._checked = time.monotonic()
        if self._checkpoints.leadership_status()[0] is not LeadershipStatus.LEADS:
            raise self._replaced()

    def _replaced(self) -> WatchReplaced:
        return WatchReplaced(
            f"the subscription {self._watch.name!r} was moved by a command, or another watcher reads it",
            evidence="its row has another epoch or generation",
            next_step="none after a command or a change of the triggerer; if it repeats, two watchers or two "
            "installations of Airflow have this name: give each its own",
        )

    def close(self) -> None:
        """Close the connections. A second call does nothing."""
        source, self._source = self._source, None
        checkpoints, self._checkpoints = self._checkpoints, None
        if source is not None:
            source.close()
        if checkpoints is not None:
            checkpoints.close()
