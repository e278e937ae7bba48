"""Raw librdkafka settings: passed through unchanged, except settings that a promise of the harvester depends on.

`settings["sasl.password"]` returns the value in clear text, as a client needs it. Every printed form (`repr`, `str`,
`redacted()`, a model's dump) hides values that are or may be secret.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from harvest_lib.config.problems import Problem, raise_in_validator, unsendable

HIDDEN = "***"

SESSION_TIMEOUT = "session.timeout.ms"
DELIVERY_TIMEOUTS = ("delivery.timeout.ms", "message.timeout.ms")  # librdkafka's two names for the same setting
IN_FLIGHT = "max.in.flight.requests.per.connection"
BATCH_BYTES = "batch.size"  # producers compare it with the topics' limits
TRANSLATED = frozenset({SESSION_TIMEOUT, *DELIVERY_TIMEOUTS})
"""Settings that a field of the configuration replaces: clients get the checked value of the field."""

_SECRET_WORDS = re.compile(r"password|passphrase|secret|token|private|credential|key\.pem|ssl_key", re.IGNORECASE)
_SECRET_NAMES = frozenset({"sasl.jaas.config", "sasl.oauthbearer.config", "sasl.kerberos.kinit.cmd"})
_SECRET_IN_URL = re.compile(r"://[^/@\s]*:[^/@\s]*@")
_ALIASES = {"metadata.broker.list": "bootstrap.servers", "max.in.flight": IN_FLIGHT}


@dataclass(frozen=True, slots=True)
class _Kept:
    """A promise that depends on a setting. The setting may only have one of the `allowed` values. If `allowed` is
    empty, the setting must not be set at all."""

    promise: str
    allowed: frozenset[str] = frozenset()
    remedy: str = "remove it"


_FALSE = frozenset({"false", "0", "f"})
_KEPT = {
    "group.id": _Kept(
        "a pool is elected by the name `leaderGroupID`, and a pipeline reads without a group",
        remedy="remove it; a pool's name is `leaderGroupID`",
    ),
    "enable.auto.commit": _Kept("the leader topic's offsets belong to the election, a pipeline's offsets to its log"),
    "auto.offset.reset": _Kept(
        "the leader topic is read from its end, because a leader needs only heartbeats of its own term; a pipeline "
        "begins at `start` of its reader",
    ),
    "group.protocol": _Kept(
        "the session timeout that a leader fences itself by is the client's, as in the classic protocol",
        frozenset({"classic"}),
    ),
    "partition.assignment.strategy": _Kept(
        "leadership is taken back as a whole before a successor is elected (eager rebalancing)",
        frozenset({"range,roundrobin"}),
    ),
    "group.instance.id": _Kept(
        "leadership passes on at once when a process leaves; a static member keeps it until its session ends"
    ),
    "acks": _Kept(
        "a record is purged only when every in-sync replica has it", frozenset({"all", "-1"}), "remove it, or set `all`"
    ),
    "enable.idempotence": _Kept(
        "the producer's own retries neither repeat nor reorder records", frozenset({"true", "1", "t"})
    ),
    IN_FLIGHT: _Kept(
        "an idempotent producer keeps order with at most 5 requests in flight", frozenset("12345"), "set 5 or less"
    ),
    "retries": _Kept(
        "the producer sends again until the delivery timeout, so that no later record of a key is in its place",
        remedy="remove it; `delivery.timeout.ms` sets the duration",
    ),
    "partitioner": _Kept(
        "a key's records keep their order, so all go to one partition; `random` spreads every key, "
        "`consistent_random` the empty key",
        frozenset({"consistent", "murmur2", "murmur2_random", "fnv1a", "fnv1a_random"}),
        "remove it, or set `consistent`, which puts any other key where `consistent_random` does",
    ),
    "transactional.id": _Kept(
        "this delivery commits no transactions, so records of a transaction would never become visible"
    ),
    "enable.gapless.guarantee": _Kept(
        "it comes with `delivery`: pipelined rests on it, barrier on its absence", _FALSE
    ),
    "delivery.report.only.error": _Kept("a record is purged when it is reported delivered", _FALSE),
    "dr_cb": _Kept(
        "delivery reports come to the harvester, which purges or resets by them",
        remedy="remove it, and set an event handler on the harvester",
    ),
    "allow.auto.create.topics": _Kept(
        "a misspelled topic is an error, not a new topic without readers",
        _FALSE,
        "remove it, and create the topics beforehand",
    ),
}
_OTHER_NAMES = {
    "request.required.acks": "acks",
    "message.send.max.retries": "retries",
    "dr_msg_cb": "dr_cb",
    "on_delivery": "dr_cb",
}
_OF_TOPICS = "topic."
"""Optional prefix of librdkafka's topic settings."""
_BEYOND_LIBRDKAFKA = 2**63
_FUNCTION = re.compile(r"[^\W\d][\w.]*:[^\W\d]\w*")


class KafkaSettings(Mapping[str, object]):
    """Settings of librdkafka by librdkafka's names. Values are text, numbers, booleans or, from Python, callables. A
    callback may also be the text `module:function`: `kafka_client.client_settings` imports it."""

    __slots__ = ("_settings",)

    def __init__(self, settings: Mapping[str, object] | None = None) -> None:
        self._settings = dict(settings or {})

    def __getitem__(self, name: str) -> object:
        return self._settings[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._settings)

    def __len__(self) -> int:
        return len(self._settings)

    def __hash__(self) -> int:
        return hash(frozenset(self._settings))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.redacted()!r})"

    def redacted(self) -> dict[str, object]:
        """Return the settings; each value that is or may be a secret is hidden."""
        return {name: _shown(name, value) for name, value in self._settings.items()}

    def milliseconds(self, name: str) -> float | None:
        """Return a setting that is given in milliseconds, converted to seconds; None if it is not set."""
        value = self._settings.get(name)
        return None if value is None else int(str(value)) / 1000

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validated, serialization=core_schema.plain_serializer_function_ser_schema(cls.redacted)
        )

    @classmethod
    def _validated(cls, value: object) -> "KafkaSettings":
        if not isinstance(value, Mapping):
            raise PydanticCustomError("dict_type", "not a mapping")
        settings = canonical(value)
        raise_in_validator(cls.__name__, [problem for name, each in settings.items() for problem in _check(name, each)])
        return cls(settings)


def canonical(settings: Mapping[Any, object]) -> dict[Any, object]:
    """Return settings with the aliases in `_ALIASES` replaced by librdkafka's main names. Other aliases stay, because
    this library neither reads nor merges the settings that they name."""
    return {_ALIASES.get(name, name): value for name, value in settings.items()}


def is_secret(name: str) -> bool:
    """Return True if the name of a setting alone shows that its value is secret."""
    return name in _SECRET_NAMES or _SECRET_WORDS.search(name) is not None


def _shown(name: str, value: object) -> object:
    if is_secret(name) or (isinstance(value, str) and _SECRET_IN_URL.search(value)):
        return HIDDEN
    return value if isinstance(value, str | int | float | bool) else f"<{type(value).__name__}>"


def _check(name: object, value: object) -> Iterator[Problem]:
    if not isinstance(name, str) or not name:
        yield Problem(path=(), message="has a name that is not text", remedy="write librdkafka's names, in quotes")
        return
    if complaint := unsendable(name) or (unsendable(value) if isinstance(value, str) else ""):
        yield Problem(path=(name,), message=complaint, remedy="remove it")
    elif name.startswith("go."):
        remedy = "remove it: settings of confluent-kafka-go mean nothing to librdkafka"
        yield Problem(path=(name,), message="is not a setting of librdkafka", remedy=remedy)
    elif value is None:
        yield Problem(path=(name,), message="has no value", remedy="write a value, or remove it")
    elif name != "logger" and not callable(value) and not isinstance(value, str | int | float | bool):
        remedy = "write a single value; librdkafka's settings are flat, topic settings included"
        yield Problem(path=(name,), message="is not text, a number, true or false", remedy=remedy)
    elif name.endswith("_cb") and not callable(value) and not _FUNCTION.fullmatch(str(value)):
        remedy = "name a function of Python as `module:function`"
        yield Problem(path=(name,), message="names no function", remedy=remedy)
    elif name == "default.topic.config":
        remedy = "write its entries beside the other settings; librdkafka's settings are flat, topic settings included"
        yield Problem(path=(name,), message="is not a setting of librdkafka", remedy=remedy)
    elif isinstance(value, int) and abs(value) >= _BEYOND_LIBRDKAFKA:
        yield Problem(path=(name,), message="is out of range", remedy="choose a number that librdkafka can hold")
    elif kept := _KEPT.get(_OTHER_NAMES.get(bare := name.removeprefix(_OF_TOPICS), bare)):
        if str(value).strip().lower() not in kept.allowed:
            yield Problem(path=(name,), message=f"must not be changed: {kept.promise}", remedy=kept.remedy)
    elif name == BATCH_BYTES and not _is_digits(value, least=1):
        yield Problem(path=(name,), message="must be a whole number of bytes", remedy="write digits only")
    elif name in TRANSLATED and not _is_digits(value, least=1 if name == SESSION_TIMEOUT else 0):
        yield Problem(path=(name,), message="must be a whole number of milliseconds", remedy="write digits only")


def _is_digits(value: object, *, least: int) -> bool:
    text = str(value)
    return not isinstance(value, bool) and text.isascii() and text.isdigit() and len(text) <= 10 and int(text) >= least  # noqa: PLR2004 - an int32 has 10 digits
