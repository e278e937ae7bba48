"""Records written one by one at a steady rate, each a transaction, and when each came to a reader of committed records.

Writer and reader are threads of this process, so both go by one clock. A value begins with the number of its record.
"""

import threading
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from confluent_kafka import Consumer, TopicPartition

from tests.benchmarks.backlog import KEYS, PARTITIONS, VALUE_BYTES
from tests.benchmarks.compare.peer import Place

_LONGEST_SECONDS = 60
_LOOK_SECONDS = 0.02


class Traffic:
    """Records written and arrived so far: for each number the time of its commit, and of each arrival."""

    def __init__(self, place: Place, insert_one: str, rate: int) -> None:
        """Start nothing yet."""
        self.written: list[float] = []
        self.arrivals: dict[int, list[float]] = {}
        self._place, self._insert, self._rate = place, insert_one, rate
        self._written_all, self._read_all, self._ready = threading.Event(), threading.Event(), threading.Event()
        self._failed: list[BaseException] = []

    def await_first_after(self, at: float) -> float:
        """Return when the first record came that was committed after a time. Raises RuntimeError if none does."""
        deadline = time.monotonic() + _LONGEST_SECONDS
        while time.monotonic() < deadline:
            after = range(bisect_right(self.written, at), len(self.written))
            if came := [self.arrivals[number][0] for number in after if number in self.arrivals]:
                return min(came)
            time.sleep(_LOOK_SECONDS)
        raise RuntimeError(f"nothing that was committed later came within {_LONGEST_SECONDS} s")

    def finish(self, seconds: float) -> None:
        """Write no more, and wait so long for the rest to come."""
        self._written_all.set()
        deadline = time.monotonic() + seconds
        while len(self.arrivals) < len(self.written) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)

    @property
    def lost(self) -> int:
        """Return how many have not come."""
        return len(self.written) - len(self.arrivals)

    @property
    def duplicates(self) -> int:
        """Return how often a record came that had come before."""
        return sum(len(each) - 1 for each in list(self.arrivals.values()))

    def _write(self) -> None:
        try:
            with psycopg.connect(self._place.servers.dsn, autocommit=True) as connection:
                began = time.time()
                while not self._written_all.is_set():
                    number = len(self.written)
                    time.sleep(max(0.0, began + number / self._rate - time.time()))
                    value = f"{number}".ljust(VALUE_BYTES, "x")
                    record = (self._place.servers.topic, f"key-{number * 7919 % KEYS}", value)
                    connection.execute(self._insert, record, prepare=True)
                    self.written.append(time.time())
        except psycopg.Error as error:
            self._failed.append(error)

    def _read(self) -> None:
        servers = self._place.servers
        consumer = Consumer(
            {
                "bootstrap.servers": servers.bootstrap_servers,
                "group.id": f"{servers.topic}-reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        partitions = [TopicPartition(servers.topic, number) for number in range(PARTITIONS)]
        for partition in partitions:
            _, partition.offset = consumer.get_watermark_offsets(partition, timeout=_LONGEST_SECONDS)
        consumer.assign(partitions)
        consumer.poll(0.5)
        self._ready.set()
        while not self._read_all.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None and (value := message.value()) is not None:
                self.arrivals.setdefault(int(value.rstrip(b"x")), []).append(time.time())
        consumer.close()


@contextmanager
def traffic(place: Place, insert_one: str, rate: int) -> Iterator[Traffic]:
    """Write and read until this is left; both go on already when it is entered."""
    flow = Traffic(place, insert_one, rate)
    writer, reader = threading.Thread(target=flow._write), threading.Thread(target=flow._read)
    reader.start()
    try:
        if not flow._ready.wait(_LONGEST_SECONDS):
            raise RuntimeError("the reader did not come to read")
        writer.start()
        yield flow
        if flow._failed:
            raise RuntimeError(f"the writer failed: {flow._failed[0]}")
    finally:
        flow._written_all.set()
        flow._read_all.set()
        reader.join()
        if writer.ident is not None:
            writer.join()
