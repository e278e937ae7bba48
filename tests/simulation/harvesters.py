"""The processes that harvest: the product's own loops and parts, wired as the product wires them."""

from functools import partial

from harvest_lib.batching.loop import BatchLoop
from harvest_lib.batching.marked_parking import MarkedParking
from harvest_lib.batching.parked_ids import ParkedIds
from harvest_lib.batching.parking import BatchParking
from harvest_lib.batching.ports import BatchPorts
from harvest_lib.checkpoints.stores import KafkaStore, PostgresStore
from harvest_lib.checkpoints.table import CheckpointTable
from harvest_lib.config import Limits
from harvest_lib.delivery import (
    AtLeastOnce,
    BatchDeliverySettings,
    CheckpointPlace,
    Lanes,
    LaneSettings,
    Pipelined,
    PipelinedBatches,
    exactly_once,
)
from harvest_lib.errors import HarvestError
from harvest_lib.events import LeaderRefreshed
from harvest_lib.marking.loop import MarkLoop
from harvest_lib.marking.ports import MarkPorts
from harvest_lib.outbox.parking_rules import ParkingRules
from harvest_lib.source import MarkPages, MarkSource, Selection, SnapshotSource, TransactionIdSource
from tests.simulation.election import SESSION_SECONDS
from tests.simulation.kafka import CHECKPOINTS, Consumer
from tests.simulation.producer import Producer
from tests.simulation.scheduler import Asked, Process, Stopping
from tests.simulation.statements import OUTBOX, PARKED, SET_ASIDE, SUBSCRIPTION, SUBSCRIPTIONS

_DELIVERY_SECONDS = 0.8
LIMITS = Limits(
    io_error_backoff_seconds=0.05,
    min_poll_interval_seconds=0.1,
    heartbeat_timeout_seconds=1.0,
    drain_interval_seconds=0.5,
    queue_timeout_seconds=2.0,
    max_in_flight_records=6,
    mark_query_records=4,
    send_concurrency=1,
    send_buffer=2,
)
_PLACE = CheckpointPlace(topic=CHECKPOINTS, partition=0, key="default/0")


def _nothing_to_acknowledge(_intents):
    raise AssertionError("nothing here delivers by acknowledgements")


class Topics:
    """What is known of topics: nothing, so that Kafka's own refusals are what counts."""

    smallest_limit = 1_000_000

    in_trouble = False

    def blame(self, _topic, _reason):
        pass

    def refused(self, _rows, _largest=None):
        return {}

    def oversized(self, _rows, _largest):
        return set()

    def limit(self, _topic):
        return self.smallest_limit

    def forget(self):
        pass


class Harvester:
    """One place in the pool: a process after the other, each of which waits for a term and harvests under it."""

    def __init__(self, world, name):
        self._world, self._scheduler, self._name = world, world.scheduler, name
        self.process = Process(name)
        self.cut_off_until = 0.0
        self._stands_back_until = 0.0
        self.term = self.loop = None
        self.ids = set()  # the leader ids of this term
        self._begin()

    @property
    def is_heard(self):
        now = self._scheduler.now
        return not self.process.dead and self.process.frozen_until <= now and self.cut_off_until <= now

    @property
    def is_ready(self):
        return self.is_heard and self.term is None and self._scheduler.now >= self._stands_back_until

    def appoint(self, term):
        self.term = term
        self._scheduler.wake(self._task)

    def stop(self):
        """End in order, and come back."""
        self._stopping.set()

    def revive(self):
        """Start again, if it was killed."""
        if self.process.dead:
            self.process = Process(self._name, self.process.number + 1)
            self._begin()

    def _begin(self):
        self.term = self.loop = None
        self._stopping = Stopping(self._scheduler)
        self._asked = self._delivery = None
        self._task = self._scheduler.start(self.process, self._live)
        self.process.on_death.append(lambda: self._world.died(self))

    def _live(self):
        while True:
            while self.term is None:
                self._scheduler.sleep()
            term, self._stopping = self.term, Stopping(self._scheduler)
            self.ids = {term.leader_id}
            self._world.begins(self.process, term, term.leader_id)
            try:
                self.loop = self._make(term)
                self.loop.run()
            except HarvestError as error:
                self._world.failed(f"{self._name} ended: {error}")
            self._world.ends(self.process, term, self)
            if self.loop is not None and self.loop.holds_off:
                self._stands_back_until = self._scheduler.now + SESSION_SECONDS
            self.term = self.loop = None

    def _emit(self, event):
        if isinstance(event, LeaderRefreshed):
            self.ids.add(event.leader_id)
            self._world.begins(self.process, self.term, event.leader_id)

    def _make(self, term):
        if self._world.plan.by_batches:
            return BatchLoop(term, self._tailing(), self._stopping)
        return MarkLoop(term, self._marking(), self._stopping)

    def _marking(self):
        barrier = self._world.plan.delivery == "barrier"
        if self._asked is None:  # both outlive terms
            kind = AtLeastOnce if barrier else Pipelined
            lanes = [kind(LaneSettings(kafka={}, **self._settings()), Topics()) for _ in range(self._world.plan.lanes)]
            self._delivery = lanes[0] if len(lanes) == 1 else Lanes(lanes)
            self._asked = Asked(self._scheduler, MarkSource(self._name, OUTBOX, PARKED))
        return MarkPorts(
            source=self._asked,
            delivery=self._delivery,
            parking=ParkingRules("hold_key", Topics().refused),
            limits=LIMITS,
            one_per_key=barrier,
            emit=self._emit,
            delivered=lambda _: None,
        )

    def _tailing(self):
        plan, topics = self._world.plan, Topics()
        checkpoints = CheckpointTable(self._name, SUBSCRIPTIONS, SUBSCRIPTION)
        settings = BatchDeliverySettings(kafka={}, **self._settings())
        if plan.delivery == "transactional":
            delivery = exactly_once(settings, topics, "harvest", _PLACE)
            providers = {
                "acknowledge": _nothing_to_acknowledge,
                "consumer_provider": partial(Consumer, self._world.broker),
            }
            store = KafkaStore(checkpoints, {}, _PLACE, "outbox", **providers)
        else:
            delivery, store = PipelinedBatches(settings, topics), PostgresStore(checkpoints, _nothing_to_acknowledge)
        pages = self._pages()
        return BatchPorts(
            source=pages,
            delivery=delivery,
            store=store,
            parking=MarkedParking("hold_key", topics, pages)
            if plan.source == "mark"
            else BatchParking(
                "hold_key", topics, ParkedIds(checkpoints, SET_ASIDE, SUBSCRIPTIONS, Selection(table=OUTBOX))
            ),
            limits=LIMITS,
            one_per_key=plan.delivery == "barrier",
            exactly_once=plan.delivery == "transactional",
            emit=self._emit,
            delivered=lambda _: None,
        )

    def _pages(self):
        if self._world.plan.source == "mark":
            return MarkPages(MarkSource(self._name, OUTBOX, PARKED))
        make = SnapshotSource if self._world.plan.source == "snapshot" else TransactionIdSource
        return make(self._name, Selection(table=OUTBOX))

    def _settings(self):
        return {
            "delivery_timeout_seconds": _DELIVERY_SECONDS,
            "producer_provider": lambda settings: Producer(self._world, settings),
        }
