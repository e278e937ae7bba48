"""Messages with ids: how fast they are sequenced in memory, and how fast a consumer takes them into Postgres.

The consumer counts 200-byte messages by key, of transactions of 2,500 a partition, in one upsert for each of its own
transactions: as one shard, and as four in one process, which share its interpreter. Its floor is a loop with the bare
client that upserts as often, and promises nothing. Both are timed from their first message until the last is counted.
"""

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg
from confluent_kafka import Consumer as KafkaClient
from confluent_kafka.admin import AdminClient, NewTopic

from harvest_lib.consume import (
    Batch,
    Clock,
    Consumer,
    Flag,
    Message,
    PostgresStore,
    Publisher,
    Replay,
    Sequencer,
    Transaction,
    create_tables,
    new_producer_id,
    pack,
)
from tests.benchmarks.backlog import VALUE_BYTES, Servers
from tests.benchmarks.report import Result, at_least

if TYPE_CHECKING:
    from tests.benchmarks.scenarios import Size

_SHARDS = 4
_KEYS = 1_000
_TRANSACTION = 2_500
_PRODUCERS = 4
_SEQUENCED_PER_SECOND = 300_000.0
_CONSUMED_PER_SECOND = 20_000.0
_UPSERT_SECONDS = 1.0
"""As long as a transaction of a consumer is while there is more."""
_LOOK_SECONDS = 0.02
_LONGEST_SECONDS = 600
_SWITCH_SECONDS = 0.005  # Python's default

_TABLE = "DROP TABLE IF EXISTS counts; CREATE TABLE counts (key text PRIMARY KEY, n bigint NOT NULL)"
_COUNT = """
INSERT INTO counts SELECT * FROM unnest(%s::text[], %s::bigint[])
ON CONFLICT (key) DO UPDATE SET n = counts.n + excluded.n
"""


def sequencer(servers: Servers, size: "Size") -> Iterator[Result]:
    """Sequence a log of several producers who take turns of 100 messages, and acknowledge after each 1,000.

    By the second of one core: nothing is waited for, so what else the machine does is none of its business.
    """
    log = Batch.of(_log(5 * size.records))
    rates = []
    for _ in range(size.rounds):
        began, committed = time.process_time(), 0
        for found in Sequencer().take(log):
            committed += 0 if isinstance(found, Replay) else len(found)
        rates.append(len(log) / (time.process_time() - began))
        if committed != 5 * size.records:
            raise RuntimeError(f"only {committed} messages came")
    yield _at_least("sequencer", median(rates), _SEQUENCED_PER_SECOND)


def _at_least(name: str, rate: float, target: float) -> Result:
    """Compare with a rate that was agreed on: no floor was measured."""
    return at_least(name, rate, "/s", floor=target, ratio=rate / target, target=1.0)


def _log(messages: int) -> Iterator[Message]:
    clock, offset = Clock(time.time_ns), 0
    for turn in range(messages // 100):
        producer = turn % _PRODUCERS + 1
        for _ in range(100):
            yield Message(offset, pack(producer, clock.tick(), Flag.CONTINUE_TXN), None)
            offset += 1
        if turn // _PRODUCERS % 10 == 9 or turn >= messages // 100 - _PRODUCERS:
            yield Message(offset, pack(producer, clock.tick(), Flag.ACK_TXN), None)
            offset += 1


def consumer(servers: Servers, size: "Size") -> Iterator[Result]:
    """Count a topic's messages, with the promises, one by one and by the group, and without, in turn."""
    with _taking_turns_as_consumers_do():
        yield from _consumed(servers, size)


@contextmanager
def _taking_turns_as_consumers_do() -> Iterator[None]:
    """The other benchmarks have threads take turns as `harvest run` does."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _consumed(servers: Servers, size: "Size") -> Iterator[Result]:
    create_tables(servers.dsn)
    one = _compared(servers, size, partitions=1)
    for name, (rate, floor, ratio) in one.items():
        yield at_least(name, rate, "/s", floor=floor, ratio=ratio, target=0.5)
    yield _at_least("consumer-rate", one["consumer"][0], _CONSUMED_PER_SECOND)
    for name, (rate, floor, ratio) in _compared(servers, size, partitions=_SHARDS).items():
        yield at_least(f"{name}-{_SHARDS}-shards", rate, "/s", floor=floor, ratio=ratio)


def _compared(servers: Servers, size: "Size", *, partitions: int) -> dict[str, tuple[float, float, float]]:
    """Return messages per second of a consumer, and of its floor, and the ratio, each the median of rounds."""
    messages = 5 * size.records
    topic = f"consumed-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers.bootstrap_servers})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(30)
    _publish(servers, topic, messages, transaction=partitions * _TRANSACTION)
    rates: dict[str, list[float]] = {"consumer": [], "consumer-groups": []}
    floors = []
    for _ in range(size.rounds):
        floors.append(_bare(servers, topic, messages))
        rates["consumer"].append(_counted(_Counting(), servers, topic, messages))
        rates["consumer-groups"].append(_counted(_CountingGroups(), servers, topic, messages))
    return {
        name: (median(found), median(floors), median(rate / floor for rate, floor in zip(found, floors, strict=True)))
        for name, found in rates.items()
    }


def _publish(servers: Servers, topic: str, messages: int, *, transaction: int) -> None:
    publisher = Publisher(
        {"bootstrap.servers": servers.bootstrap_servers}, producer_id=new_producer_id(), clock=Clock(time.time_ns)
    )
    for number in range(messages):
        publisher.publish_uncommitted(topic, b"x" * VALUE_BYTES, key=f"key-{number % _KEYS}")
        if (number + 1) % transaction == 0 or number + 1 == messages:
            publisher.acknowledge(publisher.intents())
    publisher.flush()
    publisher.close()


class _Counting:
    """Counts messages by key, one at a time, and notes when the first came."""

    def __init__(self) -> None:
        self.began = 0.0

    def consume_message(self, transaction: Transaction, message: Message) -> None:
        try:
            counts = transaction.memory["by_key"]
        except KeyError:
            counts = self._begin(transaction)
        counts[message.record.key()] += 1

    def _begin(self, transaction: Transaction) -> "Counter[bytes]":
        self.began = self.began or time.perf_counter()
        counts: Counter[bytes] = Counter()
        transaction.memory["by_key"] = counts
        return counts

    def finalize_txn(self, transaction: Transaction) -> None:
        _upsert(transaction.state, transaction.memory["by_key"])


class _CountingGroups(_Counting):
    """Counts all that an acknowledgement commits by one call, in the floor's own loop."""

    def consume_messages(self, transaction: Transaction, messages: Batch) -> None:
        counts = transaction.memory.get("by_key") or self._begin(transaction)
        for record in messages.records:
            counts[record.key()] += 1


def _upsert(connection: psycopg.Connection[tuple[object, ...]], counts: "Counter[bytes]") -> None:
    keys = sorted(counts)
    connection.execute(_COUNT, ([key.decode() for key in keys], [counts[key] for key in keys]))


def _counted(application: _Counting, servers: Servers, topic: str, messages: int) -> float:
    """Return messages per second through a consumer of one process."""
    stopping = threading.Event()
    taking = Consumer(
        application,
        name=f"counts-{uuid4().hex[:8]}",
        topics=[topic],
        settings={"bootstrap.servers": servers.bootstrap_servers},
        store=partial(PostgresStore, servers.dsn),
    )
    with psycopg.connect(servers.dsn, autocommit=True) as connection:
        connection.execute(_TABLE)
        thread = threading.Thread(target=taking.run, args=(stopping,))
        thread.start()
        try:
            deadline = time.monotonic() + _LONGEST_SECONDS
            while connection.execute("SELECT coalesce(sum(n), 0) FROM counts").fetchone() != (messages,):
                if time.monotonic() > deadline or not thread.is_alive():
                    raise RuntimeError("the messages were not counted in time")
                time.sleep(_LOOK_SECONDS)
            return messages / (time.perf_counter() - application.began)
        finally:
            stopping.set()
            thread.join()


def _bare(servers: Servers, topic: str, messages: int) -> float:
    """Return messages per second of a loop that polls, counts and upserts, and commits its offsets after that."""
    client = KafkaClient(
        {
            "bootstrap.servers": servers.bootstrap_servers,
            "group.id": f"bare-{uuid4().hex[:8]}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.queue.backoff.ms": 5,  # as our reader has it; the default would stop it for a second
        }
    )
    client.subscribe([topic])
    began, upserted, taken, counts = 0.0, 0.0, 0, Counter[bytes]()
    with psycopg.connect(servers.dsn, autocommit=True) as connection:
        connection.execute(_TABLE)
        while taken < messages:
            for message in client.consume(2_000, 0.1):
                began = began or time.perf_counter()
                key = message.key()
                if message.error() is None and message.value() is not None and key is not None:
                    counts[key] += 1  # acknowledgements have no value
                    taken += 1
            if counts and (taken == messages or time.perf_counter() - upserted >= _UPSERT_SECONDS):
                _upsert(connection, counts)
                client.commit(asynchronous=True)
                counts, upserted = Counter(), time.perf_counter()
        rate = messages / (time.perf_counter() - began)
    client.close()
    return rate
