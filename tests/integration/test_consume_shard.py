"""A shard over a real Kafka and Postgres: each message changes the state once, whoever owns the shard."""

import threading
import time
from contextlib import suppress
from functools import partial

import psycopg
import pytest
from confluent_kafka import OFFSET_BEGINNING, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from support.consuming import Counting, Running, read_keys
from support.waiting import eventually

from harvest_lib.consume import (
    Clock,
    Fenced,
    Flag,
    KeyValueStore,
    PostgresStore,
    Publisher,
    Shard,
    ShardId,
    ShardLimits,
    create_key_values,
    create_tables,
    new_producer_id,
    pack,
    read_committed,
)
from harvest_lib.errors import CheckpointError, DatabaseUnavailable


@pytest.fixture
def settings(bootstrap_servers):
    return {"bootstrap.servers": bootstrap_servers}


@pytest.fixture
def topic(make_topic):
    return make_topic()


@pytest.fixture
def place(topic):
    return ShardId("counts", topic, 0)


@pytest.fixture
def store(dsn, place):
    """Make stores of one shard."""
    create_tables(dsn)
    create_key_values(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE counts (key text PRIMARY KEY, n bigint NOT NULL)")
    return partial(PostgresStore, dsn, place)


@pytest.fixture
def shard(settings, place, store):
    def make(application, own_store=None, topic_id="", **limits):
        return Shard(
            application,
            own_store or store(),
            shard=place,
            topic_id=topic_id,
            read=lambda sequencer: read_committed(settings, place.topic, 0, sequencer=sequencer),
            publisher=partial(new_publisher, settings),
            limits=ShardLimits(**limits),
        )

    return make


def new_publisher(settings):
    return Publisher(settings, producer_id=new_producer_id(), clock=Clock(time.time_ns))


def counts(dsn):
    with psycopg.connect(dsn) as connection:
        return dict(connection.execute("SELECT key, n FROM counts").fetchall())


def write(settings, topic, keys):
    producer = Producer(settings)
    for key in keys:
        producer.produce(topic, b"v", key=key)
    assert producer.flush(10) == 0


def delete_before(settings, topic, offset):
    admin = AdminClient(settings)
    for deleted in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        deleted.result(20)


def parked(dsn):
    with psycopg.connect(dsn) as connection:
        return connection.execute('SELECT "offset", key, reason FROM consumers_parked').fetchall()


def test_each_message_counts_once_and_is_published_once(settings, topic, dsn, shard, make_topic):
    derived = make_topic(name=f"{topic}-derived")
    write(settings, topic, ["a", "b", "a"])
    running = Running(shard(Counting(derived)).run)
    eventually(lambda: counts(dsn) == {"a": 2, "b": 1}, 30, "counted")
    assert running.end() is None
    write(settings, topic, ["a"])
    running = Running(shard(Counting(derived)).run)
    eventually(lambda: counts(dsn) == {"a": 3, "b": 1}, 30, "counted on")
    assert running.end() is None
    assert read_keys(settings, derived, 4) == ["a", "b", "a", "a"]


def test_who_was_fenced_off_commits_nothing(settings, topic, dsn, shard, store, place):
    began, go_on = threading.Event(), threading.Event()

    class Frozen(PostgresStore):
        def commit(self, checkpoint):
            began.set()
            go_on.wait(30)
            return super().commit(checkpoint)

    write(settings, topic, ["a"])
    old = Running(shard(Counting(), Frozen(dsn, place)).run)
    assert began.wait(30)
    new_store = store()
    new_store.restore()
    new_store.close()
    go_on.set()
    eventually(lambda: old.error is not None, 30, "it is told")
    assert isinstance(old.end(), Fenced)
    assert counts(dsn) == {}
    new = Running(shard(Counting()).run)
    eventually(lambda: counts(dsn) == {"a": 1}, 30, "counted by the new one")
    assert new.end() is None


def test_what_was_kept_but_not_acknowledged_is_acknowledged_by_the_next(settings, topic, dsn, shard, place, make_topic):
    derived = make_topic(name=f"{topic}-derived")

    class Crashing(PostgresStore):
        def commit(self, checkpoint):
            super().commit(checkpoint)
            raise KeyboardInterrupt

    write(settings, topic, ["a"])
    crashed = Running(shard(Counting(derived), Crashing(dsn, place)).run)
    eventually(lambda: crashed.error is not None, 30, "it crashes")
    crashed.end()
    write(settings, topic, ["b"])
    running = Running(shard(Counting(derived)).run)
    assert read_keys(settings, derived, 2) == ["a", "b"]
    assert running.end() is None
    assert counts(dsn) == {"a": 1, "b": 1}


def test_a_message_that_the_function_does_not_take_is_set_aside_and_the_others_count(settings, topic, dsn, shard):
    write(settings, topic, ["a", "bad", "b"])
    application = Counting(fails=("bad",))
    running = Running(shard(application, max_attempts=3).run)
    eventually(lambda: counts(dsn) == {"a": 1, "b": 1}, 60, "the others are counted")
    assert running.end() is None
    assert application.calls["bad"] == 3
    assert parked(dsn) == [(1, b"bad", "ValueError: not bad")]


def test_a_message_keeps_its_attempts_where_others_before_it_are_kept(settings, topic, dsn, shard):
    """Each transaction ends with the first acknowledgement, so that one is kept before the message fails again."""
    publisher = new_publisher(settings)
    for key in ("a", "b", "bad", "c"):
        publisher.publish_uncommitted(topic, b"v", key=key)
        publisher.acknowledge(publisher.intents())
    publisher.flush()
    application = Counting(fails=("bad",))
    running = Running(shard(application, max_attempts=3, max_txn_duration_seconds=0).run)
    eventually(lambda: counts(dsn) == {"a": 1, "b": 1, "c": 1}, 30, "the others are counted")
    assert running.end() is None
    assert (application.calls["bad"], len(parked(dsn))) == (3, 1)
    publisher.close()


def test_a_connection_that_fails_is_nothing_that_a_message_did(settings, topic, dsn, shard, store):
    """The shard ends and says so; whoever begins again counts on."""
    write(settings, topic, ["a"])

    class Cutting(Counting):
        def consume_message(self, transaction, _message):
            transaction.state.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    running = Running(shard(Cutting(), max_attempts=1).run)
    eventually(lambda: running.error is not None, 30, "it says so")
    assert isinstance(running.end(), DatabaseUnavailable)
    assert parked(dsn) == []
    running = Running(shard(Counting()).run)
    eventually(lambda: counts(dsn) == {"a": 1}, 30, "counted")
    assert running.end() is None


def test_all_that_one_acknowledgement_commits_is_in_one_transaction(settings, topic, dsn, shard):
    publisher = new_publisher(settings)
    for number in range(500):
        publisher.publish_uncommitted(topic, b"v", key=str(number % 7))
    publisher.acknowledge(publisher.intents())
    publisher.flush()
    publisher.close()
    sizes = []

    class Sizing(Counting):
        def finalize_txn(self, transaction):
            sizes.append(sum(transaction.memory["counts"].values()))
            super().finalize_txn(transaction)

    running = Running(shard(Sizing(), max_txn_duration_seconds=0, ring=10).run)
    eventually(lambda: sum(counts(dsn).values()) == 500, 30, "counted")
    assert running.end() is None
    assert sizes == [500]


def test_what_an_application_publishes_and_does_not_keep_is_never_read(settings, topic, dsn, shard, make_topic):
    derived = make_topic(name=f"{topic}-derived")
    write(settings, topic, ["a", "b"])

    class FailingOnce(Counting):
        has_failed = False

        def finalize_txn(self, transaction):
            super().finalize_txn(transaction)
            if not self.has_failed:
                self.has_failed = True
                raise RuntimeError("not now")

    running = Running(shard(FailingOnce(derived)).run)
    assert read_keys(settings, derived, 2) == ["a", "b"]
    eventually(lambda: counts(dsn) == {"a": 1, "b": 1}, 30, "counted")
    assert running.end() is None
    assert parked(dsn) == []


def test_values_by_key_are_kept_with_the_checkpoint(settings, topic, dsn, shard, place, store):
    class Folding:
        def consume_message(self, transaction, message):
            values, key = transaction.state, message.record.key().decode()
            values.put(key, {"n": values.get(key, {"n": 0})["n"] + 1})
            if key == "gone":
                values.put("a", None)

        def finalize_txn(self, transaction):
            pass

    def kept():
        with psycopg.connect(dsn) as connection:
            return dict(connection.execute("SELECT key, value FROM consumers_state").fetchall())

    write(settings, topic, ["a", "b", "b"])
    running = Running(shard(Folding(), KeyValueStore(dsn, place)).run)
    eventually(lambda: kept() == {"a": {"n": 1}, "b": {"n": 2}}, 30, "kept")
    assert running.end() is None
    write(settings, topic, ["b", "gone"])
    running = Running(shard(Folding(), KeyValueStore(dsn, place)).run)
    eventually(lambda: kept() == {"b": {"n": 3}, "gone": {"n": 1}}, 30, "kept on")
    assert running.end() is None


# -- bad input


def test_a_fence_that_is_lost_within_a_transaction_undoes_all_of_it(settings, topic, dsn, shard, store, make_topic):
    derived = make_topic(name=f"{topic}-derived")

    class Overtaken(Counting):
        def consume_message(self, transaction, message):
            super().consume_message(transaction, message)
            if message.record.key() == b"b":
                new_store = store()
                new_store.restore()
                new_store.close()

    write(settings, topic, ["a", "b"])
    old = Running(shard(Overtaken(derived)).run)
    eventually(lambda: old.error is not None, 30, "it is told")
    assert isinstance(old.end(), Fenced)
    assert "b" not in counts(dsn)
    new = Running(shard(Counting(derived)).run)
    eventually(lambda: counts(dsn) == {"a": 1, "b": 1}, 30, "counted by the new one")
    write(settings, topic, ["c"])
    assert read_keys(settings, derived, 3) == ["a", "b", "c"]
    assert new.end() is None


def test_what_has_no_id_counts_each_time_it_was_written_and_what_has_one_once(settings, topic, dsn, shard):
    """The sender of the first may have sent it twice, and nobody can tell: that is at least once."""
    producer = Producer(settings)
    message_id = pack(new_producer_id(), 7, Flag.OUTSIDE_TXN)
    for _ in range(2):
        producer.produce(topic, b"v", key="none")
        producer.produce(topic, b"v", key="unreadable", headers=[("message-id", b"7")])
        producer.produce(topic, b"v", key="id", headers=[("message-id", message_id)])
    assert producer.flush(10) == 0
    running = Running(shard(Counting()).run)
    eventually(lambda: sum(counts(dsn).values()) == 5, 30, "counted")
    assert running.end() is None
    assert counts(dsn) == {"none": 2, "unreadable": 2, "id": 1}


def test_a_checkpoint_of_another_is_refused(dsn, shard, store, settings, topic):
    store().restore()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("UPDATE consumers SET checkpoint = jsonb_set(checkpoint, '{shard,0}', '\"sums\"')")
    with pytest.raises(CheckpointError, match="another's"):
        shard(Counting()).run(threading.Event())


def test_a_topic_that_was_made_anew_is_refused(dsn, shard, settings, topic):
    write(settings, topic, ["a"])
    running = Running(shard(Counting(), topic_id="first").run)
    eventually(lambda: counts(dsn) == {"a": 1}, 30, "counted")
    assert running.end() is None
    with pytest.raises(CheckpointError, match="made anew"):
        shard(Counting(), topic_id="second").run(threading.Event())


def test_what_retention_took_away_unread_is_said(dsn, shard, settings, topic):
    write(settings, topic, ["a"])
    running = Running(shard(Counting()).run)
    eventually(lambda: counts(dsn) == {"a": 1}, 30, "counted")
    assert running.end() is None
    write(settings, topic, ["b", "c"])
    delete_before(settings, topic, 2)
    running = Running(shard(Counting()).run)
    eventually(lambda: running.error is not None, 30, "it says so")
    error = running.end()
    assert isinstance(error, CheckpointError)
    assert "retention" in error.next_step


def test_a_shard_without_a_checkpoint_begins_where_the_log_begins(dsn, shard, settings, topic, store):
    write(settings, topic, ["a", "b"])
    delete_before(settings, topic, 1)
    assert store().restore().offset == OFFSET_BEGINNING
    running = Running(shard(Counting()).run)
    eventually(lambda: counts(dsn) == {"b": 1}, 30, "counted")
    assert running.end() is None


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK", "SELECT 1/0"])
def test_a_function_that_ends_or_breaks_the_transaction_is_that_message_s_alone(dsn, shard, settings, topic, statement):
    class Breaking(Counting):
        def consume_message(self, transaction, message):
            super().consume_message(transaction, message)
            if message.record.key() == b"bad":
                with suppress(psycopg.Error):
                    transaction.state.execute(statement)

    write(settings, topic, ["a", "bad", "b"])
    running = Running(shard(Breaking(), max_attempts=2).run)
    eventually(lambda: counts(dsn) == {"a": 1, "b": 1}, 30, "the others are counted")
    assert running.end() is None
    ((offset, key, reason),) = parked(dsn)
    assert (offset, key) == (1, b"bad")
    assert "the transaction" in reason


def test_what_fails_as_a_transaction_is_finalized_is_found_out_and_set_aside(dsn, shard, settings, topic):
    class LateToFind(Counting):
        def finalize_txn(self, transaction):
            if "bad" in transaction.memory["counts"]:
                raise ValueError("found late")
            super().finalize_txn(transaction)

    write(settings, topic, ["a", "b", "bad", "c"])
    running = Running(shard(LateToFind(), max_attempts=2).run)
    eventually(lambda: counts(dsn) == {"a": 1, "b": 1, "c": 1}, 30, "the others are counted")
    assert running.end() is None
    assert parked(dsn) == [(2, b"bad", "ValueError: found late")]


def test_what_is_wrong_with_postgres_and_passes_is_put_down_to_no_message(dsn, shard, settings, topic):
    application = Counting(fails=("a",), error=psycopg.errors.SerializationFailure)
    write(settings, topic, ["a"])
    running = Running(shard(application, max_attempts=1).run)
    eventually(lambda: application.calls["a"] > 3, 30, "it is tried again")
    application.fails = ()
    eventually(lambda: counts(dsn) == {"a": 1}, 30, "it is counted")
    assert running.end() is None
    assert parked(dsn) == []


def test_what_was_only_passed_over_moves_the_checkpoint(dsn, shard, settings, topic, store, monkeypatch):
    """Else retention would take away unread what no message is: an acknowledgement that was written again."""
    publisher = new_publisher(settings)
    publisher.publish_uncommitted(topic, b"v", key="a")
    intents = publisher.intents()
    publisher.acknowledge(intents)
    publisher.flush()
    monkeypatch.setattr("harvest_lib.consume.shard._QUIET_SECONDS", 0.0)
    owner = shard(Counting())
    running = Running(owner.run)
    eventually(lambda: owner.offset == 2, 30, "both were read")
    publisher.acknowledge(intents)
    publisher.flush()
    eventually(lambda: owner.offset == 3, 30, "what is repeated was passed over")
    assert running.end() is None
    publisher.close()
    assert store().restore().offset == 3


def test_a_stop_is_heard_while_nothing_that_is_read_commits_anything(dsn, shard, settings, topic):
    publisher = new_publisher(settings)
    for _ in range(20_000):
        publisher.publish_uncommitted(topic, b"v", key="a")
    publisher.flush()
    stopping = threading.Event()
    stopping.set()
    owner = shard(Counting())
    owner._store.restore()
    owner._process(stopping)  # as if the stop had come while it read
    owner._store.close()
    publisher.close()
    assert 0 < owner.offset < 20_000


@pytest.mark.parametrize("limit", [1_000_000, 5_000_000])
def test_a_message_too_large_to_be_derived_is_set_aside(dsn, shard, settings, topic, make_topic, limit):
    """Whether the client refuses it, or the topic."""
    settings["message.max.bytes"] = limit
    derived = make_topic(name=f"{topic}-derived")

    class Swelling(Counting):
        def consume_message(self, transaction, message):
            super().consume_message(transaction, message)
            size = 2_000_000 if message.record.key() == b"large" else 1
            transaction.publish(derived, b"x" * size, key=message.record.key())

    write(settings, topic, ["a", "large", "b"])
    running = Running(shard(Swelling(), max_attempts=2).run)
    assert read_keys(settings, derived, 2) == ["a", "b"]
    assert running.end() is None
    assert [(offset, key) for offset, key, _ in parked(dsn)] == [(1, b"large")]
