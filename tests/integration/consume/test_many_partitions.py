"""120 partitions in a process that may have 1,024 files: all messages count, and a limit is said."""

import json
import subprocess
import sys
from collections import Counter

import psycopg
import pytest
from confluent_kafka import Producer
from support.waiting import eventually

from harvest_lib.consume import create_tables

pytestmark = pytest.mark.full

PARTITIONS = 120
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


@pytest.mark.parametrize("soft", [256, 1_024])
def test_all_partitions_are_served_and_the_limit_is_said_once(
    dsn, bootstrap_servers, make_topic, unique, tmp_path, soft
):
    create_tables(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE counts (key text PRIMARY KEY, n bigint NOT NULL)")
    topic = make_topic(partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for number in range(3 * PARTITIONS):
        producer.produce(topic, b"v", key=str(number), partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    log = tmp_path / "log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, dsn, bootstrap_servers, topic, unique("c"), str(soft)], stderr=errors
        )
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            count = "SELECT count(*), sum(n) FROM counts"

            def all_counted():
                assert process.poll() is None, log.read_text()[-2000:]
                return connection.execute(count).fetchone() == (3 * PARTITIONS, 3 * PARTITIONS)

            eventually(all_counted, "all messages are counted once", seconds=200)
    finally:
        process.terminate()
        process.wait(60)
    events = Counter(json.loads(line)["event"] for line in log.read_text().splitlines() if line.startswith("{"))
    assert events["shard_failed"] == 0, events
    assert events["shards_wait"] == 1, events
