"""The terms of a process: runs a thread and a loop for each shard that the process leads, and emits their events."""

import logging
import threading
from collections.abc import Callable, Collection
from functools import partial

from harvest_lib.batching.loop import BatchLoop
from harvest_lib.clock import Deadline, boot_seconds
from harvest_lib.config import HarvestConfig
from harvest_lib.events import (
    Event,
    EventHandler,
    LeaderAcquired,
    LeaderFenced,
    LeaderRefreshed,
    LeaderRevoked,
    Meter,
    MeterRead,
)
from harvest_lib.harvester.assembly.engine import Callbacks, Engine
from harvest_lib.harvester.hold_off import HoldOffs
from harvest_lib.harvester.observers.measures import HarvestMeasures
from harvest_lib.harvester.observers.topic_counts import TopicCounts
from harvest_lib.leadership import Leadership, Term, TermEnd
from harvest_lib.telemetry.harmless import Harmless

_log = logging.getLogger("harvest_lib.harvester.harvest")  # its documented name

_STANDBY_WAIT_SECONDS = 0.1


class Terms:
    """The terms that a process serves. `serve` is called once, on a separate thread. Any thread may call the other
    methods."""

    def __init__(self, config: HarvestConfig, stopping: threading.Event) -> None:
        self._config = config
        self._stopping = stopping
        self._hold_offs = HoldOffs(config.session_timeout_seconds)
        self._threads: dict[Term, threading.Thread] = {}
        self._meter_lock = threading.Lock()
        self._meter = Meter("throughput", boot_seconds())
        self._served: dict[int, Term] = {}  # by shard
        self.loops: dict[int, BatchLoop] = {}  # by shard
        self.measures = HarvestMeasures()
        self.topic_counts: TopicCounts | None = None
        self.handler: EventHandler | None = None
        self._harmless = Harmless(_log, "event_handler_failed")
        self.turned_at = boot_seconds()
        """Time at which the loop of `serve` last turned, in boot seconds."""

    @property
    def shards(self) -> list[int]:
        """The shards that this process leads now with a valid lease."""
        return sorted(shard for shard, term in self._served.copy().items() if term.is_live())

    @property
    def delivered_records(self) -> int:
        """The number of records delivered over all terms."""
        return self._meter.total

    @property
    def idle(self) -> bool:
        """True if this process leads all shards, and no shard has a backlog."""
        loops = self.loops.copy()
        return len(loops) == self._config.shards and all(loop.idle for loop in loops.values())

    def serve(
        self,
        leadership: Leadership,
        engine: Engine,
        guarded: Callable[[Callable[[], None]], None],
        before_term: Callable[[], None],
    ) -> None:
        """Serve the terms that the election gives to this process, until `stopping` is set. `guarded` is called in each
        new thread, with the work of the thread. `before_term` is called before each term."""
        threads = self._threads
        while not self._stopping.is_set():
            self.turned_at = boot_seconds()
            live = leadership.terms(_STANDBY_WAIT_SECONDS, known=threads)
            for term in [term for term, thread in threads.items() if not thread.is_alive()]:
                del threads[term]
            if not live and not threads:
                engine.stand_by()
            for term in live:
                if term not in threads and self._may_begin(term, threads):
                    lead = partial(self._lead, term, engine, before_term)
                    name = f"harvest-shard-{term.shard}"
                    threads[term] = threading.Thread(target=guarded, args=(lead,), name=name, daemon=True)
                    threads[term].start()
            if set(live).difference(threads):  # wait here: `terms` returns at once for a term that may not begin yet
                self._stopping.wait(_STANDBY_WAIT_SECONDS)

    def join(self, deadline: Deadline, slack_seconds: float) -> None:
        """Wait for the threads, until `slack_seconds` before a deadline. A thread that still waits for an unavailable
        server does not prevent the end of the process, because it is a daemon thread."""
        for thread in self._threads.values():
            thread.join(max(0.0, deadline.remaining_seconds - slack_seconds))

    def _may_begin(self, term: Term, threads: Collection[Term]) -> bool:
        """Return True if a term may begin: it is live, no hold-off applies, no thread still serves an earlier term of
        its shard, and the process is not stopping."""
        is_over = all(other.shard != term.shard for other in threads)
        return is_over and self._hold_offs.is_over(term) and term.is_live() and not self._stopping.is_set()

    def _lead(self, term: Term, engine: Engine, before_term: Callable[[], None]) -> None:
        before_term()
        shard = term.shard
        callbacks = Callbacks(
            emit=partial(self._emit, shard),
            delivered=partial(self._delivered, shard),
            measures=self.measures.shard(shard),
            topic_counts=self.topic_counts,
        )
        loop = engine.loop(term, self._stopping, callbacks)
        self._served[shard] = term
        self.loops[shard] = loop
        self._emit(shard, LeaderAcquired(leader_id=term.leader_id, shard=shard))
        try:
            loop.run()
        finally:
            if loop.holds_off:
                self._hold_offs.begin(shard, loop.epoch)
            fenced = term.ended is TermEnd.FENCED
            self._emit(shard, LeaderFenced(shard=shard) if fenced else LeaderRevoked(shard=shard))
            self.loops.pop(shard, None)
            self._served.pop(shard, None)

    def _delivered(self, shard: int, records: int) -> None:
        self.measures.delivered.add(str(shard), amount=records)
        with self._meter_lock:
            self._meter.add(records)
            now = boot_seconds()
            is_due = self._meter.due(now, self._config.limits.min_metrics_interval_seconds)
            stats = self._meter.read(now) if is_due else None
        if stats is not None:
            self._emit(0, MeterRead(stats=stats))

    def _emit(self, shard: int, event: Event) -> None:
        self.measures.count(shard, event)
        if not isinstance(event, MeterRead):
            loop = self.loops.get(shard)
            named = {"leader_id": str(loop.leader_id) if loop is not None else None}
            if self._config.shards > 1:
                named["shard"] = str(shard)
            _log.info(_EVENT_NAMES[type(event)], extra=named)
        if self.handler is not None:
            with self._harmless:
                self.handler(event)


_EVENT_NAMES = {
    LeaderAcquired: "leader_acquired",
    LeaderRefreshed: "leader_refreshed",
    LeaderFenced: "leader_fenced",
    LeaderRevoked: "leader_revoked",
}
