"""Records in a topic for readers of committed records, over time, while a relay drains its outbox."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient

from harvest_lib.kafka_offsets import LATEST
from tests.benchmarks.backlog import PARTITIONS, Servers

_LOOK_SECONDS = 0.02
_STILL_SECONDS = 1.0
"""So long after the last change nothing more comes."""
_STALLED_SECONDS = 60.0
_ANSWER_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """So many records were in the topic at a time, by `time.perf_counter()`; markers of transactions count."""

    at: float
    records: int


class Topic:
    """A topic, asked how many committed records it has."""

    def __init__(self, servers: Servers) -> None:
        """Connect at the first question."""
        self._admin = AdminClient({"bootstrap.servers": servers.bootstrap_servers, "log_level": 0})
        self._asked = {TopicPartition(servers.topic, each): LATEST for each in range(PARTITIONS)}

    def records(self) -> int:
        """Return the sum of the ends of all partitions."""
        answers = self._admin.list_offsets(
            self._asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_ANSWER_SECONDS
        )
        return sum(each.result().offset for each in answers.values())


def watch(records: Callable[[], int], base: int, expected: int, *, first: Callable[[], None]) -> Sequence[Sample]:
    """Return the samples from the first record after `base` to the last of so many; `first` is called when it has come.

    Raises RuntimeError when nothing more comes for a minute.
    """
    changed = time.perf_counter()
    samples: list[Sample] = []
    while True:
        now, count = time.perf_counter(), records() - base
        if count > (samples[-1].records if samples else 0):
            if not samples:
                first()
            samples.append(Sample(at=now, records=count))
            changed = now
        came = samples[-1].records if samples else 0
        if came >= expected and now - changed > _STILL_SECONDS:
            return samples
        if now - changed > _STALLED_SECONDS:
            raise RuntimeError(f"only {came} of {expected} records came")
        time.sleep(_LOOK_SECONDS)


def rate(samples: Sequence[Sample]) -> float:
    """Return records per second from the first look that found some to the last record."""
    begin, end = samples[0], samples[-1]
    if end.at <= begin.at:
        raise RuntimeError("all records came between two looks; measure more of them")
    return (end.records - begin.records) / (end.at - begin.at)
