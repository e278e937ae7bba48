"""A shard over a real Kafka and Postgres: each message changes the state once, under any owner of the shard."""

import threading
import time

import psycopg
import pytest
from support.consuming import Counting, Running, read_keys
from support.waiting import eventually

from harvest_lib.consume import Fenced, KeyValueStore, PostgresStore
from harvest_lib.consume.checkpoint import Checkpoint
from harvest_lib.errors import DatabaseUnavailable
from harvest_lib.sequencing.message_id import CLOCKS_PER_SECOND, clock_at
from harvest_lib.sequencing.producer_state import ProducerState

pytestmark = pytest.mark.quick


def test_each_message_counts_once_and_is_published_once(counted, make_topic):
    derived = make_topic(name=f"{counted.topic}-derived")
    counted.write(["a", "b", "a"])
    running = Running(counted.shard(Counting(derived)).run)
    eventually(lambda: counted.counts() == {"a": 2, "b": 1}, "counted")
    assert running.end() is None
    counted.write(["a"])
    running = Running(counted.shard(Counting(derived)).run)
    eventually(lambda: counted.counts() == {"a": 3, "b": 1}, "counted on")
    assert running.end() is None
    assert read_keys(counted.settings, derived, 4) == ["a", "b", "a", "a"]


def test_who_was_fenced_off_commits_nothing(counted):
    began, go_on = threading.Event(), threading.Event()

    class Frozen(PostgresStore):
        def commit(self, checkpoint):
            began.set()
            go_on.wait(60)
            return super().commit(checkpoint)

    counted.write(["a"])
    old = Running(counted.shard(Counting(), Frozen(counted.dsn, counted.place)).run)
    assert began.wait(60)
    new_store = counted.store()
    new_store.restore()
    new_store.close()
    go_on.set()
    eventually(lambda: old.error is not None, "it is reported")
    assert isinstance(old.end(), Fenced)
    assert counted.counts() == {}
    new = Running(counted.shard(Counting()).run)
    eventually(lambda: counted.counts() == {"a": 1}, "counted by the new one")
    assert new.end() is None


def test_what_was_kept_but_not_acknowledged_is_acknowledged_by_the_next(counted, make_topic):
    derived = make_topic(name=f"{counted.topic}-derived")

    class Crashing(PostgresStore):
        def commit(self, checkpoint):
            super().commit(checkpoint)
            raise KeyboardInterrupt

    counted.write(["a"])
    crashed = Running(counted.shard(Counting(derived), Crashing(counted.dsn, counted.place)).run)
    eventually(lambda: crashed.error is not None, "it crashes")
    crashed.end()
    counted.write(["b"])
    running = Running(counted.shard(Counting(derived)).run)
    assert read_keys(counted.settings, derived, 2) == ["a", "b"]
    assert running.end() is None
    assert counted.counts() == {"a": 1, "b": 1}


def test_a_message_that_the_function_does_not_take_is_parked_and_the_others_count(counted):
    counted.write(["a", "bad", "b"])
    application = Counting(fails=("bad",))
    running = Running(counted.shard(application, max_attempts=3).run)
    eventually(lambda: counted.counts() == {"a": 1, "b": 1}, "the others are counted")
    assert running.end() is None
    assert application.calls["bad"] == 3
    assert counted.parked() == [(1, b"bad", "ValueError: not bad")]


def test_a_message_keeps_its_attempts_where_others_before_it_are_kept(counted):
    """Each transaction ends with the first acknowledgement, so that one is kept before the message fails again."""
    publisher = counted.publisher()
    for key in ("a", "b", "bad", "c"):
        publisher.publish_uncommitted(counted.topic, b"v", key=key)
        publisher.acknowledge(publisher.intents())
    publisher.flush()
    application = Counting(fails=("bad",))
    running = Running(counted.shard(application, max_attempts=3, max_txn_duration_seconds=0).run)
    eventually(lambda: counted.counts() == {"a": 1, "b": 1, "c": 1}, "the others are counted")
    assert running.end() is None
    assert (application.calls["bad"], len(counted.parked())) == (3, 1)


def test_a_connection_that_fails_is_nothing_that_a_message_did(counted):
    """The shard ends and says so; its next owner counts on."""
    counted.write(["a"])

    class Cutting(Counting):
        def consume_message(self, transaction, _message):
            transaction.state.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    running = Running(counted.shard(Cutting(), max_attempts=1).run)
    eventually(lambda: running.error is not None, "it says so")
    assert isinstance(running.end(), DatabaseUnavailable)
    assert counted.parked() == []
    running = Running(counted.shard(Counting()).run)
    eventually(lambda: counted.counts() == {"a": 1}, "counted")
    assert running.end() is None


def test_all_that_one_acknowledgement_commits_is_in_one_transaction(counted):
    publisher = counted.publisher()
    for number in range(500):
        publisher.publish_uncommitted(counted.topic, b"v", key=str(number % 7))
    publisher.acknowledge(publisher.intents())
    publisher.flush()
    sizes = []

    class Sizing(Counting):
        def finalize_txn(self, transaction):
            sizes.append(sum(transaction.memory["counts"].values()))
            super().finalize_txn(transaction)

    running = Running(counted.shard(Sizing(), max_txn_duration_seconds=0, ring=10).run)
    eventually(lambda: sum(counted.counts().values()) == 500, "counted")
    assert running.end() is None
    assert sizes == [500]


def test_what_an_application_publishes_and_does_not_keep_is_never_read(counted, make_topic):
    derived = make_topic(name=f"{counted.topic}-derived")
    counted.write(["a", "b"])

    class FailingOnce(Counting):
        has_failed = False

        def finalize_txn(self, transaction):
            super().finalize_txn(transaction)
            if not self.has_failed:
                self.has_failed = True
                raise RuntimeError("not now")

    running = Running(counted.shard(FailingOnce(derived)).run)
    assert read_keys(counted.settings, derived, 2) == ["a", "b"]
    eventually(lambda: counted.counts() == {"a": 1, "b": 1}, "counted")
    assert running.end() is None
    assert counted.parked() == []


def test_values_by_key_are_kept_with_the_checkpoint(counted):
    class Folding:
        def consume_message(self, transaction, message):
            values, key = transaction.state, message.record.key().decode()
            values.put(key, {"n": values.get(key, {"n": 0})["n"] + 1})
            if key == "gone":
                values.put("a", None)

        def finalize_txn(self, transaction):
            pass

    def kept():
        with psycopg.connect(counted.dsn) as connection:
            return dict(connection.execute("SELECT key, value FROM consumers_state").fetchall())

    counted.write(["a", "b", "b"])
    running = Running(counted.shard(Folding(), KeyValueStore(counted.dsn, counted.place)).run)
    eventually(lambda: kept() == {"a": {"n": 1}, "b": {"n": 2}}, "kept")
    assert running.end() is None
    counted.write(["b", "gone"])
    running = Running(counted.shard(Folding(), KeyValueStore(counted.dsn, counted.place)).run)
    eventually(lambda: kept() == {"b": {"n": 3}, "gone": {"n": 1}}, "kept on")
    assert running.end() is None


def test_what_is_pending_and_was_given_up_is_not_where_a_next_owner_begins(counted):
    shard = counted.shard(Counting())

    def pending(begin, days):
        newest = clock_at(time.time_ns()) - int(days * 86_400 * CLOCKS_PER_SECOND)
        return ProducerState(producer=begin, acknowledged=0, begin=begin, newest=newest, ack=0)

    shard._checkpoint = Checkpoint(shard=counted.place, offset=1_000, producers=[pending(3, 2), pending(700, 0.5)])
    assert shard.position == 700
