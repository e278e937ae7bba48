"""Distance of a reader of topics from losing records that it has not read: Kafka removes old ones, read or not.

Promises
- Kafka is asked only while somebody asks us, once a minute at most, on a thread that ends with the answer: nobody waits
  for it.
- Unknown numbers are not reported: none while Kafka does not answer, no time where `retention.ms` may not be read.
- A time is the earliest: Kafka removes whole segments, and none that is being written.

For retention by size (`retention.bytes`) there is no time. The number to watch then is `retained`, and its decrease.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from harvest_lib.clock import Deadline
from harvest_lib.kafka_client import client_settings, topic_settings
from harvest_lib.kafka_offsets import EARLIEST, LATEST, Place, list_offsets
from harvest_lib.telemetry import catalogue
from harvest_lib.telemetry.catalogue import Reading
from harvest_lib.telemetry.counts import MOST_SERIES, OTHER, Labels
from harvest_lib.telemetry.rare_answer import RareAnswer

_ANSWER_SECONDS = 5.0
_MOST_READ = 100
"""Of so many partitions the next record is read for its age: those with the fewest records before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retained:
    """One partition that is read: offsets that are there and not read yet, and offsets from its start to the next that
    is read. `retention_seconds`: None where the topic keeps all, or does not say; `age_seconds` of the next record:
    None if all is read, or it is not known."""

    topic: str
    partition: int
    unread: int
    retained: int
    retention_seconds: float | None = None
    age_seconds: float | None = None


class RetentionWatch:
    """Of a reader with some settings. `positions` returns the next offset to be read of each partition."""

    def __init__(self, settings: Mapping[str, object], positions: Callable[[], Mapping[Place, int]]) -> None:
        self._answer: RareAnswer[Sequence[Retained]] = RareAnswer(
            lambda: retained(settings, positions()), (), name="harvest-retention"
        )

    def seen(self) -> Sequence[Retained]:
        """Return the last answer; ask again if that was long ago. For any thread."""
        return self._answer.seen()


def retained(settings: Mapping[str, object], positions: Mapping[Place, int]) -> Sequence[Retained]:
    """Ask Kafka about partitions that are read next from these offsets. Raises KafkaException, or TimeoutError."""
    if not positions:
        return []
    with AdminClient(client_settings(settings)) as admin:
        starts, ends = (_offsets(admin, positions, spec) for spec in (EARLIEST, LATEST))
        kept_seconds = _retention_seconds(admin, {topic for topic, _ in positions})
    known = [place for place in positions if place in starts and place in ends]
    timed = [
        place
        for place in sorted(known, key=lambda place: positions[place] - starts[place])
        if kept_seconds[place[0]] is not None and starts[place] <= positions[place] < ends[place]
    ]
    ages = _ages(settings, {place: positions[place] for place in timed[:_MOST_READ]})
    # Kafka removed the record to be read next: it was as old at least.
    lost = {place: kept_seconds[place[0]] for place in known if positions[place] < starts[place] < ends[place]}
    return [
        Retained(
            topic=place[0],
            partition=place[1],
            unread=max(0, ends[place] - max(positions[place], starts[place])),
            retained=max(0, positions[place] - starts[place]),
            retention_seconds=kept_seconds[place[0]],
            age_seconds=lost.get(place, ages.get(place)),
        )
        for place in known
    ]


def retention_readings(seen: Sequence[Retained]) -> Iterator[Reading]:
    """Yield the metrics of the partitions that are closest to a loss; unread records of the others are one sum."""
    closest = sorted(seen, key=lambda each: (not each.unread, each.retained))
    labelled = [((each.topic, str(each.partition)), each) for each in closest[:MOST_SERIES]]
    unread: dict[Labels, float] = {label: float(each.unread) for label, each in labelled}
    if others := closest[MOST_SERIES:]:
        unread[OTHER, OTHER] = float(sum(each.unread for each in others))
    yield catalogue.UNREAD_RECORDS, unread
    yield catalogue.READ_RETAINED, {label: float(each.retained) for label, each in labelled}
    timed = [
        (label, each.age_seconds, each.retention_seconds)
        for label, each in labelled
        if each.age_seconds is not None and each.retention_seconds is not None
    ]
    yield catalogue.RETENTION_USED, {label: age / kept for label, age, kept in timed}
    yield catalogue.LOSS_SECONDS, {label: max(0.0, kept - age) for label, age, kept in timed}


def _offsets(admin: AdminClient, places: Mapping[Place, int], spec: OffsetSpec) -> Mapping[Place, int]:
    """Return an offset of each partition; one that we may not see, or that is gone, is left out."""
    found = list_offsets(admin, places, spec, timeout_seconds=_ANSWER_SECONDS)
    return {place: offset for place, offset in found.items() if isinstance(offset, int)}


def _retention_seconds(admin: AdminClient, topics: set[str]) -> Mapping[str, float | None]:
    """Return the retention of each topic in seconds, None where it keeps records permanently, or does not say."""
    found: dict[str, float | None] = dict.fromkeys(topics)
    for topic, settings in topic_settings(admin, topics, timeout_seconds=_ANSWER_SECONDS).items():
        milliseconds = int(settings.get("retention.ms", "-1"))
        if milliseconds > 0 and "delete" in settings.get("cleanup.policy", ""):
            found[topic] = milliseconds / 1000
    return found


def _ages(settings: Mapping[str, object], positions: Mapping[Place, int]) -> Mapping[Place, float | None]:
    """Return the age of the record to be read next of each partition, as far as it is found in time."""
    if not positions:
        return {}
    client: Any = Consumer(
        client_settings(
            settings,
            **{
                "group.id": "harvest-retention",  # asked for by the client; nobody joins it
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "allow.auto.create.topics": False,
                "isolation.level": "read_uncommitted",  # records of an open transaction are as old
                "fetch.message.max.bytes": 65_536,  # one record is wanted, and more comes ahead
                "fetch.wait.max.ms": 50,
            },
        )
    )
    ages: dict[Place, float | None] = {}
    try:
        client.assign([TopicPartition(topic, partition, offset) for (topic, partition), offset in positions.items()])
        deadline = Deadline(_ANSWER_SECONDS)
        while len(ages) < len(positions) and not deadline.passed:
            record = client.poll(min(0.2, deadline.remaining_seconds))
            if record is None or record.error() is not None:
                continue
            place, (kind, milliseconds) = (record.topic(), record.partition()), record.timestamp()
            if place not in ages:
                known = kind != TIMESTAMP_NOT_AVAILABLE
                ages[place] = max(0.0, time.time() - milliseconds / 1000) if known else None
                client.pause([TopicPartition(*place)])
    finally:
        client.close()
    return ages
