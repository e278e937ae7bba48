"""From an Airflow DAG to a proof in Dagster, with nothing in place of anything; then it is broken, in five ways.

The tests stand in order: each begins with what the ones before left. Records lost, repeated or out of order in Kafka
stay so; a harvester that stood still and a wrong type are fixed.
"""

import time
from uuid import uuid4

import psycopg
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from support.waiting import eventually

from harvest_lib.record.header import HEADER_NAME, stamp
from infra.demo.dagster_api import ENDED

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.usefixtures("loaded")]

FLIGHTS_OF_THE_DAY = 842
DAEMON, SUPERVISOR, AUDIT = "flights_harvester_daemon", "flights_supervisor", "flights_audit"
INSERT = """
INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value)
VALUES (now() - %s::interval, 'flights', %s, '{}') RETURNING id
"""


@pytest.fixture
def database(platform):
    with psycopg.connect(platform.dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def stopped(platform):
    """No daemon, and nobody who starts one or judges the outbox, until the test ends."""
    platform.dagster.switch(SUPERVISOR, "stop")
    eventually(lambda: not platform.dagster.ticks(SUPERVISOR), "the supervisor's last tick ends")
    eventually(lambda: at_rest(platform), "the daemon stops, one that the last tick asked for too")
    yield
    platform.dagster.switch(SUPERVISOR, "start")
    eventually(lambda: harvesting(platform), "the daemon runs again", seconds=120)


def at_rest(platform):
    """Have the daemons that live end, and return whether none does."""
    live = {run: status for run, status in platform.dagster.runs(DAEMON).items() if status not in ENDED}
    for run, status in live.items():
        if status != "CANCELING":
            platform.dagster.terminate(run)
    return not live


def harvesting(platform):
    return any(status in {"STARTED", "CANCELING"} for status in platform.dagster.runs(DAEMON).values())


def backlog(database):
    """Return how many records no term has delivered yet."""
    (waiting,) = database.execute(
        "SELECT count(*) FROM outbox o, outbox_subscriptions s"
        " WHERE NOT pg_visible_in_snapshot(o.transaction_id, s.low_watermark::pg_snapshot)"
    ).fetchone()
    return waiting


def audited(platform):
    """Audit, and return which checks fail; a blocking one fails the run."""
    platform.dagster.run(AUDIT)
    return set(platform.dagster.failing())


def newest(platform):
    """Return the message at the end of a partition of the topic."""
    consumer = Consumer({"bootstrap.servers": platform.bootstrap_servers, "group.id": uuid4().hex})
    try:
        for partition in range(4):
            low, high = consumer.get_watermark_offsets(TopicPartition("flights", partition), 10)
            if high > low:
                consumer.assign([TopicPartition("flights", partition, OFFSET_BEGINNING)])
                last = None
                deadline = time.monotonic() + 20
                while time.monotonic() < deadline:
                    message = consumer.poll(1.0)
                    if message is not None and message.error() is None:
                        last = message
                    elif last is not None:
                        return last
    finally:
        consumer.close()
    raise AssertionError("the topic is empty")


def produce(platform, records):
    """Produce (key, value, headers) one after the other, each once the one before has landed."""
    producer = Producer({"bootstrap.servers": platform.bootstrap_servers, "partitioner": "consistent"})
    for key, value, headers in records:
        producer.produce("flights", value, key, headers=headers)
        assert producer.flush(60) == 0


def test_a_day_comes_from_its_source_to_the_proof(platform, database):
    assert database.execute("SELECT count(*) FROM flights").fetchone() == (FLIGHTS_OF_THE_DAY,)
    committed, lost = database.execute("SELECT committed, lost FROM harvest_audit.summary").fetchone()
    assert (committed, lost) == (FLIGHTS_OF_THE_DAY, 0)
    assert platform.dagster.never_made() == []
    assert platform.dagster.judge() == {}
    assert len(platform.dagster.checks()) == 12
    assert harvesting(platform)


def test_a_harvester_that_was_stopped_for_long_fails_the_age_of_the_backlog(platform, database, stopped):
    database.execute(INSERT, ("1 hour", "a key"))
    failed = {name.removeprefix("outbox/flights_outbox:"): level for name, level in platform.dagster.judge().items()}
    # There is no leader either, which fails after a minute.
    assert {"leader": "ERROR", **failed} == {"leader": "ERROR", "backlog_age": "ERROR"}


@pytest.mark.long
def test_once_it_runs_again_nothing_fails(platform, database):
    eventually(lambda: backlog(database) == 0, "it is delivered")
    assert platform.dagster.judge() == {}


@pytest.mark.long
def test_a_column_of_the_wrong_type_fails_the_contract_of_its_table(platform, database):
    database.execute("ALTER TABLE flights ALTER COLUMN distance TYPE text")
    assert platform.dagster.judge() == {"postgres/flights:schema": "ERROR"}
    database.execute("ALTER TABLE flights ALTER COLUMN distance TYPE integer USING distance::integer")
    assert platform.dagster.judge() == {}


@pytest.mark.long
def test_records_that_kafka_has_no_more_are_lost(platform):
    first = newest(platform).partition()
    admin = AdminClient({"bootstrap.servers": platform.bootstrap_servers})
    for deleted in admin.delete_records([TopicPartition("flights", first, 3)]).values():
        deleted.result(60)
    assert audited(platform) == {"audit/flights_audit:lost"}


@pytest.mark.long
def test_a_record_that_somebody_sends_again_is_a_duplicate(platform):
    message = newest(platform)
    produce(platform, [(message.key(), message.value(), message.headers())])
    assert audited(platform) == {"audit/flights_audit:lost", "audit/flights_audit:duplicates"}


@pytest.mark.long
def test_two_records_of_a_key_that_change_places_are_out_of_order(platform, database, stopped):
    ids = [database.execute(INSERT, ("0", "swapped")).fetchone()[0] for _ in range(2)]
    make = stamp(uuid4())
    produce(platform, [("swapped", "{}", [(HEADER_NAME, make(each))]) for each in reversed(ids)])
    platform.harvest("subscriptions", "rewind", "default", "--to", "now", "--yes")
    assert audited(platform) == {
        "audit/flights_audit:lost",
        "audit/flights_audit:duplicates",
        "audit/flights_audit:ordering",
    }
