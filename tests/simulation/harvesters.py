"""The processes that harvest: the product's own loops and parts, wired as the product wires them."""

from functools import cache, partial

from harvest_lib.batching.loop import BatchLoop
from harvest_lib.batching.ports import BatchPorts
from harvest_lib.checkpoints.table import CheckpointTable
from harvest_lib.config import HarvestConfig, Limits
from harvest_lib.delivery.topic_troubles import Troubles
from harvest_lib.errors import HarvestError
from harvest_lib.events import LeaderRefreshed
from harvest_lib.harvester.assembly.factory import (
    make_delivery,
    make_parking,
    make_purging_delivery,
    make_purging_pages,
    make_selection,
    subscription_of,
)
from harvest_lib.harvester.hold_off import HoldOffs
from harvest_lib.leadership import TermEnd
from harvest_lib.leadership.pool import Pool
from harvest_lib.leadership.rivals import Rivals
from harvest_lib.outbox import OutboxTable
from harvest_lib.source import MarkPages, MarkSource, SnapshotSource, TransactionIdSource
from tests.simulation.election import SESSION_SECONDS, fence_of
from tests.simulation.kafka import CHECKPOINTS, Consumer
from tests.simulation.producer import Producer
from tests.simulation.scheduler import Process, Stopping
from tests.simulation.statements import OUTBOX, PARKED, SUBSCRIPTIONS

_DELIVERY_SECONDS = 0.8
_STANDBY_SECONDS = 0.1
LIMITS = Limits(
    io_error_backoff_seconds=0.05,
    min_poll_interval_seconds=0.1,
    heartbeat_timeout_seconds=1.0,
    drain_interval_seconds=0.5,
)
_TABLE = OutboxTable(("outbox",))


@cache
def _config(source, delivery, shards):
    return HarvestConfig(
        producer_kafka_config={"delivery.timeout.ms": str(int(_DELIVERY_SECONDS * 1000))},
        source=source,
        delivery=delivery,
        leadership="postgres",
        leader_group_id="harvest",
        checkpoint_topic=CHECKPOINTS,
        shards=shards,
        limits=LIMITS,
        session_timeout_seconds=SESSION_SECONDS,
    )


class Topics:
    """A stand-in for the knowledge of topics: it knows nothing, so that only Kafka's own refusals count."""

    smallest_limit = 1_000_000

    in_trouble = is_producer_outdated = False
    troubles = Troubles(frozenset())

    def blame(self, _topic, _reason):
        pass

    def close(self, _reasons):
        pass

    def refused(self, _rows, _largest=None):
        return {}

    def oversized(self, _rows, _largest):
        return set()

    def limit(self, _topic):
        return self.smallest_limit

    def forget(self):
        pass

    ask_again = forget

    def limit_of_producer(self):
        return self.smallest_limit


class Harvester:
    """One place in the pool: a process after the other, which harvests each shard under a term of its own."""

    def __init__(self, world, name, delivery):
        self._world, self._scheduler, self.name = world, world.scheduler, name
        self.delivery = delivery
        self.process = Process(name)
        self.cut_off_until = 0.0
        self._begin()

    @property
    def is_heard(self):
        now = self._scheduler.now
        return not self.process.dead and self.process.frozen_until <= now and self.cut_off_until <= now

    @property
    def is_idle(self):
        return self.is_heard and all(each.term is None for each in self.shards)

    @property
    def is_stopping(self):
        return any(each.is_stopping for each in self.shards)

    def is_ready(self, shard):
        """Return True if it may be given a term of a shard."""
        return self.is_heard and not self.is_stopping and self.shards[shard].is_ready

    def appoint(self, term):
        self.shards[term.shard].appoint(term)

    def stop(self):
        """End in order, and come back."""
        for each in self.shards:
            each.stopping.set()

    def revoke(self):
        """Have all terms revoked in order, as by a rebalance; each is released once it has quiesced."""
        for each in self.shards:
            if each.term is not None:
                each.term.end(TermEnd.REVOKED)

    def revive(self):
        """Start again, if it was killed."""
        if self.process.dead:
            self.process = Process(self.name, self.process.number + 1)
            self._begin()

    def _begin(self):
        hold_offs = HoldOffs(SESSION_SECONDS, self._scheduler.seconds)
        self.shards = [Shard(self._world, self, number, hold_offs) for number in range(self._world.plan.shards)]
        self.process.on_death.append(lambda: self._world.died(self))


class Shard:
    """A thread of a process: it waits for a term of its shard, and harvests under it."""

    def __init__(self, world, harvester, number, hold_offs):
        self._world, self._scheduler, self._plan = world, world.scheduler, world.plan
        self.name, self.delivery, self._number = harvester.name, harvester.delivery, number
        self._conninfo = f"dbname={self.name}"
        self.config = _config(self._plan.source, self.delivery, self._plan.shards)
        self._stands_back_until = 0.0
        self.term = self.loop = None
        self.stopping = Stopping(self._scheduler)
        self._hold_offs = hold_offs
        self._task = self._scheduler.start(harvester.process, self._live, number)

    @property
    def is_ready(self):
        return self.term is None and self._scheduler.now >= self._stands_back_until

    @property
    def is_stopping(self):
        return self.term is not None and self.stopping.is_set()

    def appoint(self, term):
        self.term, self.stopping = term, Stopping(self._scheduler)
        self._scheduler.wake(self._task)

    def _live(self):
        while True:
            while self.term is None:
                self._scheduler.sleep()
            term = self.term
            while term.is_live() and not self._hold_offs.is_over(term):
                self._scheduler.pause(_STANDBY_SECONDS)
            self._world.begins(term, term.leader_id, self.delivery)
            try:
                self.loop = self._make(term)
                self.loop.run()
            except HarvestError as error:
                self._world.failed(f"{self.name} ended: {error}")
            self._world.ends(term, self)
            if self.loop is not None and self.loop.holds_off:
                self._stands_back_until = self._scheduler.now + SESSION_SECONDS
                self._hold_offs.begin(term.shard, self.loop.epoch)
            self.term = self.loop = None

    def _emit(self, event):
        if isinstance(event, LeaderRefreshed):
            self._world.begins(self.term, event.leader_id, self.delivery)

    def _make(self, term):
        topics, pool = Topics(), Pool(leadership="postgres", fence=fence_of(self._plan, self.delivery))
        subscription = subscription_of(self.config, self._plan.source, self._number)
        rivals = Rivals(pool, SUBSCRIPTIONS, subscription.name, stale_seconds=SESSION_SECONDS)
        checkpoints = CheckpointTable(self._conninfo, SUBSCRIPTIONS, subscription, rivals=rivals)
        source = self._pages(term)
        if isinstance(source, MarkPages) and not self.config.exactly_once:
            delivery, store = make_purging_delivery(self.config, topics, source, self._make_producer)
        else:
            delivery, store = make_delivery(
                self.config,
                _TABLE,
                checkpoints,
                topics,
                self._number,
                consumer_provider=partial(Consumer, self._world.broker),
                producer_provider=self._make_producer,
            )
        ports = BatchPorts(
            source=source,
            delivery=delivery,
            store=store,
            is_exactly_once=self.config.exactly_once,
            parking=make_parking(self.config, _TABLE, checkpoints, topics, source),
            troubles=topics.troubles,
            limits=LIMITS,
            one_per_key=self.delivery == "barrier",
            emit=self._emit,
            delivered=lambda _: None,
        )
        return BatchLoop(term, ports, self.stopping)

    def _pages(self, term):
        if self._plan.source == "mark":
            names_ids = self.config.exactly_once
            source = MarkSource(self._conninfo, OUTBOX, PARKED, names_places=names_ids)
            return MarkPages(source) if names_ids else make_purging_pages(self.config, source, term)
        make = SnapshotSource if self._plan.source == "snapshot" else TransactionIdSource
        return make(self._conninfo, make_selection(self.config, _TABLE, self._number))

    def _make_producer(self, settings):
        return Producer(self._world, settings)
