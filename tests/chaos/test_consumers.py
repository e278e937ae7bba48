"""The examples, with consumers killed and frozen past their session: each message takes effect once."""

import json
import os
import random
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from support.waiting import eventually

from harvest_lib.consume import Clock, Publisher, Sequencer, new_producer_id, read_committed
from infra.consumers import SHORT_SESSION, ConsumerPool

PARTITIONS, MEMBERS = 4, 3
WAIT_SECONDS = 60
TESTS = Path(__file__).parents[1]
MOST_ROUNDS = 30
ROUNDS = [2, pytest.param(20, marks=pytest.mark.long)]

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]


@pytest.fixture
def settings(bootstrap_servers):
    return {"bootstrap.servers": bootstrap_servers}


@pytest.fixture
def ask(dsn):
    """Return the one value that a query finds, None while its table is missing."""

    def value(query):
        try:
            with psycopg.connect(dsn) as connection:
                return connection.execute(query).fetchone()[0]
        except psycopg.errors.UndefinedTable:
            return None

    return value


@pytest.fixture
def pool(dsn, bootstrap_servers, tmp_path):
    """Start consumers of a module."""
    pools = []

    def start(module, *arguments, members=MEMBERS):
        variables = {"HARVEST_DSN": dsn, "HARVEST_BOOTSTRAP_SERVERS": bootstrap_servers}
        variables["PYTHONPATH"] = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        folder = tmp_path / str(len(pools))
        settings = {"size": members, "variables": variables, "folder": folder}
        pools.append(ConsumerPool(module, [*arguments, *SHORT_SESSION], **settings))
        pools[-1].start()
        return pools[-1]

    yield start
    for each in pools:
        each.stop()


@contextmanager
def fed(write):
    """Call `write` again and again on a thread of its own; the yielded value says how often it has been."""
    done, ending = Counter(), threading.Event()

    def feed():
        while not ending.is_set():
            write(done["calls"])
            done["calls"] += 1

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield done
    finally:
        ending.set()
        thread.join()


def inject_faults(pool, rounds, *, written, taken):
    """Strike `rounds` times, and more often where no frozen one was in the middle of a transaction yet."""
    for turn in range(MOST_ROUNDS):
        if turn >= rounds and pool.fenced:
            break
        pool.inject_faults(written, taken)


def committed(settings, topic, partition, stop):
    """Return groups of committed messages until `stop` is set and there is nothing more."""
    for group in read_committed(settings, topic, partition, sequencer=Sequencer()):
        messages = list(group)
        if messages:
            yield messages
        elif stop.is_set():
            return


def everything(settings, topic):
    """Return the committed messages of a topic that nobody writes to any more."""
    client = Consumer({**settings, "group.id": topic})
    for partition in range(PARTITIONS):
        _, end = client.get_watermark_offsets(TopicPartition(topic, partition), 10)
        for group in read_committed(settings, topic, partition, sequencer=Sequencer(), end=end):
            yield from group
    client.close()


@pytest.mark.parametrize("rounds", ROUNDS)
def test_counts_stay_exactly_right(rounds, record_property, make_topic, settings, dsn, pool, ask):
    flights, counts = make_topic(partitions=PARTITIONS), make_topic(partitions=PARTITIONS)
    producer, written = Producer(settings), Counter()

    def write(call):
        for number in range(40):
            key = f"N{(call * 40 + number) % 211}"
            producer.produce(flights, b"{}", key=key)
            written[key] += 1
        producer.flush(60)
        time.sleep(0.02)

    consumers = pool("harvest_lib.examples.flight_counts", "--topic", flights, "--counts", counts, "--min-txn", "1")
    taken = lambda: ask("SELECT sum(flights) FROM flight_counts") or 0  # noqa: E731
    with fed(write):
        eventually(lambda: taken() > 0, "they count")
        inject_faults(consumers, rounds, written=written.total, taken=taken)
    eventually(lambda: taken() >= written.total(), "all is counted", seconds=WAIT_SECONDS)
    consumers.stop()
    with psycopg.connect(dsn) as connection:
        assert dict(connection.execute("SELECT key, flights FROM flight_counts").fetchall()) == written
    reported = {}
    for message in everything(settings, counts):
        count = json.loads(message.record.value())
        assert count["flights"] > reported.get(count["key"], 0), "no count is reported twice, or late"
        reported[count["key"]] = count["flights"]
    assert reported == written
    assert consumers.fenced > 0
    record_property("flights", written.total())
    record_property("refused", consumers.fenced)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_the_sum_of_all_money_stays_what_it_is(rounds, record_property, make_topic, settings, pool, ask):
    transfers, legs = make_topic(partitions=PARTITIONS), make_topic(partitions=PARTITIONS)
    publisher = Publisher(settings, producer_id=new_producer_id(), clock=Clock(time.time_ns))
    written, seen, sums, stop = Counter(), Counter(), Counter(), threading.Event()

    def write(call):
        for number in range(40):
            transfer = call * 40 + number
            body = {"id": transfer, "from": f"a{transfer % 17}", "to": f"b{transfer % 19}", "amount": transfer % 97}
            publisher.publish_uncommitted(transfers, json.dumps(body).encode(), partition=transfer % PARTITIONS)
        publisher.acknowledge(publisher.intents())
        publisher.flush()
        written["transfers"] += 40
        time.sleep(0.02)

    def watch(partition):
        for group in committed(settings, legs, partition, stop):
            moved = [json.loads(message.record.value()) for message in group]
            seen.update(leg["transfer"] for leg in moved)
            sums[sum(leg["amount"] for leg in moved)] += 1

    consumers = pool(
        "harvest_lib.examples.bank_transfer",
        *("--topic", transfers, "--debits", legs, "--credits", legs, "--min-txn", "1"),
    )
    watching = [threading.Thread(target=watch, args=(partition,)) for partition in range(PARTITIONS)]
    for thread in watching:
        thread.start()
    try:
        with fed(write):
            eventually(lambda: seen, "they transfer")
            inject_faults(consumers, rounds, written=lambda: written["transfers"], taken=lambda: len(seen))
        eventually(lambda: len(seen) >= written["transfers"], "all is transferred", seconds=WAIT_SECONDS)
        consumers.stop()
    finally:
        stop.set()
        for thread in watching:
            thread.join()
        publisher.close()
    assert set(sums) == {0}, "after each transaction the sum is what it was"
    assert set(seen.values()) == {2}, "a debit and a credit, once each"
    assert len(seen) == written["transfers"]
    assert ask("SELECT sum(balance) FROM balances") == 0
    assert consumers.fenced > 0
    record_property("transfers", len(seen))
    record_property("refused", consumers.fenced)


def test_over_two_topics_the_sum_is_right_once_both_are_read(make_topic, settings, pool, ask):
    transfers = make_topic(partitions=PARTITIONS)
    debits, credited = make_topic(partitions=PARTITIONS), make_topic(partitions=PARTITIONS)
    producer = Producer(settings)
    for number in range(400):
        body = {"id": number, "from": f"a{number % 17}", "to": f"b{number % 19}", "amount": 1}
        producer.produce(transfers, json.dumps(body).encode(), partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    consumers = pool(
        "harvest_lib.examples.bank_transfer", "--topic", transfers, "--debits", debits, "--credits", credited
    )
    moved = "SELECT sum(abs(balance)) FROM balances"
    eventually(lambda: ask(moved) == 800, "all is transferred")
    consumers.stop()
    read = [
        json.loads(message.record.value()) for topic in (debits, credited) for message in everything(settings, topic)
    ]
    assert len(read) == 800
    assert sum(leg["amount"] for leg in read) == 0


@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.long)])
def test_each_effect_arrives_once_at_the_end_of_a_chain(kills, make_topic, settings, dsn, pool, ask):
    topics = [make_topic(partitions=PARTITIONS) for _ in range(3)]
    chain = [
        pool("support.chain_stage", *("--name", f"link-{number}", "--topic", topic, *onward), members=1)
        for number, (topic, onward) in enumerate(
            zip(topics, [("--to", topics[1]), ("--to", topics[2]), ()], strict=True), start=1
        )
    ]
    producer, written = Producer(settings), Counter()

    def write(call):
        for number in range(40):
            producer.produce(topics[0], str(call * 40 + number), partition=number % PARTITIONS)
        producer.flush(60)
        written["messages"] += 40
        time.sleep(0.02)

    arrived = lambda: ask("SELECT sum(n) FROM effects") or 0  # noqa: E731
    with fed(write):
        eventually(lambda: arrived() > 0, "something arrives", seconds=WAIT_SECONDS)
        for link in kills * random.sample(chain, len(chain)):
            link.kill(0)
            goal = written["messages"]
            eventually(lambda goal=goal: arrived() >= goal, "it goes on", seconds=WAIT_SECONDS)
    eventually(lambda: arrived() >= written["messages"], "all arrives", seconds=WAIT_SECONDS)
    for link in chain:
        link.stop()
    with psycopg.connect(dsn) as connection:
        effects = connection.execute("SELECT count(*), min(n), max(n) FROM effects").fetchone()
    assert effects == (written["messages"], 1, 1)
