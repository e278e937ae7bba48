"""The trigger that watches an outbox for Airflow's assets: an event for each committed record.

    read a page ──► an event each ──► stored in Airflow's database ──► position saved in Postgres ──► the next page

Airflow calls this an acknowledged shared stream (`airflow.triggers.shared_stream`, Airflow 3.3): it tells the producer
which events its database has.

Promises
- Each committed record is in an event, whatever is killed, and when the DAG is paused or changed: the position of the
  subscription passes a record only after Airflow's database has the event; see `settling`.
- An event may be there twice, if the watcher ends within 10 s after the event was stored. Both have the same `id` in
  their payload. `RunPerEventOperator` starts a single run for them.
- Records that are committed while no triggerer runs follow when one runs.
- No event has a value of a record; it has keys only if they are asked for.
- Errors end no watcher, because Airflow would start it again at once. They are logged with cause and next step when
  they begin, and once a minute while they last.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

from harvest_lib.airflow.hooks.outbox import HarvestHook
from harvest_lib.airflow.provider import OUTBOX_ID
from harvest_lib.airflow.triggers.settling import Settling
from harvest_lib.airflow.triggers.troubles import WatcherTroubles
from harvest_lib.airflow.watched_outbox import WatchedEvent, WatchedOutbox, WatchReplaced, WatchSettings
from harvest_lib.errors import DatabaseUnavailable
from harvest_lib.source import Position

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

_SAVE_SECONDS = 0.5


class OutboxEventTrigger(BaseEventTrigger):
    """Watch an outbox, for an `AssetWatcher`.

    The watcher is a subscription `name` of the outbox, with a position of its own: give each watcher, in each
    installation of Airflow, another name. It is added when the watcher first runs. Retention keeps the segments that it
    has not passed; `harvest subscriptions remove NAME` ends that when the watcher is gone.
    """

    def __init__(
        self,
        *,
        name: str,
        conn_id: str = OUTBOX_ID,
        topics: Sequence[str] = (),
        keys: str | None = None,
        start: str = "now",
        most_records: int = 1,
        shows_keys: bool = False,
        poll_seconds: float = 1.0,
    ) -> None:
        """Make a trigger. It reads nothing.

        `conn_id` names an Airflow connection of type `outbox`. `topics`, and `keys`, a regular expression of Postgres,
        select records. `start` is where a watcher without a subscription begins: `now` or `beginning`. An event has at
        most `most_records` records, 1 to 1,000; only records that became visible together share an event. With more
        than 1, the next records are read 10 s after Airflow stored the events before. `shows_keys` puts keys into the
        events. Raises ConfigError.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.name = name
        self.conn_id = conn_id
        self.topics = [topics] if isinstance(topics, str) else sorted(topics)
        self.keys = keys
        self.start = start
        self.most_records = most_records
        self.shows_keys = shows_keys
        self.poll_seconds = poll_seconds
        _watch(self._arguments()).check()

    def _arguments(self) -> dict[str, Any]:
        names = ("name", "conn_id", "topics", "keys", "start", "most_records", "shows_keys", "poll_seconds")
        return {name: getattr(self, name) for name in names}

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and arguments that recreate this trigger in another process."""
        return f"{__name__}.{type(self).__name__}", self._arguments()

    def shared_stream_key(self) -> Hashable:
        """Return the key by which watchers share a stream: only equal ones do."""
        return __name__, tuple(map(str, self._arguments().values()))

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> "OutboxEvents":
        """Return the producer of the events."""
        return OutboxEvents(kwargs["conn_id"], _watch(kwargs), kwargs["poll_seconds"])

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        """Fire for each event of the stream."""
        async for payload in shared_stream:
            yield TriggerEvent(payload)  # type: ignore[no-untyped-call]

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Raise NotImplementedError: the trigger is for an `AssetWatcher`, and Airflow reads its stream."""
        raise NotImplementedError("OutboxEventTrigger is for an AssetWatcher")
        yield  # makes this a generator


def _watch(arguments: dict[str, Any]) -> WatchSettings:
    names = ("name", "topics", "keys", "start", "most_records", "shows_keys")
    return WatchSettings(**{name: arguments[name] for name in names})


class _Stored(NamedTuple):
    """The position after a number of records whose events Airflow stored."""

    position: Position
    records: int


class OutboxEvents(SharedStreamProducer):
    """The producer of a watcher's events. A thread of its own reads and saves, so that the event loop never waits."""

    def __init__(self, conn_id: str, watch: WatchSettings, poll_seconds: float) -> None:
        """Prepare; nothing is read yet."""
        self._conn_id = conn_id
        self._watch = watch
        self._poll_seconds = poll_seconds
        self._thread = ThreadPoolExecutor(1, "harvest-watch")
        self._outbox: WatchedOutbox | None = None
        self._is_open = False
        self._troubles = WatcherTroubles(f"the watcher {watch.name!r} of the outbox {conn_id!r}")
        self._outstanding = 0
        self._settling: Settling[_Stored] = Settling()
        self._repeats = False  # the events after the saved position have to be read again
        self._advanced = asyncio.Event()

    async def open_stream(self) -> AsyncIterator[tuple[Any, WatchedEvent]]:
        """Yield payloads of events, each with the event, for ever."""
        while True:
            events = await self._until_done(self._read)
            for event in events:
                if event.payload is None:
                    continue
                self._outstanding += 1
                yield event.payload, event
                await asyncio.sleep(0)  # so that the subscriber's queue stays short
            while self._outstanding:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._advanced.wait(), _SAVE_SECONDS)
                self._advanced.clear()
                await self._until_done(self._save)
            if events and events[-1].payload is None:
                self._settling.add_empty(_Stored(events[-1].position, 0))
            await self._until_done(self._save)
            while self._watch.most_records > 1 and len(self._settling) and not self._repeats:
                await asyncio.sleep(_SAVE_SECONDS)
                await self._until_done(self._save)
            if self._repeats:
                self._repeats = False
                await self._close()
            elif not events:
                await asyncio.sleep(self._poll_seconds)

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Note the events that Airflow's database has. Events after one that it may lack are read again."""
        stored = []
        for item in batch:
            self._outstanding -= 1
            self._repeats = self._repeats or item.outcome.failed > 0 or item.outcome.acked == 0
            if not self._repeats:
                stored.append(item.broker_payload)
        if stored:
            self._settling.add(_Stored(stored[-1].position, sum(each.records for each in stored)))
        self._advanced.set()

    async def aclose(self) -> None:
        """Close the connections. What has not settled is repeated by the next watcher."""
        await self._close()
        self._thread.shutdown(wait=False)

    async def _until_done(self, step: Callable[[], Awaitable[_T]]) -> _T:
        """Take a step until it succeeds, and tell its errors."""
        while True:
            try:
                done = await step()
            except Exception as error:  # noqa: BLE001 - Airflow would start the watcher again at once
                await asyncio.sleep(self._troubles.tell(error))
            else:
                self._troubles.end()
                return done

    async def _read(self) -> list[WatchedEvent]:
        """Return the next events. Nothing is outstanding, so after an error all may be opened again."""
        try:
            if self._outbox is None:
                self._outbox = WatchedOutbox(await HarvestHook(self._conn_id).aconfig(), self._watch)
                at = await self._in_thread(self._outbox.open)
                _log.info("the watcher %r of the outbox %r begins at %s", self._watch.name, self._conn_id, at)
                self._is_open = True
            return await self._in_thread(self._outbox.read)
        except Exception as error:
            if not (self._is_open and isinstance(error, DatabaseUnavailable)):
                await self._close()
            raise

    async def _save(self) -> None:
        """Save the position of what is settled. A lost connection is made again under the same epoch, so that a watcher
        that was replaced in the meantime saves nothing."""
        if self._outbox is None or not (settled := self._settling.settled()):
            return
        records = sum(each.records for each in settled)
        try:
            await self._in_thread(partial(self._outbox.save, settled[-1].position, records))
        except WatchReplaced as error:
            self._troubles.tell(error)
            self._repeats = True
        self._settling.remove(len(settled))

    async def _close(self) -> None:
        """Close the connections. The next reading begins at the position that is saved."""
        self._settling.clear()
        self._is_open, outbox, self._outbox = False, self._outbox, None
        if outbox is not None:
            await self._in_thread(outbox.close)

    async def _in_thread(self, call: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)
