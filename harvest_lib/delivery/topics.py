"""What is known of the topics that records name: whether they exist, how large a batch they take, and what they keep.

Asked before a record is sent, because what a broker refuses it refuses by the batch: one record too many bytes costs
all that travel with it. Topics that exist are remembered, the absence of one for a few seconds.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from harvest_lib.deadline import boot_seconds
from harvest_lib.kafka_client import client_settings
from harvest_lib.record import Row, Unreadable, is_legal_topic

_log = logging.getLogger(__name__)

_ANSWER_SECONDS = 2.0
_RECHECK_SECONDS = 5.0
"""How long the absence of a topic is believed, and how long silence is not asked again."""

DEFAULT_BATCH_BYTES = 1_000_000
"""librdkafka's own `batch.size`, just below the brokers' default of `max.message.bytes`."""


_BATCH_OVERHEAD_BYTES = 1_000
"""More than a batch of one needs beside the record's own bytes."""

_LONGEST_CHARACTER_BYTES = 4

COMPACTED = "the topic is compacted"
"""Why a record is refused, where topics have to keep all that is written to them."""


class Topics:
    """Knowledge of topics, by asking the brokers when a topic is first named. `settings` are the base ones.

    Where topics have to `keep_all`, those that are compacted take nothing.
    """

    def __init__(self, settings: Mapping[str, object], *, keep_all: bool = False) -> None:
        self._keep_all = keep_all
        self._compacted: set[str] = set()
        self._settings = {**settings, "socket.timeout.ms": int(_ANSWER_SECONDS * 1000)}
        self._admin: AdminClient | None = None
        self._limits: dict[str, int] = {}
        self._missing: dict[str, float] = {}  # topic -> until when this is believed
        self._ask_at = 0.0
        self.smallest_limit = DEFAULT_BATCH_BYTES
        """The lowest `max.message.bytes` of a topic seen so far, if it is below librdkafka's own limit."""

    def refused(self, rows: Iterable[Row]) -> dict[int, str]:
        """Return the records that can never be sent, id and reason. Blocks while brokers are asked of a new topic."""
        known, compacted = self._limits, self._compacted
        doubtful = [
            row
            for row in rows
            if row[1] not in known
            or row[1] in compacted
            or len(row[4]) != len(row[5])
            or None in row[4]
            or _is_nested(row[4])
        ]
        if not doubtful:
            return {}
        self._learn({row[1] for row in doubtful if row[1] not in known and is_legal_topic(row[1])})
        reasons = ((row[0], self._reason(row)) for row in doubtful)
        return {record_id: reason for record_id, reason in reasons if reason}

    def oversized(self, rows: Iterable[Row], largest: int) -> set[int]:
        """Return the ids of those that a broker refuses unless they can be compressed, and with them all that is in one
        batch with them. `largest` is the length of the longest value; headers are not looked at unless that is long."""
        if largest * _LONGEST_CHARACTER_BYTES + _BATCH_OVERHEAD_BYTES <= self.smallest_limit:
            return set()
        return {row[0] for row in rows if _size(row) + _BATCH_OVERHEAD_BYTES > self.limit(row[1])}

    def compacted(self, topics: Iterable[str]) -> list[str]:
        """Return those of the topics that are compacted, as far as we may know."""
        self._learn({topic for topic in topics if topic not in self._limits and is_legal_topic(topic)})
        return sorted(self._compacted.intersection(topics))

    def limit(self, topic: str) -> int:
        """Return how many bytes a batch for the topic may have."""
        return self._limits.get(topic, DEFAULT_BATCH_BYTES)

    def forget(self) -> None:
        """Ask again of every topic: one was made or removed, or its limit changed."""
        self._limits.clear()
        self._missing.clear()
        self._compacted.clear()

    def _reason(self, row: Row) -> str:
        _, topic, _, _, names, contents = row
        if contents and isinstance(contents[0], Unreadable):
            return contents[0]
        if len(names) != len(contents):
            return f"{len(names)} header names, {len(contents)} header values"
        if None in names:
            return "a header without a name"
        if _is_nested(names) or _is_nested(contents):
            return "the header names or values are an array of arrays"
        if not is_legal_topic(topic):
            return "the topic's name is not legal in Kafka"
        if topic in self._missing:
            return "the topic does not exist"
        if topic in self._compacted:
            return COMPACTED
        return ""

    def _learn(self, topics: set[str]) -> None:
        now = boot_seconds()
        self._missing = {topic: until for topic, until in self._missing.items() if until > now}
        topics = topics - self._missing.keys()
        if not topics or now < self._ask_at:
            return
        try:
            existing = self._existing(topics)
            self._limits.update(existing)
        except KafkaException as error:  # nobody knows: the delivery finds out
            self._ask_at = boot_seconds() + _RECHECK_SECONDS
            _log.debug("topics_unknown", extra={"reason": error.args[0].str()})
            return
        self._missing.update(dict.fromkeys(topics - existing.keys(), boot_seconds() + _RECHECK_SECONDS))
        self.smallest_limit = min(self.smallest_limit, *self._limits.values(), DEFAULT_BATCH_BYTES)

    def _existing(self, topics: set[str]) -> dict[str, int]:
        """Return those of the topics that exist, with the bytes of a batch that each takes."""
        admin = self._admin = self._admin or AdminClient(client_settings(self._settings))
        found = {
            topic: DEFAULT_BATCH_BYTES
            for topic, answer in admin.describe_topics(
                TopicCollection(sorted(topics)), request_timeout=_ANSWER_SECONDS
            ).items()
            if _exists(answer)
        }
        resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in found]
        answers: Any = admin.describe_configs(resources, request_timeout=_ANSWER_SECONDS) if resources else {}
        for resource, answer in answers.items():
            try:
                config = answer.result(_ANSWER_SECONDS)
                found[resource.name] = int(config["max.message.bytes"].value)
                if self._keep_all and "compact" in config["cleanup.policy"].value:
                    self._compacted.add(resource.name)
            except (KafkaException, TimeoutError, KeyError, TypeError, ValueError) as error:  # the default will do
                _log.debug("topic_limit_unknown", extra={"topic": resource.name, "reason": str(error)})
        return found


def _is_nested(texts: Sequence[object]) -> bool:
    """Tell whether an array of texts has more than one dimension, which the type of its column allows. The client would
    send what Python makes of a list as the name of a header."""
    return bool(texts) and type(texts[0]) is list


def _exists(description: "Future[Any]") -> bool:
    """Tell whether a topic exists; one that is not ours to see does, until the delivery finds out."""
    try:
        description.result(2 * _ANSWER_SECONDS)
    except KafkaException as error:
        code = error.args[0].code()
        if code not in {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED}:
            raise
        return bool(code == KafkaError.TOPIC_AUTHORIZATION_FAILED)
    return True


def _size(row: Row) -> int:
    _, _, key, value, names, contents = row
    return sum(
        len(text if isinstance(text, bytes) else text.encode()) for text in (key, value, *names, *contents) if text
    )
