"""Rows that are marked, handed over natively: the same records arrive as from Python, and failures are found."""

import random
import time
import uuid
from contextlib import suppress

import psycopg
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, KafkaException, TopicPartition
from support.outbox import harvest_config, read_topic
from support.waiting import eventually

from harvest_lib.delivery import LaneSettings, Pipelined, Reports, Topics
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.native import NativeRows, NativeSender, implementation, library, rows_of
from harvest_lib.outbox import OutboxTable, ParkedRecords
from harvest_lib.record.rows import RowQueue

pytestmark = [
    pytest.mark.gate,
    pytest.mark.skipif(
        implementation().library is None, reason=f"there is no native library here: {implementation().reason}"
    ),
]

_COLUMNS = "id, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values"
_INSERT = """
INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
VALUES (now(), %s, %s, %s, %s, %s)
"""
_TEXTS = ["", "a", "ключ", "鍵" * 20, "🔑", "line\nbreak", "\x01\x7f"]
_LIMITS = {"send_concurrency": 1, "mark_query_records": 500, "max_in_flight_records": 2_000}


@pytest.fixture
def outbox(dsn):
    """A table as goharvest has it: return the function that fills it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        OutboxTable.parse("outbox").create(connection)
        ParkedRecords(OutboxTable.parse("outbox")).create(connection)

    def fill(rows):
        with psycopg.connect(dsn) as connection:
            connection.cursor().executemany(_INSERT, list(rows))

    return fill


def generated(topic, count, seed):
    dice = random.Random(seed)
    for _ in range(count):
        headers = [
            (dice.choice(["a", "ключ", ""]), dice.choice([*_TEXTS, None])) for _ in range(dice.choice([0, 1, 3]))
        ]
        names, contents = [list(each) for each in zip(*headers, strict=True)] if headers else ([], [])
        value = None if dice.random() < 0.1 else dice.choice(_TEXTS) * dice.choice([1, 30])
        yield topic, dice.choice(_TEXTS), value, names, contents


def harvest(dsn, servers, group, **settings):
    config = harvest_config(
        dsn,
        servers,
        group,
        leadership="solo",
        source="mark",
        **{"delivery": "pipelined", "limits": _LIMITS, **settings},
    )
    return Harvest(config)


def in_kafka(servers, topic, *, has_ids):
    """Return what a topic has by partition, without who sent it, and without the records of the delivery's own."""
    found = {}
    for each in read_topic(servers, topic, isolation="read_uncommitted"):
        if each.outbox_id is not None:
            found.setdefault(each.partition, []).append((each.key, each.value, each.headers[has_ids:-1]))
    return found


@pytest.mark.parametrize("delivery", ["pipelined", "transactional", "sequenced"])
def test_both_ways_write_the_same(
    dsn, bootstrap_servers, group_id, make_topic, outbox, monkeypatch, handed_over, delivery
):
    found = {}
    for way in ("python", "native"):
        monkeypatch.setenv(library.VARIABLE, way)
        library.implementation.cache_clear()
        topic = make_topic(partitions=3)
        outbox(generated(topic, 4_000, seed=7))
        assert harvest(dsn, bootstrap_servers, group_id, delivery=delivery).drain(120).records == 4_000
        assert handed_over["records"] == (4_000 if way == "native" else 0)
        found[way] = in_kafka(bootstrap_servers, topic, has_ids=delivery == "sequenced")
    assert found["native"] == found["python"]


def test_the_table_is_empty_afterwards_and_nothing_was_sent_twice(
    dsn, bootstrap_servers, group_id, make_topic, outbox, handed_over
):
    topic = make_topic()
    outbox((topic, f"k{number % 7}", f"{number}", [], []) for number in range(5_000))
    assert harvest(dsn, bootstrap_servers, group_id).drain(60).records == 5_000
    assert handed_over["records"] == 5_000
    assert [int(each.value) for each in read_topic(bootstrap_servers, topic)] == list(range(5_000))
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (0,)


def test_a_record_has_the_time_at_which_it_was_handed_over(dsn, bootstrap_servers, group_id, make_topic, outbox):
    topic = make_topic()
    outbox([(topic, "k", "v", [], [])])
    before = int(time.time() * 1000)
    harvest(dsn, bootstrap_servers, group_id).drain(60)
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "r", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    kind, timestamp = eventually(lambda: consumer.poll(0.2)).timestamp()
    consumer.close()
    assert kind == TIMESTAMP_CREATE_TIME
    assert before <= timestamp <= time.time() * 1000


def test_a_record_that_is_parked_leaves_the_others_in_order(
    dsn, bootstrap_servers, group_id, make_topic, outbox, handed_over
):
    """The page before it goes natively. Its own goes row by row, and so does what is marked once it is parked."""
    topic = make_topic(**{"max.message.bytes": 3_000})
    values = ["x" * 5_000 if number == 900 else f"{number}" for number in range(1_500)]
    outbox((topic, "k", value, [], []) for value in values)
    harvest(dsn, bootstrap_servers, group_id, parking="skip").drain(120)
    assert handed_over["records"] in {500, 1_000}, "the last page may have been marked before"
    assert [each.value for each in read_topic(bootstrap_servers, topic)] == [v for v in values if len(v) < 5_000]
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (0,)
        assert connection.execute("SELECT id FROM outbox_parked").fetchall() == [(901,)]


# -- the lane by itself


@pytest.fixture
def lane(bootstrap_servers):
    """Make a lane that sends in rounds, with more of the producer's settings."""
    made = []

    def make(**settings):
        kafka = {"bootstrap.servers": bootstrap_servers, **settings}
        made.append(Pipelined(LaneSettings(kafka=kafka, delivery_timeout_seconds=600), Topics(kafka)))
        made[-1].begin(uuid.uuid4())
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def page(dsn, outbox):
    """Make a page of what is written."""
    connection = psycopg.connect(dsn, autocommit=True)

    def make(rows):
        outbox(rows)
        found = rows_of(connection.cursor(binary=True).execute(f"SELECT {_COLUMNS} FROM outbox ORDER BY id"))  # noqa: S608
        assert isinstance(found, NativeRows)
        return found

    yield make
    connection.close()


def queued(*pages):
    queue = RowQueue()
    for each in pages:
        queue.add(each)
    return queue


def polled(delivery, count):
    acknowledged, failed = [], []

    def enough():
        reports = delivery.poll(0.1)
        acknowledged.extend(reports.acknowledged)
        failed.extend(reports.failed)
        return len(acknowledged) + len(failed) >= count

    eventually(enough)
    return acknowledged, failed


def test_a_round_is_reported_by_ids_when_all_of_it_is_there(bootstrap_servers, make_topic, lane, page, handed_over):
    topic = make_topic()
    rows, delivery = page((topic, "k", f"{number}", [], []) for number in range(1_000)), lane()
    queue = queued(rows[:600], rows[600:])
    delivery.send(queue, lambda: True)
    assert not queue
    assert not delivery.takes
    assert delivery.outstanding == 1_000
    assert polled(delivery, 1_000) == (rows.ids, [])
    assert delivery.takes
    assert handed_over["records"] == 1_000
    assert [int(each.value) for each in read_topic(bootstrap_servers, topic)] == list(range(1_000))


def test_a_page_stays_where_it_is_when_it_may_not_go_on(make_topic, lane, page):
    topic = make_topic()
    rows, delivery = page((topic, "k", "v", [], []) for _ in range(500)), lane()
    queue, asked = queued(rows), iter([True, True, False])
    delivery.send(queue, lambda: next(asked))
    assert queue.ids == rows.ids[200:]
    assert polled(delivery, 200) == (rows.ids[:200], [])


def test_what_a_full_queue_does_not_take_stays(make_topic, lane, page):
    topic = make_topic()
    rows = page((topic, "k", "v", [], []) for _ in range(500))
    delivery = lane(**{"queue.buffering.max.messages": 150, "linger.ms": 500_000})
    queue = queued(rows)
    delivery.send(queue, lambda: True)
    assert queue.ids == rows.ids[150:]
    assert queue.pages, "it is a page still"
    delivery._producer.flush(60)  # which does not linger
    assert polled(delivery, 150) == (rows.ids[:150], [])


def test_a_round_of_which_one_fails_fails_and_then_each_goes_alone(bootstrap_servers, make_topic, lane, page):
    topic = make_topic(**{"max.message.bytes": 2_000})
    rows, delivery = page((topic, "k", "v" * (3_000 if n == 50 else 3), [], []) for n in range(100)), lane()
    queue = queued(rows)
    delivery.send(queue, lambda: True)
    acknowledged, failed = polled(delivery, 100)
    assert acknowledged == []
    assert sorted(each.row[0] for each in failed) == rows.ids
    assert not any(each.refused for each in failed), "who is to blame shows when each goes alone"
    delivery.begin(uuid.uuid4())
    left, refused = queued(rows), []

    def done():
        if left:
            delivery.send(left, lambda: True)
        reports = delivery.poll(0.1)
        refused.extend(each.row[0] for each in reports.failed if each.refused)
        again = sorted((each.row for each in reports.failed if not each.refused), key=lambda row: row[0])
        left.give_back(RowQueue(again))
        if reports.halted:
            delivery.begin(uuid.uuid4())
        return not left and not delivery.is_busy

    eventually(done)
    assert refused == [rows.ids[50]]
    assert {each.outbox_id for each in read_topic(bootstrap_servers, topic)} == {*rows.ids} - {*refused}


def test_what_is_large_for_company_does_not_go_natively(make_topic, lane, page, handed_over):
    topic = make_topic()
    rows, delivery = page((topic, "k", "v" * 9_999, [], []) for _ in range(10)), lane()
    delivery._topics.smallest_limit = 10_500
    delivery.send(queued(rows), lambda: True)
    assert polled(delivery, 10) == (rows.ids, [])
    assert handed_over["records"] == 0


def test_a_row_that_the_client_refuses_is_refused_and_its_neighbours_are_not(make_topic, lane, page):
    topic = make_topic()
    rows, delivery = page((topic, "k", "v", [], [] if n != 5 else ["no name"]) for n in range(10)), lane()
    left, refused = queued(rows), []

    def done():
        delivery.send(left, lambda: True)
        reports = delivery.poll(0.1)
        refused.extend(each.row[0] for each in reports.failed if each.refused)
        left.give_back(RowQueue(sorted(each.row for each in reports.failed if not each.refused)))
        if reports.halted:
            delivery.begin(uuid.uuid4())
        return not left and not delivery.is_busy

    eventually(done)
    assert refused == [rows.ids[5]]


def test_what_is_abandoned_is_reported_failed_row_by_row(make_topic, lane, page):
    topic = make_topic()
    rows, delivery = page((topic, "k", f"{number}", [], []) for number in range(300)), lane(**{"linger.ms": 500_000})
    delivery.send(queued(rows), lambda: True)
    reports = delivery.abandon()
    assert reports.acknowledged == []
    assert [each.row for each in reports.failed] == list(rows)


def test_a_failure_that_is_told_as_the_last_record_ends_is_not_taken_for_success(make_topic, lane, page, monkeypatch):
    """Outstanding records are counted before failures are asked for, and not after."""
    topic = make_topic(**{"max.message.bytes": 1_000})
    rows, delivery = page([(topic, "k", "v" * 3_000, [], [])]), lane(**{"linger.ms": 500})
    delivery.send(queued(rows), lambda: True)
    producer, take, outstanding = delivery._producer, NativeSender.take_failures, []

    def gone():
        with suppress(KafkaException):  # which is fatal, and another way to hear of it
            producer.poll(0.05)
        return not len(producer)

    def just_too_early(sender):
        if outstanding:
            return take(sender)
        outstanding.append(len(producer))
        eventually(gone, "it has failed")
        return []

    monkeypatch.setattr(NativeSender, "take_failures", just_too_early)
    assert delivery.poll(0) == Reports()
    assert outstanding == [1]
    acknowledged, failed = polled(delivery, 1)
    assert (acknowledged, [each.row[0] for each in failed]) == ([], rows.ids)
