"""Consumers and harvesters together, as docs/consuming.md has them: from outbox to outbox, and each record once."""

import importlib.util
import re
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import ClassVar

import psycopg
import pytest
from support.consuming import Counting, Running
from support.outbox import harvest_config, read_topic
from support.waiting import eventually

from harvest_lib import Harvest
from harvest_lib.consume import Consumer, PostgresStore, ShardLimits, create_tables

pytestmark = pytest.mark.gate

DOCS = Path(__file__).parents[3] / "docs"
KEYS = 200


def example(name):
    specification = importlib.util.spec_from_file_location(name, DOCS / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def query(dsn):
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield lambda *statement: connection.execute(*statement).fetchone()[0]


@pytest.fixture
def consuming(outbox, bootstrap_servers, unique):
    """Start consumers of the outbox's topic."""
    create_tables(outbox.dsn)
    name, started = unique("consumer"), []

    def start(application, store=PostgresStore, **limits):
        consumer = Consumer(
            application,
            name=name,
            topics=[outbox.topic],
            settings={"bootstrap.servers": bootstrap_servers, "session.timeout.ms": 60_000},
            store=partial(store, outbox.dsn),
            limits=ShardLimits(**limits),
        )
        started.append(Running(consumer.run))
        return started[-1]

    yield start
    for running in started:
        running.end()


@pytest.fixture
def harvest(outbox, bootstrap_servers, group_id):
    def drain(**settings):
        Harvest(harvest_config(outbox.dsn, bootstrap_servers, group_id, leadership="solo", **settings)).drain(60)

    return drain


class Failing(PostgresStore):
    """Now and then a transaction is not kept, or the owner dies once it is."""

    turns: ClassVar[dict] = defaultdict(int)
    """By shard; a shard is at work on one thread at a time."""

    def commit(self, checkpoint):
        self.turns[self.shard] += 1
        turn = self.turns[self.shard] % 3
        if turn == 1:
            raise RuntimeError("before it is kept")
        kept = super().commit(checkpoint)
        if turn == 2:
            raise RuntimeError("after it was kept")
        return kept


@pytest.mark.quick
def test_from_outbox_to_outbox_each_record_comes_once(
    outbox, bootstrap_servers, make_topic, consuming, harvest, query, caplog
):
    invoices = make_topic(name=f"{outbox.topic}-invoices")
    outbox.connection.execute("CREATE TABLE invoices (id text PRIMARY KEY, made_at timestamptz NOT NULL)")
    outbox.fill(KEYS, keys=KEYS)
    harvest(delivery="transactional")
    consuming(example("consume_to_outbox").Invoicing(invoices), Failing)
    eventually(lambda: query("SELECT count(*) FROM invoices") == KEYS, "each order has its invoice")
    failed = {str(record.exc_info[1]) for record in caplog.records if record.msg == "shard_failed"}
    assert failed == {"before it is kept", "after it was kept"}
    harvest(delivery="transactional")
    arrived = read_topic(bootstrap_servers, invoices, isolation="read_committed")
    assert sorted(record.key for record in arrived) == sorted(f"key-{number}" for number in range(KEYS))


def test_what_a_harvester_delivers_twice_is_taken_in_once(outbox, bootstrap_servers, consuming, harvest, query):
    """Its purge is undone, as that of one that dies before it purges: the next sends all of it again."""
    outbox.connection.execute("CREATE TABLE taken (outbox_id bigint PRIMARY KEY, taken_at timestamptz DEFAULT now())")
    outbox.connection.execute("CREATE TABLE counts (key text PRIMARY KEY, n bigint NOT NULL)")
    outbox.fill(KEYS, keys=KEYS)
    outbox.connection.execute("CREATE TABLE undone AS TABLE outbox")
    harvest()
    outbox.connection.execute("INSERT INTO outbox SELECT * FROM undone")
    harvest()
    assert len(read_topic(bootstrap_servers, outbox.topic)) == 2 * KEYS
    consuming(example("deduplicated").Deduplicated(Counting()))
    last = """SELECT coalesce(sum((checkpoint->>'offset')::bigint), 0) FROM consumers
              WHERE (checkpoint->>'offset')::bigint > 0"""
    eventually(lambda: query(last) == 2 * KEYS, "all was read")
    assert query("SELECT sum(n) FROM counts") == KEYS
    assert query("SELECT count(*) FROM counts WHERE n = 1") == KEYS


def test_the_page_shows_code_that_runs():
    """Each piece of Python is in one of the examples, which the tests run."""
    page = (DOCS / "consuming.md").read_text(encoding="utf-8")
    examples = [re.sub(r"\s+", " ", file.read_text(encoding="utf-8")) for file in (DOCS / "examples").glob("*.py")]
    pieces = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert pieces
    for piece in pieces:
        assert any(re.sub(r"\s+", " ", piece).strip() in each for each in examples), piece
