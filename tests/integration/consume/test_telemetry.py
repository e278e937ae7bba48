"""The numbers and the health of a consumer: over shards that come, fail and go."""

import threading
from functools import partial

import psycopg
import pytest
from confluent_kafka import Producer
from support.consuming import Counting, Running
from support.scraping import get, scrape, series
from support.waiting import eventually

from harvest_lib.consume import Consumer, PostgresStore, ShardLimits, create_tables
from harvest_lib.consume.telemetry import ConsumerTelemetry
from harvest_lib.telemetry import catalogue
from harvest_lib.telemetry.server import Listener

pytestmark = pytest.mark.gate

PARTITIONS = 2


class Failing(Counting):
    """Counts, unless `is_away` makes it fail."""

    is_away = False

    def consume_message(self, transaction, message):
        if self.is_away:
            raise psycopg.OperationalError("the database of the application is away")
        super().consume_message(transaction, message)


@pytest.fixture
def topic(make_topic):
    return make_topic(partitions=PARTITIONS)


@pytest.fixture
def make(dsn, bootstrap_servers, topic, unique):
    create_tables(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE counts (key text PRIMARY KEY, n bigint NOT NULL)")

    name = unique("counts")

    def make(application, store=None, max_attempts=1000):
        return Consumer(
            application,
            name=name,
            topics=[topic],
            settings={"bootstrap.servers": bootstrap_servers, "session.timeout.ms": 60_000},
            store=store or partial(PostgresStore, dsn),
            limits=ShardLimits(max_attempts=max_attempts),
        )

    return make


def write(servers, topic, number):
    producer = Producer({"bootstrap.servers": servers})
    for each in range(number):
        producer.produce(topic, b"v", key=str(each))
    assert producer.flush(60) == 0


def test_what_a_consumer_did_is_counted_over_all_its_shards(make, topic, bootstrap_servers):
    application = Failing()
    consumer = make(application)
    write(bootstrap_servers, topic, 100)
    with Listener("127.0.0.1:0", ConsumerTelemetry(consumer)) as listener:
        address = listener.address
        assert get(address, "/livez")[0] == 503
        running = Running(consumer.run)
        eventually(lambda: series(scrape(address), "harvest_consumer_messages_total") == {(topic,): 100}, "counted")
        found = scrape(address)
        assert {name for name, _ in found if name.startswith("harvest_consumer_")} == {
            each.name for each in catalogue.OF_CONSUMERS
        }
        assert found["harvest_consumer_shards", (topic,)] == PARTITIONS
        assert found["harvest_consumer_transactions_total", (topic,)] >= PARTITIONS
        assert len(series(found, "harvest_consumer_offset")) == PARTITIONS
        for path in ("/livez", "/readyz", "/progress?seconds=60"):
            assert get(address, path)[0] == 200
        application.is_away = True
        write(bootstrap_servers, topic, 100)
        eventually(lambda: "has kept nothing" in get(address, "/progress?seconds=0.5")[1], "it is seen to fail")
        stuck = series(scrape(address), "harvest_consumer_stuck_seconds")
        assert stuck.keys() == {(str(each), topic) for each in range(PARTITIONS)}
        assert max(stuck.values()) > 0
        assert get(address, "/livez")[0] == 200, "the process turns"
        assert scrape(address)["harvest_consumer_messages_total", (topic,)] == 100
        application.is_away = False
        eventually(lambda: series(scrape(address), "harvest_consumer_messages_total") == {(topic,): 200}, "goes on")
        eventually(lambda: get(address, "/progress?seconds=0.5")[0] == 200, "it has everything")
        assert set(series(scrape(address), "harvest_consumer_stuck_seconds").values()) == {0}
        assert running.end() is None
        found = scrape(address)
        assert found["harvest_consumer_messages_total", (topic,)] == 200, "what has ended stays counted"
        assert found["harvest_consumer_shards", (topic,)] == 0
        assert get(address, "/livez")[0] == 503


@pytest.mark.full
def test_a_partition_that_has_only_failed_and_then_has_no_message_is_not_stuck(make, dsn, topic):
    is_away = threading.Event()
    is_away.set()

    def store(shard):
        if is_away.is_set():
            raise psycopg.OperationalError("the database of the store is away")
        return PostgresStore(dsn, shard)

    consumer = make(Counting(), store)
    telemetry = ConsumerTelemetry(consumer)

    def stuck():
        return dict(telemetry.readings())[catalogue.CONSUMER_STUCK]

    running = Running(consumer.run)
    eventually(lambda: len(stuck()) == PARTITIONS and min(stuck().values()) > 0, "each has failed")
    assert not telemetry.progress(0.0).is_healthy
    is_away.clear()
    eventually(lambda: set(stuck().values()) == {0}, "nothing waits for either")
    assert telemetry.progress(0.0).is_healthy
    assert running.end() is None


def test_a_message_that_is_parked_is_counted(make, topic, bootstrap_servers):
    consumer = make(Counting(fails=("3", "5")), max_attempts=1)
    write(bootstrap_servers, topic, 10)
    running = Running(consumer.run)

    def counted():
        return dict(ConsumerTelemetry(consumer).readings())[catalogue.CONSUMER_MESSAGES].get((topic,))

    eventually(lambda: counted() == 8, "the others are taken in")
    assert dict(ConsumerTelemetry(consumer).readings())[catalogue.CONSUMER_PARKED] == {(topic,): 2}
    assert running.end() is None
