"""The output of `harvest grants consumer` is enough, with TLS and users that may do nothing else, and agrees with the
page."""

import json
import re
from functools import partial
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Producer
from support.consuming import Counting, Running, read_keys
from support.outbox import read_topic
from support.secured import printed
from support.waiting import eventually

from harvest_lib.consume import (
    Consumer,
    KeyValueStore,
    PostgresStore,
    SqliteStore,
    create_key_values,
    create_recovery_log,
    create_tables,
)
from harvest_lib.errors import KafkaAccessDenied

pytestmark = pytest.mark.gate

DOCS = Path(__file__).parents[3] / "docs"
USER = "harvester"


class Folding:
    """Remembers keys as values, and forgets one."""

    def consume_message(self, transaction, message):
        transaction.state.put(message.record.key().decode(), 1)
        transaction.state.put("a", None)

    def finalize_txn(self, transaction):
        pass


@pytest.fixture
def granted(secured):
    """A topic to consume, one to publish to, tables, and what is printed."""
    secured.make_topic()
    secured.make_topic(f"{secured.name}.derived", partitions=1)
    create_tables(secured.owner_dsn)
    create_key_values(secured.owner_dsn)
    secured.owner.execute("CREATE TABLE counts (key text PRIMARY KEY, n bigint NOT NULL)")
    secured.owner.execute(f"GRANT SELECT, INSERT, UPDATE ON counts TO {USER}")
    secured.owner.execute(printed("grants", "consumer", "postgres", "--role", USER, "--key-values").encode())
    permit(secured, "--publish", f"{secured.name}.derived")
    return secured


def permit(secured, *options):
    who = ("--principal", f"User:{USER}", "--name", secured.name, "--topic", secured.topic)
    secured.put_in(printed("grants", "consumer", "kafka", *who, *options, "--json"))


def consumer(secured, application, store=PostgresStore, name=None):
    return Consumer(
        application,
        name=name or secured.name,
        topics=[secured.topic],
        settings=secured.kafka(USER),
        store=partial(store, secured.dsn(USER)),
    )


def write(secured, keys):
    producer = Producer(secured.stack.kafka.operator_settings)
    for key in keys:
        producer.produce(secured.topic, b"v", key=key)
    assert producer.flush(60) == 0


def test_the_page_says_what_is_printed():
    page = (DOCS / "consuming.md").read_text(encoding="utf-8")
    (grants,) = re.findall(r"^```sql\n(GRANT .*?)^```", page, re.MULTILINE | re.DOTALL)
    said = {line.partition(";")[0].replace('"', "") for line in grants.splitlines()}
    lines = printed("grants", "consumer", "postgres", "--key-values").splitlines()
    assert said == {line.partition(";")[0].replace('"', "") for line in lines if line.startswith("GRANT ")}


@pytest.mark.full
def test_what_is_printed_is_enough(granted):
    query = granted.owner.execute
    write(granted, ["a", "bad", "b"])
    running = Running(consumer(granted, Counting(f"{granted.name}.derived", fails=("bad",))).run)
    assert sorted(read_keys(granted.stack.kafka.operator_settings, f"{granted.name}.derived", 2)) == ["a", "b"]
    eventually(lambda: query("SELECT key FROM consumers_parked").fetchall() == [(b"bad",)], "the bad one is parked")
    assert running.end() is None
    assert query("SELECT key, n FROM counts ORDER BY key").fetchall() == [("a", 1), ("b", 1)]
    write(granted, ["c"])
    running = Running(consumer(granted, Folding(), KeyValueStore).run)
    eventually(lambda: query("SELECT key FROM consumers_state").fetchall() == [("c",)], "the value is kept")
    assert running.end() is None


class Remembering:
    """Counts messages by key, in SQLite."""

    def consume_message(self, transaction, message):
        state = transaction.state
        state.execute("CREATE TABLE IF NOT EXISTS counts (key TEXT PRIMARY KEY, n INT)")
        counted = "INSERT INTO counts VALUES (?, 1) ON CONFLICT (key) DO UPDATE SET n = n + 1"
        state.execute(counted, (message.record.key().decode(),))

    def finalize_txn(self, transaction):
        found = transaction.state.execute("SELECT key, n FROM counts ORDER BY key").fetchall()
        transaction.publish(f"{transaction.shard.consumer}.derived", json.dumps(found), key="counts")


@pytest.mark.long
def test_what_is_printed_is_enough_with_a_recovery_log(granted, tmp_path):
    """And for the next owner, elsewhere, who plays it back."""
    log, derived = f"{granted.name}.log", f"{granted.name}.derived"
    create_recovery_log(granted.stack.kafka.operator_settings, log, partitions=2)
    permit(granted, "--publish", derived, "--log", log)
    for number in (1, 2):
        write(granted, ["a"])
        store = partial(SqliteStore, tmp_path / str(number), granted.kafka(USER), log=log)
        running = Running(
            Consumer(
                Remembering(), name=granted.name, topics=[granted.topic], settings=granted.kafka(USER), store=store
            ).run
        )
        read_keys(granted.stack.kafka.operator_settings, derived, number)
        assert running.end() is None
    last = read_topic("", derived, isolation="read_committed", **granted.stack.kafka.operator_settings)[-1]
    assert json.loads(last.value) == [["a", 2]]


def test_another_group_is_refused(granted):
    with pytest.raises(KafkaAccessDenied):
        running = Running(consumer(granted, Counting(), name=f"{granted.name}.other").run)
        eventually(lambda: running.error is not None, "it is reported")
        raise running.end()


def test_another_role_is_refused(granted):
    with granted.connect("writer") as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("UPDATE consumers SET fence = fence + 1")
