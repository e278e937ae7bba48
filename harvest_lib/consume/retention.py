"""Watches how soon a reader of topics may lose records that it has not read: Kafka removes old records, read or not.

Promises
- Kafka is queried only on demand, at most once a minute, on a thread that ends with the answer. No caller waits for the
  answer.
- Unknown values are not reported: no number while Kafka does not answer, no time if `retention.ms` may not be read.
- A reported time is the earliest possible time. Kafka may remove a record later, because it removes only whole
  segments, and not the segment that is being written.

For retention by size (`retention.bytes`) no time is known. Watch instead whether `retained` decreases.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from harvest_lib.clock import Deadline
from harvest_lib.kafka_client import client_settings, topic_settings
from harvest_lib.kafka_offsets import EARLIEST, LATEST, Place, list_offsets
from harvest_lib.telemetry import catalogue
from harvest_lib.telemetry.catalogue import Reading
from harvest_lib.telemetry.counts import MOST_SERIES, OTHER, Labels
from harvest_lib.telemetry.rare_answer import RareAnswer

_ANSWER_SECONDS = 5.0
_MOST_READ = 100
"""Limit of the partitions for which the age of the next record to read is queried. They are the partitions with the
fewest retained records before that record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retained:
    """Retention of one partition that is read. `unread`: number of offsets in the log that are not read yet.
    `retained`: number of offsets from the log's start to the next read. `start`: first offset of the log.
    `retention_seconds`: None if the topic retains all records, or if the retention is unknown. `expires_at`: the time,
    in Unix seconds, when Kafka may remove the next record to read; if all records are read, a record written now; None
    if unknown."""

    topic: str
    partition: int
    unread: int
    retained: int
    start: int
    retention_seconds: float | None = None
    expires_at: float | None = None


class RetentionWatch:
    """Retention of the partitions of a reader. `settings` are librdkafka's. `positions` returns, for each partition,
    the next offset to read."""

    def __init__(self, settings: Mapping[str, object], positions: Callable[[], Mapping[Place, int]]) -> None:
        self._answer: RareAnswer[Sequence[Retained]] = RareAnswer(
            lambda: retained(settings, positions()), (), name="harvest-retention"
        )

    def seen(self) -> Sequence[Retained]:
        """Return the last answer, and start a new query if that answer is older than a minute. Any thread may call this
        method."""
        return self._answer.seen()


def retained(settings: Mapping[str, object], positions: Mapping[Place, int]) -> Sequence[Retained]:
    """Query Kafka for the retention of partitions. `positions` has, for each partition, the next offset to read. Raises
    KafkaException or TimeoutError."""
    if not positions:
        return []
    with AdminClient(client_settings(settings)) as admin:
        starts, ends = (_offsets(admin, positions, spec) for spec in (EARLIEST, LATEST))
        kept_seconds = _retention_seconds(admin, {topic for topic, _ in positions})
    now = time.time()
    known = [place for place in positions if place in starts and place in ends]
    limited = {place: kept for place in known if (kept := kept_seconds[place[0]]) is not None}
    waiting = {place for place in limited if max(positions[place], starts[place]) < ends[place]}
    removed = {place for place in waiting if positions[place] < starts[place]}
    nearest = sorted(waiting - removed, key=lambda place: positions[place] - starts[place])[:_MOST_READ]
    written = _timestamps(settings, {place: positions[place] for place in nearest})
    expires = {place: now + kept for place, kept in limited.items() if positions[place] == ends[place]}
    expires |= {place: written[place] + limited[place] for place in written} | dict.fromkeys(removed, now)
    return [
        Retained(
            topic=place[0],
            partition=place[1],
            unread=max(0, ends[place] - max(positions[place], starts[place])),
            retained=max(0, positions[place] - starts[place]),
            start=starts[place],
            retention_seconds=kept_seconds[place[0]],
            expires_at=expires.get(place),
        )
        for place in known
    ]


def retention_readings(seen: Sequence[Retained]) -> Iterator[Reading]:
    """Yield the metrics of the partitions that are closest to a loss. For all other partitions, yield only the sum of
    their unread records."""
    closest = sorted(seen, key=lambda each: (not each.unread, each.retained))
    labelled = [((each.topic, str(each.partition)), each) for each in closest[:MOST_SERIES]]
    unread: dict[Labels, float] = {label: float(each.unread) for label, each in labelled}
    if others := closest[MOST_SERIES:]:
        unread[OTHER, OTHER] = float(sum(each.unread for each in others))
    yield catalogue.UNREAD_RECORDS, unread
    yield catalogue.READ_RETAINED, {label: float(each.retained) for label, each in labelled}
    yield catalogue.READ_START, {label: float(each.start) for label, each in labelled}
    yield (
        catalogue.UNREAD_EXPIRY,
        {label: each.expires_at for label, each in labelled if each.expires_at is not None},
    )
    yield (
        catalogue.TOPIC_RETENTION,
        {(each.topic,): each.retention_seconds for _, each in labelled if each.retention_seconds is not None},
    )


def _offsets(admin: AdminClient, places: Mapping[Place, int], spec: OffsetSpec) -> Mapping[Place, int]:
    """Return an offset of each partition, as `spec` says. Missing partitions, and partitions that this user may not
    see, are left out."""
    found = list_offsets(admin, places, spec, timeout_seconds=_ANSWER_SECONDS)
    return {place: offset for place, offset in found.items() if isinstance(offset, int)}


def _retention_seconds(admin: AdminClient, topics: set[str]) -> Mapping[str, float | None]:
    """Return the retention of each topic in seconds; None if the topic retains records permanently, or if its retention
    is unknown."""
    found: dict[str, float | None] = dict.fromkeys(topics)
    for topic, settings in topic_settings(admin, topics, timeout_seconds=_ANSWER_SECONDS).items():
        milliseconds = int(settings.get("retention.ms", "-1"))
        if milliseconds > 0 and "delete" in settings.get("cleanup.policy", ""):
            found[topic] = milliseconds / 1000
    return found


def _timestamps(settings: Mapping[str, object], positions: Mapping[Place, int]) -> Mapping[Place, float]:
    """Return, for each partition, the timestamp of the next record to read, in Unix seconds. A partition is left out if
    the record is not found in time or has no timestamp."""
    if not positions:
        return {}
    client: Any = Consumer(
        client_settings(
            settings,
            **{
                "group.id": "harvest-retention",  # the client requires a group; no member joins it
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
    found: dict[Place, float | None] = {}
    try:
        client.assign([TopicPartition(topic, partition, offset) for (topic, partition), offset in positions.items()])
        deadline = Deadline(_ANSWER_SECONDS)
        while len(found) < len(positions) and not deadline.passed:
            record = client.poll(min(0.2, deadline.remaining_seconds))
            if record is None or record.error() is not None:
                continue
            place, (kind, milliseconds) = (record.topic(), record.partition()), record.timestamp()
            if place not in found:
                found[place] = milliseconds / 1000 if kind != TIMESTAMP_NOT_AVAILABLE else None
                client.pause([TopicPartition(*place)])
    finally:
        client.close()
    return {place: at for place, at in found.items() if at is not None}
