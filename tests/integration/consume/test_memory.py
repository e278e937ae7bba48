"""The memory of a consumer: bounded by bytes, whether messages are large or many, pending or not."""

import os
import subprocess
import sys
import time

import pytest
from confluent_kafka import Producer

from harvest_lib.consume import Clock, Publisher, create_tables, new_producer_id

pytestmark = pytest.mark.full

LIMIT_MB = 160
"""Of a shard, beside the 60 to 90 MB that a process has without one: queue, batch, ring, and as much to read again."""

PROGRAM = """
import os, sys, threading
from functools import partial
from harvest_lib.consume import Consumer, PostgresStore

servers, dsn, topic, expected = sys.argv[1:]
stopping, seen = threading.Event(), 0

def resident(figure):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(figure))

class Reading:
    def consume_message(self, transaction, message):
        global seen
        seen += len(message.record.value()) > 0
        if seen == int(expected):
            stopping.set()

    def finalize_txn(self, transaction):
        pass

before = resident("VmRSS")
consumer = Consumer(Reading(), name=f"{topic}-c", topics=[topic], settings={"bootstrap.servers": servers},
                    store=partial(PostgresStore, dsn))
consumer.run(stopping)
print(seen, resident("VmHWM") - before)
"""

LARGE, SMALL = int(os.environ.get("CONSUMER_LARGE", "300")), int(os.environ.get("CONSUMER_SMALL", "100000"))


@pytest.mark.parametrize("is_pending", [False, True])
@pytest.mark.parametrize(("number", "size"), [(LARGE, 990_000), (SMALL, 1_000)])
def test_a_consumer_needs_no_more_however_much_comes(dsn, bootstrap_servers, make_topic, number, size, is_pending):
    topic, settings = make_topic(), {"bootstrap.servers": bootstrap_servers}
    value = os.urandom(size)
    if is_pending:
        publisher = Publisher(settings, producer_id=new_producer_id(), clock=Clock(time.time_ns))
        for each in range(number):
            publisher.publish_uncommitted(topic, value, key=str(each))
        publisher.acknowledge(publisher.intents())
        publisher.flush()
        publisher.close()
    else:
        producer = Producer({**settings, "queue.buffering.max.kbytes": 65_536})
        for each in range(number):
            while True:
                try:
                    producer.produce(topic, value, key=str(each))
                except BufferError:
                    producer.poll(0.1)
                else:
                    break
        assert producer.flush(120) == 0
    create_tables(dsn)
    command = [sys.executable, "-c", PROGRAM, bootstrap_servers, dsn, topic, str(number)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=500)
    seen, peak = done.stdout.split()
    sys.stdout.write(f"{number} of {size} bytes, pending: {is_pending}: {float(peak):.0f} MB\n")
    assert int(seen) == number
    assert float(peak) < LIMIT_MB
