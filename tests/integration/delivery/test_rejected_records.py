"""One record of each kind that Kafka, its client or we ourselves refuse, among good ones: it is parked, in every way of
harvesting, and stops nobody else."""

import random
import string
import time
from contextlib import closing
from functools import partial
from itertools import product

import psycopg
import pytest
from confluent_kafka import Consumer, Producer
from support.outbox import harvest_config, read_topic
from support.sequenced import read_acknowledged
from support.waiting import eventually

from harvest_lib.audit import read_topics
from harvest_lib.delivery import topic_facts
from harvest_lib.events import LeaderRefreshed
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.outbox import NativeTable, OutboxTable
from harvest_lib.outbox.parking import ParkedRecords
from harvest_lib.record import INTERNAL_TOPICS
from harvest_lib.telemetry.counts import KAFKA_ERRORS

pytestmark = pytest.mark.full

OUTBOX = OutboxTable(("outbox",))
SOURCES = ["mark", "snapshot", "transaction_id"]
DELIVERIES = ["barrier", "pipelined", "transactional", "sequenced"]
WAYS = list(product(SOURCES, DELIVERIES))
GOING_ON = [way for way in WAYS[:8] if way != ("mark", "pipelined")]
"""The ways in which other topics go on while one takes nothing. Marked records that are pipelined wait for it."""
every_way = pytest.mark.parametrize(("source", "delivery"), WAYS, ids=["-".join(way) for way in WAYS])

INSERT = """
INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
VALUES (now(), %s, %s, %s, %s::text[], %s::text[]) RETURNING id
"""

FORGED_ID = bytes([0x41] * 6 + [0x1F, 0xC2, 0x81] + [0x41] * 7).decode()
"""Reads as an id of a message, a version 1 UUID, and is text."""
FORGED_ORIGIN = "\x01" + "l" * 16 + "\x01" * 8
"""Reads as a `harvest` header."""


class Writing:
    """An outbox of one source's kind, and what was written to it."""

    def __init__(self, dsn, source):
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.parked_table = "outbox_parked" if source == "mark" else "outbox_parked_ids"
        if source == "mark":
            OUTBOX.create(self.connection)
            ParkedRecords(OUTBOX).create(self.connection)
            self.connection.execute("ALTER TABLE outbox ALTER COLUMN kafka_value TYPE text")
        else:
            NativeTable(outbox=OUTBOX, value_type="text").create(self.connection)

    def insert(self, topic, key, value="v", names=(), contents=()):
        names, contents = (each if isinstance(each, str) else list(each) for each in (names, contents))
        return self.connection.execute(INSERT, (topic, key, value, names, contents)).fetchone()[0]

    def parked(self):
        rows = self.connection.execute(f"SELECT id, held, reason FROM {self.parked_table} ORDER BY id")  # noqa: S608 - ours
        return {record_id: "held" if held else reason for record_id, held, reason in rows}

    def close(self):
        self.connection.close()


@pytest.fixture
def outbox(dsn, source):
    with closing(Writing(dsn, source)) as made:
        yield made


@pytest.fixture
def config(dsn, bootstrap_servers, group_id, source, delivery):
    def make(**settings):
        own = {"leadership": "solo", "source": source, "delivery": delivery, **settings}
        return harvest_config(dsn, bootstrap_servers, group_id, **own)

    return make


@pytest.fixture(scope="module", autouse=True)
def internal_topics(bootstrap_servers):
    """Have Kafka make the topic of its groups; that of transactions it makes for the first of these."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "makes-it"})
    consumer.subscribe(["^no-such-topic.*"])
    eventually(lambda: consumer.poll(0.1) or "__consumer_offsets" in consumer.list_topics(timeout=60).topics)
    consumer.close()


def delivered(bootstrap_servers, topic):
    """Return the ids of what readers of committed records see, once each, and each key's as they came."""
    records = read_topic(bootstrap_servers, topic, isolation="read_committed")
    return list(dict.fromkeys(record.outbox_id for record in records))


def refusals(make_topic, group_id, topic):
    """Return topic, value, header names and contents of each, and what its reason has to have in it."""
    small = make_topic(partitions=1, **{"max.message.bytes": 3_000})
    large = make_topic(partitions=1, **{"max.message.bytes": 3_000_000})
    internal = {name: ((name,), "Kafka's own") for name in INTERNAL_TOPICS}
    own = {
        name: ((f"{group_id}.{name}", "garbage"), "the harvester's own")
        for name in ("default.checkpoint", "other.checkpoint")
    }
    return {
        **internal,
        **own,
        "missing": ((f"{topic}.none",), "does not exist"),
        "illegal": (("no/such topic",), "not legal"),
        "empty": (("",), "not legal"),
        "dots": (("..",), "not legal"),
        "too large for the topic": ((small, "y" * 9_000), "max.message.bytes"),
        "too large for another": ((topic, "y" * 1_500_000), "max.message.bytes"),
        "too large for a large one": ((large, "y" * 3_500_000), "max.message.bytes"),
        "headers that are too large": ((small, "v", ["h"], ["y" * 9_000]), "size"),
        "unequal headers": ((topic, "v", ["a", "b"], ["1"]), "2 header names"),
        "no header name": ((topic, "v", [None], ["1"]), "a header without a name"),
        "nested": ((topic, "v", "{a,b}", "{{x},{y}}"), "header"),
        "forged id": ((topic, "v", ["message-id"], [FORGED_ID]), "message-id"),
        "forged id behind another": ((topic, "v", ["message-id", "message-id"], ["mine", FORGED_ID]), "message-id"),
        "forged origin": ((topic, "v", ["harvest"], [FORGED_ORIGIN]), "harvest"),
    }


@every_way
def test_each_refusal_costs_its_own_key_only(outbox, config, make_topic, group_id, bootstrap_servers, source, delivery):
    """In whatever order; and a second time nothing is found to do. Later records of its key are held in its topic,
    and delivered to another."""
    topic, compacted = make_topic(partitions=3), make_topic(partitions=1, **{"cleanup.policy": "compact,delete"})
    large = make_topic(partitions=1, **{"max.message.bytes": 3_000_000})
    bad = refusals(make_topic, group_id, topic)
    if delivery == "sequenced":
        bad["compacted"] = ((compacted,), "cleanup.policy")
    order = [*bad, *["good"] * 3 * len(bad)]
    random.Random(f"{source} {delivery}").shuffle(order)
    good, expected, held = [], {}, []
    with outbox.connection.transaction():
        for number, name in enumerate(order):
            if name == "good":
                good.append(
                    outbox.insert(topic, f"good-{number % 7}", names=["message-id", "harvest"], contents=["1", "2"])
                )
                continue
            values, reason = bad[name]
            expected[outbox.insert(values[0], f"bad {name}", *values[1:])] = reason
            held.append(outbox.insert(values[0], f"bad {name}"))
            if values[0] != topic:
                good.append(outbox.insert(topic, f"bad {name}"))
        between = [outbox.insert(large, "good", "z" * 1_500_000), outbox.insert(large, "good")]
    Harvest(config(shards=1)).drain(60)
    found = outbox.parked()
    assert {each for each, reason in found.items() if reason == "held"} == set(held)
    for each, reason in expected.items():
        assert reason in found[each]
    assert set(found) == {*held, *expected}
    assert sorted(delivered(bootstrap_servers, topic)) == good
    assert delivered(bootstrap_servers, large) == between
    for name in ("too large for the topic", "too large for a large one", "compacted"):
        if name in bad:
            assert delivered(bootstrap_servers, bad[name][0][0]) == [], f"{name}: what follows is held"
    read = {record.outbox_id for record in read_acknowledged(bootstrap_servers, topic)}
    assert read == set(good), "readers of ours see them, whatever their own headers are called"
    audited = {each.id for batch in read_topics({"bootstrap.servers": bootstrap_servers}, [topic]) for each in batch}
    assert audited == set(good)
    more = outbox.insert(topic, "good-0")
    Harvest(config()).drain(60)
    assert outbox.parked() == found
    assert sorted(delivered(bootstrap_servers, topic)) == [*good, more]


@pytest.mark.parametrize(("source", "delivery"), WAYS[:8], ids=["-".join(way) for way in WAYS[:8]])
def test_a_topic_of_which_nothing_is_known_beforehand_is_found_out(
    outbox, config, make_topic, bootstrap_servers, monkeypatch, delivery
):
    """Kafka refuses the whole transaction for it, and purges all that is in it without a reason."""
    monkeypatch.setattr("harvest_lib.delivery.topic_troubles._PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr("harvest_lib.delivery.topics.INTERNAL_TOPICS", frozenset())
    monkeypatch.setattr("harvest_lib.delivery.topics.ask", ask_nothing_of_internal_ones)
    topic = make_topic(partitions=2)
    with outbox.connection.transaction():
        good = [outbox.insert(topic, f"good-{number}") for number in range(100)]
        bad = outbox.insert("__consumer_offsets", "bad")
        good += [outbox.insert(topic, f"good-{number}") for number in range(100)]
    Harvest(config()).drain(60)
    (found,) = outbox.parked().items()
    assert found[0] == bad
    assert ("Topic authorization failed" if delivery == "transactional" else "Invalid topic") in found[1]
    assert sorted(delivered(bootstrap_servers, topic)) == good


def ask_nothing_of_internal_ones(admin, topics):
    found = topic_facts.ask(admin, topics)
    for facts in found.values():
        facts.is_internal, facts.cleanup_policy = False, "delete"
    return found


REFUSED = 300
MOST_RESTARTS = 2
"""Once the broker is asked, all is known; the first batch may have been on its way."""


TOO_LARGE = {"value": ["y" * 9_000], "header": ["v", ["h"], ["y" * 9_000]]}
TOO_LARGE_KIND = ("MSG_SIZE_TOO_LARGE",)
WHERE = [*((*way, "value") for way in WAYS[:8]), *((*way, "header") for way in WAYS[4:8])]


@pytest.mark.parametrize(("source", "delivery", "where"), WHERE, ids=["-".join(way) for way in WHERE])
def test_many_refused_records_cost_hardly_a_restart(outbox, config, make_topic, bootstrap_servers, where, caplog):
    """By count: each restart is a new producer, and under `transactional` a transaction that was for nothing.

    A batch that is late on a busy machine restarts too, and does not count.
    """
    small = make_topic(partitions=2, **{"max.message.bytes": 3_000})
    with outbox.connection.transaction():
        good = []
        for number in range(REFUSED):
            outbox.insert(small, f"bad-{number}", *TOO_LARGE[where])
            good.append(outbox.insert(small, f"good-{number}"))
    Harvest(config()).drain(60)
    assert len(outbox.parked()) == REFUSED
    assert sorted(delivered(bootstrap_servers, small)) == good
    assert [each.getMessage() for each in caplog.records].count("batch_refused") <= MOST_RESTARTS


def test_what_compression_does_not_help_costs_a_restart_each(dsn, make_topic, bootstrap_servers, group_id):
    """Only the broker knows then; the records after it are not refused with it."""
    small = make_topic(partitions=2, **{"max.message.bytes": 3_000})
    with closing(Writing(dsn, "snapshot")) as outbox:
        for number in range(10):
            text = "".join(random.Random(number).choices(string.ascii_letters + string.digits, k=9_000))
            outbox.insert(small, f"bad-{number}", text)
            outbox.insert(small, f"good-{number}", "x" * 9_000)
        settings = {"delivery": "pipelined", "producer_kafka_config": {"compression.type": "lz4"}}
        harvest = Harvest(harvest_config(dsn, bootstrap_servers, group_id, leadership="solo", **settings))
        restarts, errors = [], KAFKA_ERRORS.read().get(TOO_LARGE_KIND, 0)
        harvest.set_event_handler(lambda event: isinstance(event, LeaderRefreshed) and restarts.append(event))
        harvest.drain(60)
        assert len(outbox.parked()) == 10
    assert len(delivered(bootstrap_servers, small)) == 10
    assert len(restarts) <= 10 + MOST_RESTARTS
    assert harvest.measures.refreshes.read() == {("0",): len(restarts)}
    assert harvest.measures.batches.read()["0", "failed"] >= 1
    assert KAFKA_ERRORS.read().get(TOO_LARGE_KIND, 0) > errors


class BehindTheTimes:
    """A producer whose clock is a minute late for some topics."""

    def __init__(self, settings, *, late):
        self._late, self._producer = late, Producer(settings)

    def produce(
        self, topic, value=None, key=None, partition=-1, callback=None, on_delivery=None, timestamp=0, headers=None
    ):
        if topic in self._late:
            timestamp = int((time.time() - 60) * 1000)
        self._producer.produce(topic, value, key, partition, callback, on_delivery, timestamp, headers or [])

    def __len__(self):
        return len(self._producer)

    def __getattr__(self, name):
        return getattr(self._producer, name)


@pytest.mark.parametrize(("source", "delivery"), WAYS[:8], ids=["-".join(way) for way in WAYS[:8]])
def test_a_topic_that_refuses_our_clock_holds_up_others_only_for_a_while(
    outbox, config, make_topic, bootstrap_servers, monkeypatch
):
    """It is waited for, as it may pass; then its records are parked, and the others go."""
    monkeypatch.setattr("harvest_lib.delivery.topic_troubles._PATIENCE_SECONDS", 3.0)
    topic, late = make_topic(partitions=2), make_topic(partitions=1, **{"message.timestamp.before.max.ms": 30_000})
    provider = partial(BehindTheTimes, late={late})
    only = outbox.insert(late, "bad")
    soon = config(limits={"heartbeat_timeout_seconds": 1.5})  # a batch that is refused is given up after as long
    with Harvest(soon, kafka_producer_provider=provider) as harvest:
        eventually(lambda: harvest.is_leader)
        waited_until = time.monotonic() + 5.0
        eventually(lambda: time.monotonic() > waited_until or outbox.parked())
        assert outbox.parked() == {}, "nothing else waits: it is waited for"
        with outbox.connection.transaction():
            good = [outbox.insert(topic, f"good-{number % 50}") for number in range(500)]
            held = outbox.insert(late, "bad")
        eventually(lambda: harvest.delivered_records == len(good), "the others are delivered")
        found = eventually(lambda: len(outbox.parked()) > 1 and outbox.parked(), "those are parked")
    assert "timestamp" in found[only].lower()
    assert found[held] == "held" or "timestamp" in found[held].lower(), "the one behind it may have been sent with it"
    assert sorted(delivered(bootstrap_servers, topic)) == good


@pytest.mark.parametrize(("source", "delivery"), GOING_ON, ids=["-".join(way) for way in GOING_ON])
def test_other_topics_go_on_while_one_takes_nothing_and_it_follows_in_order(
    outbox, config, make_topic, bootstrap_servers
):
    """Nothing is parked meanwhile. Each record of the other topic is in the same page as one of the paused topic."""
    topic, late = make_topic(partitions=2), make_topic(partitions=1, **{"message.timestamp.before.max.ms": 30_000})
    provider = partial(BehindTheTimes, late={late})
    with Harvest(config(limits={"heartbeat_timeout_seconds": 1.5}), kafka_producer_provider=provider) as harvest:
        eventually(lambda: harvest.is_leader)
        known = outbox.insert(topic, "known")
        eventually(lambda: harvest.delivered_records == 1, "a topic that takes records is known")
        good, waiting = [known], []
        for page in range(3):
            with outbox.connection.transaction():
                for number in range(100):
                    good.append(outbox.insert(topic, f"good-{number % 10}"))
                    waiting.append(outbox.insert(late, f"late-{number % 10}"))
            eventually(lambda: harvest.delivered_records == len(good), f"the others of page {page}")
        assert outbox.parked() == {}
        provider.keywords["late"].clear()
        eventually(lambda: harvest.delivered_records == len(good) + len(waiting), "the paused ones")
        assert outbox.parked() == {}
    assert sorted(delivered(bootstrap_servers, topic)) == good
    assert in_order_of_keys(delivered(bootstrap_servers, late)) == in_order_of_keys(waiting)


def in_order_of_keys(ids):
    """Return the ids of ten keys that take turns, each key's in their order."""
    found = {}
    for each in ids:
        found.setdefault(each // 2 % 10, []).append(each)
    return sorted(found.values())
