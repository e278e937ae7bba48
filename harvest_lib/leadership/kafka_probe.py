"""Probe whether Kafka answers this process. Only callers that need the answer wait for it.

The client and its connections stay until the end of the process. The probe requests the description of a topic, not of
the cluster: librdkafka (2.16) ends the process if a description of the cluster has neither brokers nor topics. A broker
that has just started sends such a description.
"""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswerYet
from typing import Any

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from harvest_lib.clock import boot_seconds
from harvest_lib.kafka_client import client_settings

_EVERY_SECONDS = 2.0
_ANSWER_SECONDS = 1.0
_TOPIC = "__consumer_offsets"
"""The topic of the request. It need not exist or be visible, as any answer will do."""


class KafkaProbe:
    """Requests the description of a topic, at most every two seconds, and only on demand. Any thread may use it.

    The request needs no rights, because a refusal is an answer too. It creates no topic.
    """

    def __init__(self, settings: Mapping[str, object], clock: Callable[[], float] = boot_seconds) -> None:
        """`settings` are librdkafka's."""
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._admin: AdminClient | None = None
        self._asked: Future[Any] | None = None
        self._asked_at = float("-inf")
        self._silent_since: float | None = None
        self._trouble = ""

    def trouble(self) -> str:
        """Return why Kafka does not answer; an empty string if Kafka answers. Wait up to a second for the answer."""
        with self._lock:
            self._ask(wait_seconds=_ANSWER_SECONDS)
            return self._trouble

    def silent_seconds(self) -> float:
        """Return for how many seconds Kafka has answered no request; 0 if Kafka has answered the newest request. This
        call does not wait for an answer."""
        with self._lock:
            self._ask(wait_seconds=0.0)
            return 0.0 if self._silent_since is None else self._clock() - self._silent_since

    def _ask(self, wait_seconds: float) -> None:
        if self._asked is None and self._clock() >= self._asked_at + _EVERY_SECONDS:
            self._admin = self._admin or AdminClient(client_settings(self._settings))
            asked = self._admin.describe_topics(TopicCollection([_TOPIC]), request_timeout=_ANSWER_SECONDS)
            self._asked = asked[_TOPIC]
            self._asked_at = self._clock()
        if self._asked is None or self._admin is None:
            return
        self._admin.poll(0)  # writes its log lines
        try:
            self._asked.result(wait_seconds)
        except NoAnswerYet:
            if wait_seconds:
                self._trouble = "Kafka does not answer"
            return
        except KafkaException as error:
            self._note(error.args[0].str() if error.args[0].code() < 0 else "")  # other codes are a broker's
        else:
            self._note("")
        self._asked = None

    def _note(self, reason: str) -> None:
        self._trouble = f"Kafka does not answer: {reason}" if reason else ""
        began = self._asked_at if self._silent_since is None else self._silent_since
        self._silent_since = began if reason else None
