"""Trouble of a shard: messages, functions, checkpoints, logs, and a fence that is lost."""

import os
import socket
import threading
from collections import defaultdict
from contextlib import suppress

import psycopg
import pytest
from confluent_kafka import OFFSET_BEGINNING, Producer
from support.clock import Clock
from support.consuming import Counting, Running, read_keys
from support.waiting import eventually

from harvest_lib.consume import Fenced, Flag, PostgresStore, create_tables, new_producer_id, pack
from harvest_lib.consume.postgres_store import IDLE_SECONDS
from harvest_lib.errors import CheckpointError, DatabaseError

pytestmark = pytest.mark.full


def test_a_fence_that_is_lost_within_a_transaction_undoes_all_of_it(counted, make_topic):
    derived = make_topic(name=f"{counted.topic}-derived")

    class Overtaken(Counting):
        def consume_message(self, transaction, message):
            super().consume_message(transaction, message)
            if message.record.key() == b"b":
                new_store = counted.store()
                new_store.restore()
                new_store.close()

    counted.write(["a", "b"])
    old = Running(counted.shard(Overtaken(derived)).run)
    eventually(lambda: old.error is not None, "it is reported")
    assert isinstance(old.end(), Fenced)
    assert "b" not in counted.counts()
    new = Running(counted.shard(Counting(derived)).run)
    eventually(lambda: counted.counts() == {"a": 1, "b": 1}, "counted by the new one")
    counted.write(["c"])
    assert read_keys(counted.settings, derived, 3) == ["a", "b", "c"]
    assert new.end() is None


def test_what_has_no_id_counts_each_time_it_was_written_and_what_has_one_once(counted):
    """The sender of the first may have sent it twice, and nobody can tell: that is at least once."""
    producer = Producer(counted.settings)
    message_id = pack(new_producer_id(), 7, Flag.OUTSIDE_TXN)
    for _ in range(2):
        producer.produce(counted.topic, b"v", key="none")
        producer.produce(counted.topic, b"v", key="unreadable", headers=[("message-id", b"7")])
        producer.produce(counted.topic, b"v", key="id", headers=[("message-id", message_id)])
    assert producer.flush(60) == 0
    running = Running(counted.shard(Counting()).run)
    eventually(lambda: sum(counted.counts().values()) == 5, "counted")
    assert running.end() is None
    assert counted.counts() == {"none": 2, "unreadable": 2, "id": 1}


def test_a_checkpoint_of_another_is_refused(counted):
    counted.store().restore()
    with psycopg.connect(counted.dsn, autocommit=True) as connection:
        connection.execute("UPDATE consumers SET checkpoint = jsonb_set(checkpoint, '{shard,0}', '\"sums\"')")
    with pytest.raises(CheckpointError, match="belongs to another shard"):
        counted.shard(Counting()).run(threading.Event())


def test_a_topic_that_was_made_anew_is_refused(counted):
    counted.write(["a"])
    running = Running(counted.shard(Counting(), topic_id="first").run)
    eventually(lambda: counted.counts() == {"a": 1}, "counted")
    assert running.end() is None
    with pytest.raises(CheckpointError, match="recreated"):
        counted.shard(Counting(), topic_id="second").run(threading.Event())


def test_the_topic_s_id_is_kept_where_it_cannot_be_asked(counted):
    counted.write(["a"])
    for topic_id, key in (("first", "b"), ("", "c")):
        running = Running(counted.shard(Counting(), topic_id=topic_id).run)
        eventually(lambda: sum(counted.counts().values()) == ord(key) - ord("a"), "counted")  # noqa: B023
        assert running.end() is None
        counted.write([key])
    with pytest.raises(CheckpointError, match="recreated"):
        counted.shard(Counting(), topic_id="second").run(threading.Event())


def test_a_function_that_is_slow_keeps_its_transaction(counted, monkeypatch):
    """Postgres ends a transaction of which it hears nothing, as its owner may be frozen; one that works is heard."""
    clock = Clock()
    monkeypatch.setattr("harvest_lib.consume.shard.boot_seconds", clock)
    takes, passed = 0.3 * IDLE_SECONDS, defaultdict(list)
    """By when Postgres heard of the transaction: when messages came until it heard again."""

    class Slow(Counting):
        def consume_message(self, transaction, message):
            super().consume_message(transaction, message)
            with psycopg.connect(counted.dsn) as connection:
                asked = "SELECT state_change FROM pg_stat_activity WHERE pid = %s AND state = 'idle in transaction'"
                (heard_at,) = connection.execute(asked, (transaction.state.info.backend_pid,)).fetchone()
            passed[heard_at].append(clock.now)
            clock.now += takes

    publisher = counted.publisher()
    for _ in range(5):
        publisher.publish_uncommitted(counted.topic, b"v", key="a")
    publisher.acknowledge(publisher.intents())
    publisher.flush()
    application = Slow()
    running = Running(counted.shard(application).run)
    eventually(lambda: counted.counts() == {"a": 5}, "counted")
    assert running.end() is None
    assert application.calls["a"] == 5
    assert len(passed) > 1, "all of it takes longer than Postgres waits"
    assert max(times[-1] + takes - times[0] for times in passed.values()) < IDLE_SECONDS


def test_what_retention_took_away_unread_is_said(counted):
    counted.write(["a"])
    running = Running(counted.shard(Counting()).run)
    eventually(lambda: counted.counts() == {"a": 1}, "counted")
    assert running.end() is None
    counted.write(["b", "c"])
    counted.delete_before(2)
    running = Running(counted.shard(Counting()).run)
    eventually(lambda: running.error is not None, "it says so")
    error = running.end()
    assert isinstance(error, CheckpointError)
    assert "retention" in error.next_step


def test_a_shard_without_a_checkpoint_begins_where_the_log_begins(counted):
    counted.write(["a", "b"])
    counted.delete_before(1)
    assert counted.store().restore().offset == OFFSET_BEGINNING
    running = Running(counted.shard(Counting()).run)
    eventually(lambda: counted.counts() == {"b": 1}, "counted")
    assert running.end() is None


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK", "SELECT 1/0"])
def test_a_function_that_ends_or_breaks_the_transaction_is_that_message_s_alone(counted, statement):
    class Breaking(Counting):
        def consume_message(self, transaction, message):
            super().consume_message(transaction, message)
            if message.record.key() == b"bad":
                with suppress(psycopg.Error):
                    transaction.state.execute(statement)

    counted.write(["a", "bad", "b"])
    running = Running(counted.shard(Breaking(), max_attempts=2).run)
    eventually(lambda: counted.counts() == {"a": 1, "b": 1}, "the others are counted")
    assert running.end() is None
    ((offset, key, reason),) = counted.parked()
    assert (offset, key) == (1, b"bad")
    assert "the transaction" in reason


@pytest.mark.parametrize("has_tables", [False, True])
@pytest.mark.parametrize("statement", ["SET search_path = tenant", "SET LOCAL search_path = tenant"])
def test_a_function_may_set_the_schemas_that_it_works_in(counted, statement, has_tables):
    class OfTenants(Counting):
        def consume_message(self, transaction, message):
            transaction.state.execute(statement)
            super().consume_message(transaction, message)

    with psycopg.connect(counted.dsn, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA tenant; CREATE TABLE tenant.counts (LIKE counts INCLUDING ALL)")
    if has_tables:
        create_tables(counted.dsn, "tenant.consumers")
    counted.write(["a", "bad", "b"])
    running = Running(counted.shard(OfTenants(fails=("bad",)), max_attempts=1).run)
    with psycopg.connect(counted.dsn, autocommit=True) as connection:
        seen = connection.execute
        eventually(lambda: dict(seen("SELECT key, n FROM tenant.counts")) == {"a": 1, "b": 1}, "the others are counted")
        assert running.end() is None
    assert [key for _, key, _ in counted.parked()] == [b"bad"]
    assert counted.store().restore().offset == 3


def test_a_function_may_send_more_than_a_server_takes_that_waits_for_a_lock(counted):
    """With a `tcp_user_timeout` either end would give up a connection whose other end reads nothing for a while."""
    assert "host=127.0.0.1" in counted.dsn, "over a socket file there is no such time"
    store = counted.store()
    store.restore()
    names = ("tcp_user_timeout", "tcp_keepalives_idle")
    assert [store.connection.execute(f"SHOW {name}").fetchone() for name in names] == [("0",), ("5",)]
    with socket.socket(fileno=os.dup(store.connection.fileno())) as ours:
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 5
    store.close()


def test_a_table_of_consumers_that_is_missing_is_named(counted):
    with pytest.raises(DatabaseError, match=r"table 'nowhere' is not there[^$]*create_tables"):
        PostgresStore(counted.dsn, counted.place, table="nowhere").restore()


def test_what_fails_as_a_transaction_is_finalized_is_found_out_and_parked(counted):
    class LateToFind(Counting):
        def finalize_txn(self, transaction):
            if "bad" in transaction.memory["counts"]:
                raise ValueError("found late")
            super().finalize_txn(transaction)

    counted.write(["a", "b", "bad", "c"])
    running = Running(counted.shard(LateToFind(), max_attempts=2).run)
    eventually(lambda: counted.counts() == {"a": 1, "b": 1, "c": 1}, "the others are counted")
    assert running.end() is None
    assert counted.parked() == [(2, b"bad", "ValueError: found late")]


def test_what_is_wrong_with_postgres_and_passes_is_put_down_to_no_message(counted):
    application = Counting(fails=("a",), error=psycopg.errors.SerializationFailure)
    counted.write(["a"])
    running = Running(counted.shard(application, max_attempts=1).run)
    eventually(lambda: application.calls["a"] > 3, "it is tried again")
    application.fails = ()
    eventually(lambda: counted.counts() == {"a": 1}, "it is counted")
    assert running.end() is None
    assert counted.parked() == []


def test_what_was_only_passed_over_moves_the_checkpoint(counted, monkeypatch):
    """Else retention would take away unread what no message is: an acknowledgement that was written again."""
    publisher = counted.publisher()
    publisher.publish_uncommitted(counted.topic, b"v", key="a")
    intents = publisher.intents()
    publisher.acknowledge(intents)
    publisher.flush()
    monkeypatch.setattr("harvest_lib.consume.shard._QUIET_SECONDS", 0.0)
    owner = counted.shard(Counting())
    running = Running(owner.run)
    eventually(lambda: owner.offset == 2, "both were read")
    publisher.acknowledge(intents)
    publisher.flush()
    eventually(lambda: owner.offset == 3, "what is repeated was passed over")
    assert running.end() is None
    assert counted.store().restore().offset == 3


def test_a_stop_is_heard_while_nothing_that_is_read_commits_anything(counted):
    publisher = counted.publisher()
    for _ in range(20_000):
        publisher.publish_uncommitted(counted.topic, b"v", key="a")
    publisher.flush()
    owner, stopping = counted.shard(Counting()), threading.Event()
    read = owner._read

    def stopped_as_it_reads(sequencer):
        for group in read(sequencer):
            if sequencer.offset > 0:
                stopping.set()
            yield group

    owner._read = stopped_as_it_reads
    owner.run(stopping)
    assert 0 < owner.offset < 20_000


class Swelling(Counting):
    """Publishes what is too large for Kafka of one of its keys."""

    def __init__(self, target):
        super().__init__()
        self.target = target

    def consume_message(self, transaction, message):
        super().consume_message(transaction, message)
        size = 2_000_000 if message.record.key() == b"large" else 1
        transaction.publish(self.target, b"x" * size, key=message.record.key())


@pytest.mark.parametrize("limit", [1_000_000, 5_000_000])
def test_a_message_too_large_to_be_derived_is_parked(counted, make_topic, limit):
    """The client refuses it, or the topic does."""
    counted.settings["message.max.bytes"] = limit
    derived = make_topic(name=f"{counted.topic}-derived")
    counted.write(["a", "large", "b"])
    running = Running(counted.shard(Swelling(derived), max_attempts=2).run)
    assert read_keys(counted.settings, derived, 2) == ["a", "b"]
    assert running.end() is None
    assert [(offset, key) for offset, key, _ in counted.parked()] == [(1, b"large")]


def test_so_is_one_of_many_where_a_later_one_is_the_first_to_hear_of_it(counted, make_topic):
    """As the queue of what is published is full, and has to be waited for."""
    counted.settings["message.max.bytes"] = 5_000_000
    derived = make_topic(name=f"{counted.topic}-derived")
    publisher = counted.publisher()
    for key in ("a", "large", "b"):
        publisher.publish_uncommitted(counted.topic, b"v", key=key)
    publisher.acknowledge(publisher.intents())
    publisher.flush()
    counted.settings["queue.buffering.max.messages"] = 1
    running = Running(counted.shard(Swelling(derived), max_attempts=2).run)
    assert read_keys(counted.settings, derived, 2) == ["a", "b"]
    assert running.end() is None
    assert [(offset, key) for offset, key, _ in counted.parked()] == [(1, b"large")]
