"""Errors of any kind in a consumer: of its functions, its store and the log; none ends a partition unseen."""

import asyncio
import logging
from functools import partial

import psycopg
import pytest
from confluent_kafka import Producer
from support.consuming import Counting, Running
from support.waiting import eventually

from harvest_lib.consume import Consumer, PostgresStore, ShardLimits, create_tables

pytestmark = pytest.mark.gate


class Panic(BaseException):
    """As pyo3's PanicException, which a panic of an extension in Rust raises."""


class Unspeakable(BaseException):
    def __str__(self):
        raise Panic


KINDS = {kind.__name__: kind for kind in (SystemExit, KeyboardInterrupt, GeneratorExit, Panic, Unspeakable)}
KINDS["CancelledError"] = asyncio.CancelledError


class Raising(Counting):
    """Raises the error that a message's key names."""

    def consume_message(self, transaction, message):
        super().consume_message(transaction, message)
        if kind := KINDS.get(message.record.key().decode()):
            raise kind


class AtOnce(Raising):
    def consume_messages(self, transaction, messages):
        for message in messages:
            self.consume_message(transaction, message)


class Late(Counting):
    """Raises it as the transaction is finalized."""

    def finalize_txn(self, transaction):
        for key in transaction.memory["counts"]:
            if kind := KINDS.get(key):
                raise kind
        super().finalize_txn(transaction)


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("application", [Raising, AtOnce, Late])
def test_a_function_s_error_of_any_kind_is_its_message_s(counted, application):
    publisher = counted.publisher()
    for key in ("a", *KINDS, "b"):
        publisher.publish_uncommitted(counted.topic, b"v", key=key)
    publisher.acknowledge(publisher.intents())
    publisher.flush()
    running = Running(counted.shard(application(), max_attempts=1).run)
    eventually(lambda: counted.counts() == {"a": 1, "b": 1}, "the others are counted")
    assert running.end() is None
    assert [key.decode() for _, key, _ in counted.parked()] == [*KINDS]


@pytest.fixture
def consumer(dsn, bootstrap_servers, make_topic, unique):
    create_tables(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE counts (key text PRIMARY KEY, n bigint NOT NULL)")
    topic, name = make_topic(), unique("counts")
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    producer.produce(topic, b"v", key="a")
    assert producer.flush(60) == 0
    settings = {"bootstrap.servers": bootstrap_servers}

    def make(store):
        return Consumer(
            Counting(), name=name, topics=[topic], settings=settings, store=store, limits=ShardLimits(max_attempts=1)
        )

    return make


def counted_in(dsn):
    with psycopg.connect(dsn) as connection:
        return connection.execute("SELECT coalesce(sum(n), 0) FROM counts").fetchone()[0]


@pytest.mark.parametrize("is_log_broken", [False, True])
def test_a_shard_that_any_error_ends_begins_again_and_says_so(dsn, consumer, caplog, monkeypatch, is_log_broken):
    errors = [kind() for kind in KINDS.values()]
    monkeypatch.setattr("harvest_lib.consume.ownership._LONGEST_PAUSE_SECONDS", 0.01)
    # A handler that an earlier test left cannot write what has no text, and would hide it from those behind.
    monkeypatch.setattr(logging.getLogger("harvest_lib"), "handlers", [])

    def store(shard):
        if errors:
            raise errors.pop()
        return PostgresStore(dsn, shard)

    class Breaking(logging.Handler):
        def emit(self, record):
            if is_log_broken and record.levelno >= logging.ERROR:
                raise Panic

    handler = Breaking()
    logging.getLogger("harvest_lib").addHandler(handler)
    try:
        running = Running(consumer(store).run)
        eventually(lambda: counted_in(dsn) == 1, "it began again")
    finally:
        assert running.end() is None
        logging.getLogger("harvest_lib").removeHandler(handler)
    if not is_log_broken:
        said = [record.reason for record in caplog.records if record.message == "shard_failed"]
        assert [reason.partition(":")[0] for reason in said] == [*reversed(KINDS)]


def test_a_thread_that_there_is_no_room_for_is_started_later(dsn, consumer, monkeypatch, caplog):
    from harvest_lib.process import threads  # noqa: PLC0415

    start, refusals = threads.start, ["can't start new thread"] * 2

    def starting(name, work, **options):
        if "counts" in name and refusals:
            raise RuntimeError(refusals.pop())
        return start(name, work, **options)

    monkeypatch.setattr(threads, "start", starting)
    running = Running(consumer(partial(PostgresStore, dsn)).run)
    eventually(lambda: counted_in(dsn) == 1, "it began")
    assert running.end() is None
    said = [record.reason for record in caplog.records if record.message == "shard_failed"]
    assert said == ["can't start new thread"] * 2
