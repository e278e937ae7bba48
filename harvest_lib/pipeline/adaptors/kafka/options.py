"""Options of the adaptor `kafka`, for its reader and its writer."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from harvest_lib.config.durations import to_seconds
from harvest_lib.config.kafka_settings import KafkaSettings
from harvest_lib.kafka_client import refused_setting
from harvest_lib.pipeline.adaptors import Options
from harvest_lib.pipeline.adaptors.envelope import Content
from harvest_lib.record import INTERNAL_TOPICS, is_legal_topic

NAMESPACE = "{namespace}"


class _Kafka(Options):
    kafka: KafkaSettings
    """librdkafka's settings, `bootstrap.servers` at least. A setting on which a promise of the adaptor depends is
    refused."""

    @field_validator("kafka")
    @classmethod
    def _reachable(cls, settings: KafkaSettings) -> KafkaSettings:
        if not settings.get("bootstrap.servers"):
            raise ValueError("`bootstrap.servers` is missing: write host:port of a broker or more")
        if complaint := refused_setting(settings):
            raise ValueError(f"librdkafka does not take it: {complaint}")
        return settings


class KafkaReading(_Kafka):
    """The options of reading topics, without a consumer group: the pipeline's commit log stores the offsets."""

    topics: Annotated[Sequence[str], Field(min_length=1)]
    """Names of the topics, which must exist."""

    content: Content | Literal["record"] = "envelope"
    """Format of the records. `envelope`: messages, as a pipeline writes them. `data`: the value is a row, the topic is
    its namespace, and a record without value is a delete of the record's key. `record`: any format; key, value and
    headers are passed on unchanged. Default: envelope."""

    start: Literal["beginning", "end"] = "beginning"
    """Start in a topic that was never read. Default: beginning."""

    batch_rows: int = Field(default=1_000, ge=1, le=100_000)
    """Messages in a batch, at most. Default: 1,000."""


class KafkaWriting(_Kafka):
    """The options of writing to topics."""

    topic: str = Field(default=NAMESPACE, min_length=1)
    """The topic. `{namespace}` in it is replaced by the namespace of the message. Default: the namespace."""

    key: Mapping[str, Sequence[str]] = Field(default_factory=dict)
    """Per namespace: the fields that identify a row (the primary key). Records of a key are in order, in one partition.
    Default: all messages of a namespace have the same key, so that all of them are in order."""

    content: Content = "envelope"
    """`envelope`: whole messages, including deletes. `data`: rows; a delete is a record without value (tombstone), as
    compacted topics and readers of tables expect. `data` needs `key`, and `{namespace}` in the topic. Default:
    envelope."""

    partitions: int | None = Field(default=None, ge=1)
    """Number of partitions of topics that the writer creates. Default: missing topics are an error."""

    delivery_timeout_seconds: float = Field(default=120.0, gt=0, alias="delivery_timeout")
    """Time limit for the brokers to store a whole batch, as a duration (`30s`). Default: 2m."""

    @field_validator("delivery_timeout_seconds", mode="before")
    @classmethod
    def _duration(cls, value: object) -> float:
        return to_seconds(value)

    @model_validator(mode="after")
    def _fits(self) -> "KafkaWriting":
        if self.content == "data" and (not self.key or NAMESPACE not in self.topic):
            raise ValueError(
                "`content: data` needs `key`, and `{namespace}` in `topic`: a tombstone has only topic and key"
            )
        if NAMESPACE not in self.topic and not is_legal_topic(self.topic):
            raise ValueError("`topic` is no name that Kafka takes: letters, digits, `.`, `_` and `-`, 249 at most")
        if self.topic in INTERNAL_TOPICS:
            raise ValueError("`topic` is internal to Kafka: brokers refuse what clients write there; name your own")
        return self
