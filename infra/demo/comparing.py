"""Comparison of found records with written records, and a reader of the committed records of a topic."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import TypeVar
from uuid import uuid4

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from harvest_lib.errors import StackError
from infra.demo.place import Place

Value = TypeVar("Value", bound=Hashable)

_READ_SECONDS = 30.0


def differences(
    written: Iterable[Value] | Mapping[Value, int], found: Iterable[Value] | Mapping[Value, int]
) -> dict[str, int]:
    """Count the found values (`rows`), the lost values and the surplus values (`duplicates`). A changed value counts
    as lost and as surplus."""
    expected, there = Counter[Value](written), Counter[Value](found)
    return {
        "rows": there.total(),
        "lost": (expected - there).total(),
        "duplicates": (there - expected).total(),
    }


def committed_values(place: Place) -> Iterator[bytes]:
    """Yield the values of the topic's committed records, up to its end, in order within each partition."""
    consumer = Consumer(
        {
            **place.kafka,
            "group.id": f"look-{uuid4().hex[:8]}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    try:
        partitions = set(consumer.list_topics(place.topic, _READ_SECONDS).topics[place.topic].partitions)
        consumer.assign([TopicPartition(place.topic, partition, OFFSET_BEGINNING) for partition in partitions])
        while partitions:
            record = consumer.poll(_READ_SECONDS)
            if record is None:
                raise StackError("Kafka does not hand out its records", next_step="read the broker's log")
            if (error := record.error()) is None:
                value = record.value()
                yield value if isinstance(value, bytes) else b""
            elif error.code() == KafkaError._PARTITION_EOF:
                partitions.discard(record.partition() or 0)
            else:
                raise StackError("a topic cannot be read", evidence=error.str(), next_step="run it again")
    finally:
        consumer.close()
