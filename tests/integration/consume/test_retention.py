"""Distance of readers from losing unread records, of topics that keep records for a while or permanently."""

import socket
import threading
import time

import psycopg
import pytest
from confluent_kafka import Producer, TopicPartition
from support.consuming import Counting, Running
from support.pipeline_ends import KafkaSource, collect
from support.scraping import scrape_until, series
from support.secured import printed
from support.topics import recreate
from support.waiting import eventually

from harvest_lib.consume import Consumer, PostgresStore, ShardLimits, create_tables
from harvest_lib.consume import retention as retention_module
from harvest_lib.consume.retention import RetentionWatch, retained
from harvest_lib.consume.telemetry import ConsumerTelemetry
from harvest_lib.telemetry import rare_answer
from harvest_lib.telemetry.server import Listener

pytestmark = pytest.mark.gate

HOUR = 3_600
AGE = HOUR / 4
KEPT = {"retention.ms": HOUR * 1_000, "segment.ms": 24 * HOUR * 1_000}


def write(settings, topic, number, *, partition=0, age_seconds=AGE):
    """Write records, and return their timestamp in seconds."""
    producer = Producer(settings)
    at = int((time.time() - age_seconds) * 1_000)
    for each in range(number):
        producer.produce(topic, b"v", key=str(each), partition=partition, timestamp=at)
    assert producer.flush(60) == 0
    return at / 1_000


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Let Kafka answer as late as it likes."""
    monkeypatch.setattr(retention_module, "_ANSWER_SECONDS", 60.0)


@pytest.fixture
def settings(bootstrap_servers):
    return {"bootstrap.servers": bootstrap_servers}


@pytest.fixture
def delete_before(admin):
    """Take away what retention would."""

    def delete(topic, offset):
        for deleted in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
            deleted.result(60)

    return delete


def asked(settings, positions):
    return {(each.topic, each.partition): each for each in retained(settings, positions)}


def test_what_is_unread_and_how_old_the_next_of_it_is(settings, make_topic, delete_before, monkeypatch):
    topic = make_topic(partitions=3, **KEPT)
    at = write(settings, topic, 10)
    write(settings, topic, 5, partition=1)
    delete_before(topic, 1)
    asked_at = time.time()
    found = asked(settings, {(topic, 0): 4, (topic, 1): 5, (topic, 2): 0, ("nowhere", 0): 3})
    assert {place: (each.unread, each.retained, each.retention_seconds) for place, each in found.items()} == {
        (topic, 0): (6, 3, HOUR),
        (topic, 1): (0, 5, HOUR),
        (topic, 2): (0, 0, HOUR),
    }
    assert found[topic, 0].expires_at == at + HOUR
    for partition in (1, 2):
        written_at = found[topic, partition].expires_at - HOUR
        assert asked_at <= written_at <= time.time(), "all is read: of a record that is written now"
    assert asked(settings, {}) == {}
    monkeypatch.setattr(retention_module, "Consumer", None)
    assert asked(settings, {(topic, 1): 5})[topic, 1].unread == 0, "nothing is read for the age of nothing"


def test_what_was_removed_before_it_was_read_was_as_old_at_least(settings, make_topic, delete_before):
    """Or the alert would end where the loss begins."""
    topic = make_topic(**KEPT)
    write(settings, topic, 10)
    delete_before(topic, 6)
    asked_at = time.time()
    (found,) = retained(settings, {(topic, 0): 4})
    assert (found.unread, found.retained, found.start) == (4, 0, 6)
    assert asked_at <= found.expires_at <= time.time()
    delete_before(topic, 10)
    (found,) = retained(settings, {(topic, 0): 4})
    assert (found.unread, found.retained, found.start) == (0, 0, 10)
    assert found.expires_at is None, "all is gone: it may have been of no transaction"


@pytest.mark.parametrize(
    "config", [{"retention.ms": -1}, {"cleanup.policy": "compact"}], ids=["keeps all", "keeps the last of each key"]
)
def test_a_topic_that_removes_nothing_by_age_has_no_time(settings, make_topic, config):
    topic = make_topic(**config)
    write(settings, topic, 10)
    (found,) = retained(settings, {(topic, 0): 4})
    assert (found.unread, found.retained) == (6, 4)
    assert found.retention_seconds is found.expires_at is None


def test_of_a_transaction_that_is_open_the_record_is_as_old(settings, make_topic, unique):
    topic = make_topic(**KEPT)
    producer = Producer({**settings, "transactional.id": unique("open")})
    producer.init_transactions(20)
    producer.begin_transaction()
    at = int((time.time() - AGE) * 1_000)
    producer.produce(topic, b"v", timestamp=at)
    assert producer.flush(60) == 0
    (found,) = retained(settings, {(topic, 0): 0})
    assert found.expires_at == at / 1_000 + HOUR
    producer.abort_transaction(20)


def test_a_topic_that_was_recreated_meanwhile(settings, make_topic, admin):
    topic = make_topic(**KEPT)
    write(settings, topic, 10)
    recreate(admin, topic)
    write(settings, topic, 3)
    found = eventually(lambda: retained(settings, {(topic, 0): 7, (topic, 5): 1}), "it has a leader")
    assert [(each.partition, each.unread, each.expires_at) for each in found] == [(0, 0, None)]


def test_what_may_not_be_seen_is_left_out(secured, monkeypatch):
    """A consumer may by default not ask for the settings of its topic: no time, and the rest all the same."""
    monkeypatch.setattr(retention_module, "_ANSWER_SECONDS", 10.0)  # hidden topics are waited for to the end
    secured.make_topic()
    who = ("--principal", "User:harvester", "--name", secured.name, "--topic", secured.topic)
    secured.put_in(printed("grants", "consumer", "kafka", *who, "--json"))
    write(secured.stack.kafka.operator_settings, secured.topic, 10)
    (found,) = retained(secured.kafka("harvester"), {(secured.topic, 0): 4, (f"{secured.name}.other", 0): 1})
    assert (found.topic, found.unread, found.retained) == (secured.topic, 6, 4)
    assert found.retention_seconds is found.expires_at is None


@pytest.fixture
def silent():
    """Address of a server that listens, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield "{}:{}".format(*server.getsockname())


@pytest.mark.full
@pytest.mark.parametrize("away", ["closed", "silent"])
def test_nobody_waits_for_brokers_that_do_not_answer(silent, monkeypatch, away):
    monkeypatch.setattr(retention_module, "_ANSWER_SECONDS", 1.0)
    servers = silent if away == "silent" else "127.0.0.1:9"
    asked_for = []
    is_asking, go_on = threading.Event(), threading.Event()

    def positions():
        asked_for.append(1)
        is_asking.set()
        assert go_on.wait(60)
        return {("t", 0): 1, ("t", 1): 1}

    watch = RetentionWatch({"bootstrap.servers": servers}, positions)
    assert not watch.seen()
    assert is_asking.wait(60)
    for _ in range(50):
        assert not watch.seen(), "nobody waits for who asks"
    go_on.set()

    def over():
        return not any(each.name == "harvest-retention" for each in threading.enumerate())

    eventually(over, "it gives up")
    assert not watch.seen()
    assert len(asked_for) == 1, "once a minute"


class Failing(Counting):
    is_away = False

    def consume_message(self, transaction, message):
        if self.is_away:
            raise psycopg.OperationalError("the database of the application is away")
        super().consume_message(transaction, message)


def test_a_consumer_that_is_behind_sees_its_time_run_out(dsn, settings, make_topic, unique, monkeypatch):
    monkeypatch.setattr(rare_answer, "_EVERY_SECONDS", 0.3)
    topic, application = make_topic(**KEPT), Failing()
    create_tables(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE counts (key text PRIMARY KEY, n bigint NOT NULL)")

    def store(shard):
        if application.is_away:
            raise psycopg.OperationalError("it is away for the consumer too")
        return PostgresStore(dsn, shard)

    consumer = Consumer(
        application,
        name=unique("counts"),
        topics=[topic],
        settings={**settings, "session.timeout.ms": 60_000},
        store=store,
        limits=ShardLimits(max_attempts=1000),
    )
    write(settings, topic, 10)
    with Listener("127.0.0.1:0", ConsumerTelemetry(consumer)) as listener:
        running = Running(consumer.run)
        place = ("0", topic)
        scrape_until(
            listener.address, lambda found: found.get(("harvest_read_retained_records", place)) == 10, "all is read"
        )
        application.is_away = True
        at = write(settings, topic, 7)
        found = scrape_until(
            listener.address,
            lambda found: (
                found.get(("harvest_unread_records", place)) == 7
                and ("harvest_unread_expiry_timestamp_seconds", place) in found
            ),
            "it is behind",
        )
        assert found["harvest_read_retained_records", place] == 10
        assert found["harvest_unread_expiry_timestamp_seconds", place] == at + HOUR
        assert found["harvest_read_retention_seconds", (topic,)] == HOUR
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        eventually(lambda: all(each.shard is None for each in consumer._owned.values()), "it has no shard")
        assert [each.position for each in consumer.owned()] == [10], "where it was is known all the same"
        application.is_away = False
        asked_at = time.time()
        found = scrape_until(
            listener.address, lambda found: found.get(("harvest_unread_records", place)) == 0, "caught up"
        )
        written_at = found["harvest_unread_expiry_timestamp_seconds", place] - HOUR
        assert asked_at <= written_at <= time.time(), "of a record that is written now"
        assert running.end() is None
        scrape_until(listener.address, lambda found: not series(found, "harvest_unread_records"), "it owns nothing")


@pytest.fixture
def source(settings, make_topic):
    return KafkaSource(settings["bootstrap.servers"], make_topic(**KEPT))


def test_a_pipeline_that_is_behind_says_so_too(source, reader, settings, monkeypatch):
    monkeypatch.setattr(rare_answer, "_EVERY_SECONDS", 0.3)
    write(settings, source.namespace, 10)
    reading = reader(content="record")
    assert not reading.retained(), "it has not begun"
    collect(reading, until=lambda found, _: len(found) == 10)
    at = write(settings, source.namespace, 4)
    (found,) = eventually(lambda: [each for each in reading.retained() if each.unread == 4], "asked")
    assert (found.topic, found.partition, found.unread, found.retained) == (source.namespace, 0, 4, 10)
    assert found.expires_at == at + HOUR


def test_the_end_of_a_transaction_is_not_unread(source, reader, settings, unique, monkeypatch):
    """Its marker has an offset, and is no record."""
    monkeypatch.setattr(rare_answer, "_EVERY_SECONDS", 0.3)
    producer = Producer({**settings, "transactional.id": unique("writer")})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(source.namespace, b"v", key="k")
    producer.commit_transaction(20)
    reading = reader(content="record")
    collect(reading, until=lambda found, _: reading._positions() == {(source.namespace, 0): 2})
    asked_at = time.time()
    (found,) = eventually(reading.retained, "asked")
    assert (found.unread, found.retained) == (0, 2)
    assert asked_at <= found.expires_at - HOUR <= time.time(), "all is read"
