"""All of a run's parts, and the product's seams to them: clock, ids, threads and connections."""

import json
import logging
import uuid
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

from harvest_lib.errors import KafkaUnavailable
from harvest_lib.source.pg_snapshot import NOTHING
from harvest_lib.source.sharding import shard_of
from tests.simulation.election import Election, LockElection
from tests.simulation.faults import Faults
from tests.simulation.harvesters import Harvester
from tests.simulation.history import History
from tests.simulation.kafka import PARTITIONS, Broker, origin
from tests.simulation.postgres import Server, Transaction
from tests.simulation.promises import Promises
from tests.simulation.reader import Reader
from tests.simulation.scheduler import Asked, CalledAtOnce, Scheduler
from tests.simulation.session import Connection
from tests.simulation.statements import Statements
from tests.simulation.writers import TOPIC, Writers, digest

_WALL_SECONDS = 1_800_000_000.0
_APART_SECONDS = 3_600
"""The clock of a machine is wrong by so much at most."""
_OWN_ADDRESS = 1 << 40
"""The bit that distinguishes a drawn id from the address of a network card."""
_BEGINNINGS = {"snapshot": {"prev": str(NOTHING)}, "transaction_id": {"transaction_id": "0", "id": 0}}


class World:
    """A run: made by a plan, driven by its scheduler."""

    def __init__(self, plan):
        self.plan = plan
        self.scheduler = Scheduler(plan.seed)
        self.history = History(self.scheduler)
        self.database = Server(self.scheduler)
        self.broker = Broker(self.scheduler, self._checkpoint_committed)
        self.promises = Promises(self)
        self.faults = Faults(self, plan)
        self.harvesters = []
        self.leaders = {}  # process and shard -> the leader id
        self._clocks = {}  # process -> by how many seconds its clock is wrong
        self.reader = Reader(self.broker, TOPIC)
        self.writers = Writers(self, plan)
        self.harvesters += [
            Harvester(self, f"harvester-{number}", plan.delivery_of(number)) for number in range(plan.harvesters)
        ]
        shards = range(plan.shards)
        self.elections = [LockElection(self)] if plan.by_lock else [Election(self, shard) for shard in shards]
        self._write_behind()

    @property
    def leading(self):
        """Return one of those who lead, or None."""
        leading = dict.fromkeys(each.holder for each in self.elections if each.holder is not None)
        return self.scheduler.dice.choice(list(leading)) if leading else None

    def shard_of(self, key):
        return shard_of(key, self.plan.shards)

    def nanoseconds(self):
        """Return the time that a process believes it is."""
        process = self.scheduler.current.process
        apart = self._clocks.setdefault(process, self.scheduler.dice.randint(-_APART_SECONDS, _APART_SECONDS))
        return int((_WALL_SECONDS + apart + self.scheduler.now) * 1e9)

    def new_producer_id(self):
        return self.scheduler.dice.getrandbits(40) | _OWN_ADDRESS

    def topic_partitions(self, _settings):
        """Return what Kafka says of its topics, or have it not answer."""
        fault = self.faults.strike("topics")
        self.scheduler.pause(self.scheduler.dice.uniform(0.0005, 0.003))
        if fault in {"cut", "refused", "lost", "late"}:
            raise KafkaUnavailable("no broker answers", next_step="none: it is simulated")
        return {TOPIC: PARTITIONS}

    def read(self):
        """Return what readers have who are promised that nothing comes twice, in each partition's order."""
        if self.plan.delivery != "sequenced":
            return self.broker.committed()
        self.reader.go_on()
        return self.reader.entries

    def uuid(self):
        return uuid.UUID(int=self.scheduler.dice.getrandbits(128), version=4)

    def connect(self, _conninfo, _settings=None, **_named):
        statements = Statements(self.database, partial(self._reported, self.scheduler.current.owner))
        return Connection(self.database, statements, self.faults)

    def rewind(self):
        """Have everything come again, as operators may."""
        transaction = Transaction()
        place = {"system": "7000", "timeline": "00000001", "lsn": self.database.lsn}
        position = {"source": self.plan.source, **_BEGINNINGS[self.plan.source], "server": place}
        Statements(self.database, None).rewind(transaction, position)
        self.database.commit(transaction, durable=True)
        self.promises.rewinds.update(self.database.subscriptions.keys())

    def release_parked(self):
        """Have parked records sent again, as operators do once Kafka takes them."""
        if not self.database.is_up:
            return
        transaction = Transaction()
        for record_id, entry in list(self.database.parked_ids.items()):
            if not entry[3] and not entry[4]:
                self.database.change(transaction, self.database.parked_ids, record_id, [*entry[:4], True, *entry[5:]])
        for record_id, (record, _, _) in list(self.database.parked.items()):
            self.database.change(transaction, self.database.parked, record_id)
            record.leader_id = None
            self.database.change(transaction, self.database.rows, record_id, record)
        self.database.commit(transaction, durable=True)

    # -- reports of the parts

    def tell(self, owner, kind, how, **fields):
        self.history.add(kind, how, owner[0].name, leader_id=self.leaders.get(owner), **fields)

    def produced(self, owner, leader_id, outbox_id, event):
        if outbox_id is not None:
            self.history.add("produce", "invoke", owner[0].name, leader_id=leader_id, id=outbox_id, event=event)
            self.promises.produced(owner, outbox_id)

    def reported(self, process, message, error, place):
        leader_id, outbox_id = origin(message.headers)
        if outbox_id is not None:
            fields = {"leader_id": leader_id, "id": outbox_id, "topic": message.topic}
            if error is None:
                self.promises.acknowledged(process, message.value)
                fields |= {"partition": place[0], "offset": place[1]}
            else:
                fields["reason"] = error.name()
            self.history.add("acknowledge", "ok" if error is None else "info", process.name, **fields)

    def begins(self, term, leader_id, delivery):
        owner = self.scheduler.current.owner
        if not self.plan.has_epochs and leader_id == term.leader_id:  # else it begins with its epoch
            self._say_term("invoke", owner, leader_id)
        self.leaders[owner] = str(leader_id)
        self.promises.begins(owner, term, leader_id, delivery)

    def ends(self, term, harvester):
        self._say_term("ok", self.scheduler.current.owner, term.leader_id)
        for each in self.elections:
            each.release(term, may_arrive=term.abandoned)
        if self.faults.are_over and term.ended is None:
            self.promises.released(harvester)

    def _say_term(self, how, owner, leader_id, epoch=None):
        process, shard = owner
        self.history.add("term", how, process.name, leader_id=str(leader_id), shard=shard, epoch=epoch)

    def died(self, harvester):
        self.scheduler.after(self.scheduler.dice.uniform(0.1, 1.0), harvester.revive)

    def failed(self, text):
        self.promises.say(text)

    def _reported(self, owner, kind, **fields):
        leader_id = fields.pop("leader_id", self.leaders.get(owner))
        if (events := fields.pop("_events", None)) is not None:
            self.promises.purged(owner[0], events)
        stored, asked_at = fields.pop("_stored", True), fields.pop("_asked_at", None)
        if kind == "checkpoint" and stored:
            self.promises.stored(leader_id, fields["shard"], fields["generation"], fields["number"])
            if asked_at is not None:
                self.promises.stored_late(owner, asked_at, fields["number"])
        if kind == "lead":
            self.promises.leads(leader_id, fields["shard"])
            self._say_term("invoke", owner, leader_id, fields["epoch"])
            return
        self.history.add(kind, "ok" if stored else "fail", owner[0].name, leader_id=leader_id, **fields)

    def _checkpoint_committed(self, entry):
        self.promises.committed_checkpoint(entry.partition, json.loads(entry.value))

    def _write_behind(self):
        """Flush the log now and then, as Postgres does of itself."""
        if self.database.is_up:
            self.database.flush()
        self.scheduler.after(self.scheduler.dice.uniform(0.2, 1.5), self._write_behind)

    def last_poll(self):
        """Put into the history what a reader finds at the end."""
        records = [
            {
                "topic": each.topic,
                "partition": each.partition,
                "offset": each.offset,
                "id": each.outbox_id,
                "leader_id": each.leader_id,
                "hash": digest(each.value),
                **{name: value for name, value in self.writers.record(each.value).items() if name != "hash"},
            }
            for each in self.read()
        ]
        self.history.add("poll", "ok", "reader", isolation="committed", records=records)


@contextmanager
def seams(world):
    """Put the world in the place of the clock, of ids, of threads and of the database, in the product's modules."""
    scheduler, plan = world.scheduler, world.plan
    clock = SimpleNamespace(
        CLOCK_BOOTTIME=0,
        clock_gettime=lambda _: scheduler.seconds(),
        time=lambda: _WALL_SECONDS + scheduler.now,
        time_ns=world.nanoseconds,
        sleep=scheduler.pause,
    )
    ids = SimpleNamespace(uuid4=world.uuid)
    threads = SimpleNamespace(start=_done_at_once)
    instead = {
        "harvest_lib.clock.time": clock,
        "harvest_lib.delivery.producer.time": clock,
        "harvest_lib.delivery.sequenced.time": clock,
        "harvest_lib.delivery.sequenced.new_producer_id": world.new_producer_id,
        "harvest_lib.delivery.sequenced.topic_partitions": world.topic_partitions,
        "harvest_lib.checkpoints.kafka_store.settled_ends": lambda *_, **__: {},  # every transaction ends here at once
        "harvest_lib.batching.loop.uuid": ids,
        "harvest_lib.source.mark_batches.CallThread": lambda source, _name: Asked(scheduler, source),
        "harvest_lib.source.mark_batches.uuid4": world.uuid,
        "harvest_lib.source.prefetch.CallThread": CalledAtOnce,
        "harvest_lib.delivery.transactional.threads": threads,
        "psycopg.connect": world.connect,
        "harvest_lib.batching.batch_size._FIRST_BATCH": plan.batch,
        "harvest_lib.batching.batch_size._FIRST_PAGE": max(1, plan.batch // 2),
        "harvest_lib.batching.batch_size._LARGEST_PAGE": 8,
        "harvest_lib.batching.batch._SLICE": 3,
        "harvest_lib.delivery.sequenced._CLEAR_SECONDS": 0.1,
        "harvest_lib.delivery.at_least_once._WIRE_SECONDS": 0.2,
        "harvest_lib.delivery.producer._ABANDON_SECONDS": 0.2,
    }
    with ExitStack() as stack:
        for name, value in instead.items():
            stack.enter_context(patch(name, value))
        logging.disable(logging.CRITICAL)
        stack.callback(logging.disable, logging.NOTSET)
        yield


def _done_at_once(_name, work):
    """Do the work of a thread when it is started."""
    work()
    return SimpleNamespace(join=lambda _timeout=None: None)
