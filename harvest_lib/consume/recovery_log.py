"""The recovery log of a shard: a partition in Kafka with every page of the database that the shard's owner has locally.

The key of a record is `author` (the value names the last owner), `head` (the value has the shard, the number of pages
of the database, and a digest of all pages in the log) or the number of a page (the value is the image of the page). A
transaction of the database is a transaction of Kafka, whose last record is the head. The topic is compacted and has
each page about once, so the time to play the log back depends on the size of the database, not on its age.

Promise: playing the log back returns all committed pages, or raises an error. The digest reveals a page that retention
or a person has removed or changed. A topic that was recreated is a new log.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, BinaryIO

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec

from harvest_lib.consume.checkpoint import ShardId
from harvest_lib.consume.reader import read_uncommitted
from harvest_lib.errors import CheckpointError, TopicMissing
from harvest_lib.kafka_client import answer_of, client_settings, topic_partitions, translate
from harvest_lib.kafka_topics import create_topic, topic_too_small

AUTHOR = "author"
HEAD = "head"

_CONFIG = {"cleanup.policy": "compact", "segment.bytes": "67108864", "min.cleanable.dirty.ratio": "0.1"}
_ANSWER_SECONDS = 10.0
_HIGHEST_PAGE = 2**32 - 1
_DIGEST_BYTES = 16
_DIGESTS = 1 << 8 * _DIGEST_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlace:
    """The partition of a shard's recovery log. It is in the topic `log`, and has the number of the shard's
    partition."""

    log: str
    shard: ShardId

    @property
    def partition(self) -> int:
        return self.shard.partition

    def __str__(self) -> str:
        return f"the recovery log {self.log!r} of {self.shard}"


class PagesDigest:
    """Digest of a set of numbered pages: the sum of the digests of the pages. The digest of each page stays in memory,
    at 130 bytes per page, so that it can be subtracted when the page is replaced."""

    def __init__(self) -> None:
        self._own: dict[int, int] = {}
        self._sum = 0

    def __str__(self) -> str:
        return f"{self._sum:x}"

    def note(self, page: int, image: bytes | None) -> None:
        """Note that a page has a new image, or was removed (None)."""
        self._sum -= self._own.pop(page, 0)
        if image is not None:
            own = blake2b(image, digest_size=_DIGEST_BYTES, salt=page.to_bytes(4, "big")).digest()
            self._own[page] = int.from_bytes(own, "big")
            self._sum += self._own[page]
        self._sum %= _DIGESTS


def create_recovery_log(settings: Mapping[str, object], topic: str, *, partitions: int) -> None:
    """Create the topic of a consumer's recovery logs if it does not exist. `partitions` has to be at least the number
    of partitions of each topic that the consumer reads.

    Raises TopicMissing if the topic may not be created.
    """
    create_topic(settings, topic, partitions=partitions, config=_CONFIG)


def first_offset(settings: Mapping[str, object], place: LogPlace) -> int:
    """Return the log's first offset. Raises TopicMissing, TopicTooSmall, KafkaUnavailable and KafkaAccessDenied. Raises
    CheckpointError if the topic's cleanup policy is not `compact`, so that retention may remove records."""
    partitions = topic_partitions(settings).get(place.log, 0)
    needed = place.partition + 1
    if not partitions:
        raise TopicMissing(
            f"{place} does not exist",
            evidence=f"there is no topic {place.log!r}",
            next_step="make it with `create_recovery_log`, or by `kafka-topics.sh --bootstrap-server … --create "
            f"--topic {place.log} --partitions {needed} --config cleanup.policy=compact`",
        )
    if partitions < needed:
        raise topic_too_small(place.log, partitions=partitions, needed=needed, why="a recovery log for each shard")
    with AdminClient(client_settings(settings)) as admin:
        resource = ConfigResource(ConfigResource.Type.TOPIC, place.log)
        partition = TopicPartition(place.log, place.partition)
        earliest = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        try:
            config: Any = answer_of(admin.describe_configs([resource])[resource], _ANSWER_SECONDS)
            found: Any = answer_of(admin.list_offsets({partition: earliest})[partition], _ANSWER_SECONDS)
        except KafkaException as error:
            raise translate(error.args[0], settings=settings) from error
    policy = config["cleanup.policy"].value
    if policy != "compact":
        raise CheckpointError(
            f"{place} would lose pages that are still needed",
            evidence=f"the `cleanup.policy` of the topic is {policy!r}, not 'compact'",
            next_step=f"`kafka-configs.sh --bootstrap-server … --alter --entity-type topics --entity-name {place.log} "
            "--add-config cleanup.policy=compact`",
        )
    offset: int = found.offset
    return offset


def play_back(
    settings: Mapping[str, object], place: LogPlace, *, begin: int, end: int, database: BinaryIO
) -> tuple[int, PagesDigest]:
    """Write the committed pages between the offsets `begin` and `end` to the empty file `database`.

    Return two values: the number of pages of the database (0 if no page was ever recorded), and the pages' digest.
    Raises CheckpointError if pages that the shard has recorded are missing, and the errors of `read_uncommitted`.
    """
    digest, page_size = PagesDigest(), 0
    head: dict[str, Any] | None = None
    for batch in read_uncommitted(settings, place.log, place.partition, begin=begin, end=end):
        for message in batch:
            match _understood(place, message.record):
                case int(page), bytes(image):
                    page_size = len(image)
                    database.seek((page - 1) * page_size)
                    database.write(image)
                    digest.note(page, image)
                case int(page), None:
                    digest.note(page, None)
                case dict(found):
                    head = found
    if head is None:
        if page_size or begin:
            raise _incomplete(place, f"it begins at offset {begin}, and has no head")
        return 0, digest
    if head["shard"] != list(place.shard):
        raise CheckpointError(
            f"{place} belongs to another shard",
            evidence=f"it is of {head['shard']}, this is {place.shard}",
            next_step="give each consumer a topic of its own for its recovery logs",
        )
    if head["digest"] != str(digest):
        raise _incomplete(
            place, f"it begins at offset {begin}; its pages have the digest {digest}, its head has {head['digest']}"
        )
    database.truncate(head["page_count"] * page_size)  # it may have been larger once
    return head["page_count"], digest


def _understood(place: LogPlace, record: Any) -> tuple[int, bytes | None] | dict[str, Any] | None:
    key, value = record.key(), record.value()
    try:
        if key == AUTHOR.encode():
            return None
        if key != HEAD.encode():
            page = int(key)
            if 0 < page <= _HIGHEST_PAGE:
                return page, value
            raise ValueError(f"{page} is the number of no page")  # noqa: TRY301 - as any other key
        head = json.loads(value)
        return {name: head[name] for name in ("shard", "page_count", "digest")}
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"{place} holds a record that is not of a recovery log",
            evidence=f"the record at offset {record.offset()} has the key {key!r}",
            next_step="name a topic that only this consumer's shards write to",
        ) from error


def _incomplete(place: LogPlace, evidence: str) -> CheckpointError:
    return CheckpointError(
        f"{place} lacks records: some were removed or changed, by retention or by hand",
        evidence=evidence,
        next_step="the state cannot be restored from it: mirror it back from a copy, or start over with another "
        "consumer name and another log, from the messages themselves",
    )
