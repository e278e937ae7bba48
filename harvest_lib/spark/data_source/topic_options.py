"""The options of `spark.read` and `spark.readStream` with the format `harvested`, checked before anything is read."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from harvest_lib.errors import ConfigError
from harvest_lib.record.outbox_record import is_legal_topic
from harvest_lib.spark.data_source.option_names import named
from harvest_lib.spark.data_source.read_options import MOST_RECORDS, no_start, positive_number

_KAFKA = "kafka."
_SERVERS = "bootstrap.servers"
_BOTH = ("topics", "startingTime")
_BATCH_ONLY = ("endingTime",)
_STREAM_ONLY = ("startingOffsets", "maxRecordsPerBatch", "sequenced")
_ELSEWHERE = {
    **dict.fromkeys(("subscribe", "assign", "topic", "subscribepattern"), "topics"),
    **dict.fromkeys(("startingtimestamp", "startingoffsetsbytimestamp"), "startingTime"),
    **dict.fromkeys(("endingtimestamp", "endingoffsetsbytimestamp", "endingoffsets"), "endingTime"),
    **dict.fromkeys(("maxoffsetspertrigger", "maxrecordspertrigger"), "maxRecordsPerBatch"),
}
"""Options of Spark's Kafka source, and the option here that is meant."""
_HIDDEN_BY_SPARK = re.compile(r"secret|password|token", re.IGNORECASE)
_DECIDED = {
    *("group.id", "isolation.level", "enable.auto.commit", "enable.auto.offset.store", "auto.offset.reset"),
    *("enable.partition.eof", "allow.auto.create.topics"),
}
"""Settings of librdkafka that `harvest_lib.consume.reader` makes."""

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
SCHEMA = StructType(
    [
        StructField("outbox_id", LongType()),
        StructField("leader", StringType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("key", StringType()),
        StructField("value", BinaryType()),
        StructField("headers", ArrayType(_HEADER)),
    ]
)
"""The columns, the same as of the function `harvested`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOptions:
    """The options of a read of topics, checked."""

    kafka: Mapping[str, object] = field(repr=False)
    """librdkafka's settings: the options that begin with `kafka.`, without this prefix."""
    topics: Sequence[str]
    """Names of the topics, which must exist. In the option, commas are between them."""
    starting: Literal["beginning", "now"] | int = "beginning"
    """`startingOffsets`, or `startingTime` in Unix milliseconds: where a topic that was never read starts."""
    ending_ms: int | None = None
    """`endingTime` in Unix milliseconds: only records before the first record of this time are read. Default: none."""
    max_records: int | None = None
    """`maxRecordsPerBatch`: the largest number of messages that a micro-batch reads. Default: no limit."""
    sequenced: bool = True
    """If False, the topics have no messages of `delivery: sequenced`, and such a message is an error."""

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> "TopicOptions":
        """Check the options and return them. Option names are case-insensitive. Raises ConfigError."""
        given, kafka = _named(options, streaming=streaming)
        most = given.get("maxRecordsPerBatch")
        ends = given.get("endingTime")
        return cls(
            kafka=_settings(kafka),
            topics=_topics(given.get("topics", "")),
            starting=_starting(given),
            ending_ms=None if ends is None else _milliseconds("endingTime", ends),
            max_records=None if most is None else positive_number("maxRecordsPerBatch", most, MOST_RECORDS),
            sequenced=_is_true("sequenced", given.get("sequenced", "true")),
        )


def check_topic_schema(schema: StructType) -> None:
    """Raise ConfigError unless a schema is `SCHEMA`."""
    if schema.simpleString() != SCHEMA.simpleString():
        raise ConfigError(
            f"the format harvested does not read as {schema.simpleString()}",
            field="schema",
            next_step="leave the schema out, and choose columns with select",
        )


def _named(options: Mapping[str, str], *, streaming: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options by their names, and Kafka's settings by librdkafka's names."""
    known, others = (_BOTH + _STREAM_ONLY, _BATCH_ONLY) if streaming else (_BOTH + _BATCH_ONLY, _STREAM_ONLY)
    kafka = {name.lower().removeprefix(_KAFKA): value for name, value in options.items() if _is_kafkas(name)}
    given = {name: value for name, value in options.items() if not _is_kafkas(name)}
    unknown = {name.lower() for name in given if "." in name}
    settings = {name: _KAFKA + name for name in unknown}  # settings of librdkafka without the prefix
    more = f", and {_KAFKA}… for settings of librdkafka"
    elsewhere = {**_ELSEWHERE, **settings, _KAFKA + _SERVERS: _KAFKA + _SERVERS}
    return (
        named(given, known, others=others, streaming=streaming, elsewhere=elsewhere, what="harvested", more=more),
        kafka,
    )


def _is_kafkas(name: str) -> bool:
    return name.lower().startswith(_KAFKA)


def _settings(kafka: Mapping[str, str]) -> Mapping[str, object]:
    """Return librdkafka's settings. Raises ConfigError for a setting that the reader makes itself, and for a secret
    that Spark would show."""
    from harvest_lib.config.kafka_settings import HIDDEN, KafkaSettings, canonical  # noqa: PLC0415 - the driver alone

    settings = canonical(kafka)
    for name, shown in KafkaSettings(settings).redacted().items():
        if name in _DECIDED and settings[name] != "read_committed":
            raise ConfigError("the reader makes this setting itself", field=_KAFKA + name, next_step="leave it out")
        if shown == HIDDEN and not _HIDDEN_BY_SPARK.search(name):
            raise ConfigError(
                "Spark would show this secret in its plans and pages",
                field=_KAFKA + name,
                next_step="name a file that each machine has, such as kafka.ssl.key.location; Spark hides options "
                "whose names have password, secret or token in them",
            )
    if not settings.get(_SERVERS):
        raise ConfigError(
            "no broker was named", field=_KAFKA + _SERVERS, next_step="give host:port of a broker or more"
        )
    return settings


def _topics(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name for each in text.split(",") if (name := each.strip())))
    if not names:
        raise ConfigError("no topic was named", field="topics", next_step="name topics, with commas between them")
    for name in names:
        if not is_legal_topic(name):
            raise ConfigError(
                f"{name[:80]!r} cannot name a Kafka topic",
                field="topics",
                next_step="name topics, with commas between them; patterns are not read",
            )
    return names


def _starting(given: Mapping[str, str]) -> Literal["beginning", "now"] | int:
    place, time = given.get("startingOffsets"), given.get("startingTime")
    if place is not None and time is not None:
        raise ConfigError("two starts were named", field="startingTime", next_step="leave out startingOffsets")
    if time is not None:
        return _milliseconds("startingTime", time)
    if place is None or place == "beginning":
        return "beginning"
    if place == "now":
        return "now"
    raise no_start(place, "use beginning or now, or startingTime for a time")


def _milliseconds(name: str, text: str) -> int:
    """Return Unix milliseconds for a time: ISO 8601 with a zone, or Unix milliseconds."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ConfigError(
            f"{text[:80]!r} is no time with a zone",
            field=name,
            next_step="write 2026-11-21T08:00:00+00:00, or Unix milliseconds",
        )
    return int(moment.timestamp() * 1_000)


def _is_true(name: str, text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ConfigError(f"{text[:80]!r} is neither true nor false", field=name, next_step="write true or false")
    return text.lower() == "true"
