"""120 partitions in a process that may have 1,024 files, or 20 connections: all messages count, and a limit is said."""

import json
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager

import psycopg
import pytest
from confluent_kafka import Producer
from psycopg import sql
from psycopg.conninfo import make_conninfo
from support.waiting import eventually

from harvest_lib.consume import create_tables

pytestmark = pytest.mark.full

PARTITIONS, CONNECTIONS = 120, 20
PROGRAM = """
import resource, signal, sys, threading
from functools import partial
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[5]), 1_024))
from harvest_lib.cli.log_output import configure_logging
from harvest_lib.consume import Consumer, PostgresStore
configure_logging("json", "info")
class Counting:
    def consume_message(self, transaction, message):
        transaction.state.execute("INSERT INTO counts VALUES (%s, 1) ON CONFLICT (key) DO UPDATE SET n = counts.n + 1",
                                  (message.record.key().decode(),))
    def finalize_txn(self, transaction):
        pass
stopping = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stopping.set())
dsn, servers, topic, name = sys.argv[1:5]
Consumer(Counting(), name=name, topics=[topic], settings={"bootstrap.servers": servers},
         store=partial(PostgresStore, dsn)).run(stopping)
"""


@pytest.fixture
def consuming(dsn, bootstrap_servers, make_topic, unique, tmp_path):
    """Run a consumer of three messages of each partition until all are counted; return its log, once it has ended."""
    create_tables(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE counts (key text PRIMARY KEY, n bigint NOT NULL)")
    topic = make_topic(partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for number in range(3 * PARTITIONS):
        producer.produce(topic, b"v", key=str(number), partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    log = tmp_path / "log"

    @contextmanager
    def consuming(own_dsn, soft):
        with log.open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, own_dsn, bootstrap_servers, topic, unique("c"), str(soft)],
                stderr=errors,
            )
        lines = []
        try:
            with psycopg.connect(dsn, autocommit=True) as connection:
                count = "SELECT count(*), sum(n) FROM counts"

                def all_counted():
                    assert process.poll() is None, log.read_text()[-2000:]
                    return connection.execute(count).fetchone() == (3 * PARTITIONS, 3 * PARTITIONS)

                eventually(all_counted, "all messages are counted once", seconds=200)
                yield lines
        finally:
            process.terminate()
            process.wait(60)
        lines += [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]

    return consuming


@pytest.mark.parametrize("soft", [256, 1_024])
def test_all_partitions_are_served_and_the_limit_is_said_once(dsn, consuming, soft):
    with consuming(dsn, soft) as lines:
        pass
    events = Counter(line["event"] for line in lines)
    assert events["shard_failed"] == 0, events
    assert events["shards_wait"] == 1, events


@pytest.fixture
def few_connections(dsn, consuming, unique):
    """The same database, by a role that may have a sixth of the connections that its partitions need."""
    role = unique("few")[:63]
    tables = sql.SQL("consumers, consumers_parked, counts")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            sql.SQL(
                "CREATE ROLE {role} LOGIN PASSWORD 'few' CONNECTION LIMIT {most};"
                "GRANT SELECT, INSERT, UPDATE ON {tables} TO {role}"
            ).format(role=sql.Identifier(role), most=sql.Literal(CONNECTIONS), tables=tables)
        )
    yield make_conninfo(dsn, user=role, password="few")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP OWNED BY {role}; DROP ROLE {role}").format(role=sql.Identifier(role)))


def test_partitions_that_wait_for_a_connection_keep_their_order(dsn, consuming, few_connections):
    with consuming(few_connections, 1_024) as lines, psycopg.connect(dsn) as connection:
        turns = connection.execute("SELECT count(*), max(fence) FROM consumers").fetchone()
    assert turns[0] == PARTITIONS
    assert turns[1] <= 2, "a partition had its third turn before another had its first"
    assert "shard_failed" not in {line["event"] for line in lines}
    said = [line for line in lines if line["event"] == "shards_wait" and "CONNECTION LIMIT" in line["next_step"]]
    assert len(said) == 1, said
