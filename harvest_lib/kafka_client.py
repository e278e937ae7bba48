"""Common parts of the Kafka clients: default settings, requests to brokers, and translation of errors.

Promises: if a broker cannot be reached, or refuses the client, the error is from `harvest_lib.errors` and has
librdkafka's last error as evidence. No text of this module contains a secret.
"""

import logging
import re
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeVar

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from harvest_lib.clock import Deadline, boot_seconds
from harvest_lib.errors import ConfigError, KafkaAccessDenied, KafkaError, KafkaUnavailable
from harvest_lib.kafka_callbacks import TOKENS, with_functions, with_logged_errors
from harvest_lib.telemetry.counts import KAFKA_ERRORS

REACH_TIMEOUT_SECONDS = 5.0

T = TypeVar("T")

# `close` of a producer aborts an open transaction, and warns if that fails because the producer was fenced or no broker
# answers. The warning is not needed: the next producer with the transactional id aborts the transaction in any case.
# `catch_warnings` cannot be used, because it is not thread-safe.
warnings.filterwarnings("ignore", message=r"Producer (abort_transaction|flush) failed during close")


class KafkaProducer(Protocol):
    """Interface of a producer: confluent_kafka's Producer, or a wrapper. Methods raise confluent_kafka's errors."""

    def produce(self, topic: str, value: Any = None, key: Any = None, *options: Any, **named: Any) -> None:
        """Queue a message. A later `poll`, `flush` or `purge` calls the message's callback `on_delivery` (error,
        message). For a record of the outbox, topic, value, key and partition are passed by position, and `on_delivery`,
        `timestamp` and `headers` by name."""
        ...

    def __len__(self) -> int:
        """Return the number of messages that are queued, are in flight, or wait for their callback."""
        ...

    def poll(self, timeout: float) -> int:
        """Call the callbacks that are due. Wait up to `timeout` seconds for the first."""
        ...

    def flush(self, timeout: float) -> int:
        """Call callbacks until the queue is empty or `timeout` seconds have passed. Return the number of messages
        left."""
        ...

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:  # noqa: FBT001, FBT002 - confluent_kafka's signature
        """Drop messages that are queued or in flight, and report them as failed."""
        ...

    def close(self) -> bool:
        """Close connections and end threads."""
        ...

    def list_topics(self, topic: str, timeout: float) -> Any:
        """Query the brokers for the metadata of a topic. This also connects to the brokers."""
        ...

    def init_transactions(self, timeout: float) -> None:
        """Acquire the transactional id. This fences an earlier producer with the same id."""
        ...

    def begin_transaction(self) -> None:
        """Begin a transaction."""
        ...

    def commit_transaction(self, timeout: float) -> None:
        """Wait until all messages since `begin_transaction` are acknowledged, then commit them."""
        ...


class KafkaConsumer(Protocol):
    """Interface of a consumer: confluent_kafka's Consumer, or a wrapper. Methods raise confluent_kafka's errors."""

    def subscribe(self, topics: list[str], *, on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        """Join the group. `poll` and `close` call the callbacks."""
        ...

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Start to read the given partitions."""
        ...

    def poll(self, timeout: float) -> Message | None:
        """Return the next message, or an error in the form of a message. Return None if neither arrives within
        `timeout` seconds."""
        ...

    def commit(self, *, offsets: Sequence[TopicPartition], asynchronous: bool) -> Any:
        """Commit offsets."""
        ...

    def memberid(self) -> str | None:
        """Return the id of this member in the group; None before it has joined."""
        ...

    def get_watermark_offsets(self, partition: TopicPartition, *, cached: bool) -> tuple[int, int] | None:
        """Return the first offset and the end of a partition. With `cached`, return the client's last known values."""
        ...

    def close(self) -> None:
        """Leave the group."""
        ...


# The providers return a KafkaProducer and a KafkaConsumer. The type is Any, because the stubs of confluent_kafka's
# classes differ from the protocols.
KafkaProducerProvider = Callable[[dict[str, Any]], Any]
"""A function that creates a KafkaProducer from librdkafka settings, such as `confluent_kafka.Producer`."""
KafkaConsumerProvider = Callable[[dict[str, Any]], Any]
"""A function that creates a KafkaConsumer from librdkafka settings, such as `confluent_kafka.Consumer`."""

_REPEAT_SECONDS = 30.0

_STEP_SECONDS = 0.2
NO_LEADER_YET = (
    ClientError.LEADER_NOT_AVAILABLE,
    ClientError.NOT_LEADER_FOR_PARTITION,
    ClientError.UNKNOWN_TOPIC_OR_PART,
)
"""Errors that a broker returns for a partition without a known leader: the partition is new, or its leader changes."""


class _Calm(logging.Filter):
    """Log filter that passes each warning of librdkafka at most once in `_REPEAT_SECONDS`. librdkafka repeats a warning
    for every attempt to connect."""

    def __init__(self) -> None:
        super().__init__()
        self._passed_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if "enable.gapless.guarantee is experimental" in record.getMessage():
            return False  # the setting is intended, so the warning is not needed
        kind = re.sub(r"\d+", "", record.getMessage())
        now = boot_seconds()
        if now - self._passed_at.get(kind, float("-inf")) < _REPEAT_SECONDS:
            return False
        self._passed_at[kind] = now
        return True


_OF_SERVERS = ("bootstrap.servers", TOKENS)  # a client with `oauth_cb` waits for a token when it is made
LIBRDKAFKA = "harvest_lib.librdkafka"
"""Name of the logger of all clients."""
_LOGGER = logging.getLogger(LIBRDKAFKA)
_LOGGER.addFilter(_Calm())

_DENIED = {
    ClientError._AUTHENTICATION,
    ClientError.SASL_AUTHENTICATION_FAILED,
    ClientError.TOPIC_AUTHORIZATION_FAILED,
    ClientError.GROUP_AUTHORIZATION_FAILED,
    ClientError.CLUSTER_AUTHORIZATION_FAILED,
    ClientError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


_TLS_FAILED = re.compile(r"SSL routines|SSL_HANDSHAKE|SSL handshake|certificate")


def count_error(error: ClientError) -> None:
    """Count an error that a client reported, by librdkafka's name of the error."""
    KAFKA_ERRORS.add(str(error.name()))


def is_refusal(error: ClientError) -> bool:
    """Return True if an error means that the client failed to authenticate or lacks a permission."""
    return error.code() in _DENIED


class LastError:
    """An `error_cb` that stores librdkafka's last errors, because a call that times out does not report the cause."""

    def __init__(self) -> None:
        self._errors: dict[int, ClientError] = {}

    def __call__(self, error: ClientError) -> None:
        self._errors[error.code()] = error
        count_error(error)

    @property
    def denied(self) -> ClientError | None:
        """Return a reported error that is a refusal (`is_refusal`); None without a refusal."""
        return next((error for code, error in self._errors.items() if code in _DENIED), None)

    @property
    def text(self) -> str:
        known = [error.str() for code, error in self._errors.items() if code != ClientError._ALL_BROKERS_DOWN]
        return known[-1] if known else ""


def client_settings(settings: Mapping[str, object], **own: object) -> dict[str, Any]:
    """Return the settings of a client: the user's, overridden by `own`, and a logger that drops repeated warnings.

    By default the client reconnects within a second after a broker is available again; librdkafka's default is up to
    ten seconds. Errors of the user's callbacks are logged. Raises ConfigError for a callback `module:function` that
    cannot be imported.
    """
    made = {"reconnect.backoff.max.ms": 1000, **with_functions(settings), **own, "logger": _LOGGER}
    return with_logged_errors(made)


def refused_setting(settings: Mapping[str, object]) -> str:
    """Return librdkafka's error for an unknown setting or an invalid value; "" if all settings are valid. The check
    makes no connection, and ignores missing files, such as the file of a certificate."""
    try:
        ours = {name: value for name, value in with_functions(settings).items() if name not in _OF_SERVERS}
        Producer({**ours, "log_level": 0})
    except KafkaException as error:
        complaint = str(error.args[0].str()).strip()
        return "" if complaint.startswith("Failed to create") else complaint
    return ""


@contextmanager
def refused_settings(field: str = "baseKafkaConfig or producerKafkaConfig") -> Iterator[None]:
    """Raise ConfigError if librdkafka refuses a setting when the block creates a client. Raise KafkaUnavailable if the
    function `oauth_cb` gives the client no token."""
    try:
        yield
    except KafkaException as error:
        if "OAuth token" in error.args[0].str():
            raise KafkaUnavailable(
                "a client of Kafka got no token",
                evidence=error.args[0].str(),
                next_step="see `kafka_token_failed` in the log, and check the function that `oauth_cb` names",
            ) from error
        raise ConfigError(
            f"librdkafka does not take the settings: {error.args[0].str()}",
            field=field,
            next_step="correct the named setting",
        ) from error


def translate(error: ClientError, *, settings: Mapping[str, object], said: str = "") -> KafkaError:
    """Return the error of `harvest_lib.errors` for a client's error. `said`, the text of another error, is added to the
    evidence."""
    servers = settings.get("bootstrap.servers", "")
    evidence = "; ".join(part for part in (error.str(), said) if part)
    if is_refusal(error):
        return KafkaAccessDenied(
            f"Kafka at {servers} refused the client",
            evidence=evidence,
            next_step="check the `sasl.*` and `ssl.*` settings in `baseKafkaConfig`, and the ACLs: "
            "`harvest grants kafka` prints the needed ACLs",
        )
    if _TLS_FAILED.search(evidence):
        return KafkaUnavailable(
            f"the TLS connection to Kafka at {servers} failed",
            evidence=evidence,
            next_step="check in `baseKafkaConfig` `ssl.ca.location`, which verifies the brokers, and "
            "`ssl.certificate.location` and `ssl.key.location` of the client, and that no certificate has expired",
        )
    return KafkaUnavailable(
        f"Kafka at {servers} does not answer",
        evidence=evidence,
        next_step="check that the brokers run, and `bootstrap.servers` and `security.protocol` in `baseKafkaConfig`",
    )


def topic_partitions(
    settings: Mapping[str, object], *, timeout_seconds: float = REACH_TIMEOUT_SECONDS
) -> dict[str, int]:
    """Return the number of partitions of each topic by name. Raises KafkaUnavailable or KafkaAccessDenied."""
    return {name: len(topic.partitions) for name, topic in _metadata(settings, timeout_seconds).topics.items()}


def answer_of(future: Future[T], timeout_seconds: float) -> T:
    """Return the answer to a request of an admin client. Raises KafkaException if the request fails or the answer does
    not arrive in time, for example because the process was frozen for longer than the client waits."""
    try:
        return future.result(timeout_seconds)
    except TimeoutError as error:
        raise KafkaException(ClientError(ClientError._TIMED_OUT, "no answer in time")) from error


def topic_settings(admin: AdminClient, topics: Collection[str], *, timeout_seconds: float) -> dict[str, dict[str, str]]:
    """Return the settings of each topic by the topic's name. A topic has an empty mapping if it does not exist, or if
    the client may not read its settings."""
    found: dict[str, dict[str, str]] = {topic: {} for topic in topics}
    resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in found]
    futures: Any = admin.describe_configs(resources, request_timeout=timeout_seconds) if resources else {}
    for resource, answer in futures.items():
        with suppress(KafkaException):
            entries = answer_of(answer, timeout_seconds)
            found[resource.name] = {name: entry.value for name, entry in entries.items()}
    return found


def log_range(consumer: Any, topic: str, partition: int, *, timeout_seconds: float) -> tuple[int, int]:
    """Return the first offset and the end of a partition. If the partition has no leader yet, wait for its leader.

    Raises KafkaException if no answer arrives in time.
    """
    deadline = Deadline(timeout_seconds)
    while True:
        try:
            remaining = max(_STEP_SECONDS, deadline.remaining_seconds)
            first, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=remaining)
        except KafkaException as error:
            if error.args[0].code() not in NO_LEADER_YET or deadline.passed:
                raise
            time.sleep(_STEP_SECONDS)
        else:
            return first, end


def cluster_id(settings: Mapping[str, object], *, timeout_seconds: float = REACH_TIMEOUT_SECONDS) -> str:
    """Return the id of the cluster; empty if it has no id. Raises KafkaUnavailable or KafkaAccessDenied."""
    return str(_metadata(settings, timeout_seconds).cluster_id or "")


def _metadata(settings: Mapping[str, object], timeout_seconds: float) -> Any:
    last = LastError()
    with refused_settings():
        admin = AdminClient(client_settings(settings, error_cb=last))
    deadline = Deadline(timeout_seconds)
    with admin:
        while True:
            try:
                return admin.list_topics(timeout=min(1.0, timeout_seconds))
            except KafkaException as error:
                admin.poll(0)
                if last.denied or deadline.passed:  # a refusal is permanent; a missing answer may be temporary
                    raise translate(last.denied or error.args[0], settings=settings, said=last.text) from error
