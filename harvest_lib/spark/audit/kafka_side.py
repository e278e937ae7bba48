"""Kafka's side of the audit: the ranges of offsets in partitions, and the records with the ids in their headers.

A record is the harvester's if it has a `harvest` header (see `harvest_lib.record.header`); any other record is foreign,
and only counted. SQL functions read the headers: no Python runs for a record.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicCollection
from confluent_kafka import KafkaError as ClientError
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from harvest_lib.errors import ConfigError, KafkaError, TopicMissing
from harvest_lib.kafka_client import LastError, answer_of, client_settings, log_range, refused_settings, translate
from harvest_lib.kafka_offsets.open_transactions import settled_ends
from harvest_lib.record.header import HEADER_NAME, VERSION
from harvest_lib.spark.sequenced import IDS, with_ids

_REACH_SECONDS = 10.0
_OPEN_SECONDS = 30.0
"""How long to wait for open transactions of other producers; a longer transaction is an error."""
_HEADER_BYTES = 25

IS_STAMP = (
    f"h.key = '{HEADER_NAME}' AND length(h.value) = {_HEADER_BYTES} AND substring(h.value, 1, 1) = X'{VERSION:02X}'"
)
"""SQL that is true if the header `h` is the harvester's. The name is no proof, because a row may have other headers of
this name."""
# Takes the last such header, as `harvest_lib.record.header.origin_of` does.
_STAMP = f"try_element_at(filter(headers, h -> {IS_STAMP}), -1).value"
OUTBOX_ID = "CAST(conv(hex(substring(stamp, 18, 8)), 16, -10) AS bigint)"
LEADER = "substring(stamp, 2, 16)"
"""SQL for the fields of the column `stamp`: the outbox id, and the id of the term that sent the record."""
CONTENT = "CASE WHEN value IS NULL THEN 0 ELSE CAST(conv(substr(sha2(value, 256), 1, 16), 16, -10) AS bigint) END"
"""SQL for the digest of a message: the 8 bytes of `harvest_lib.audit.records.content_of` as a number, 0 for a
tombstone."""
_OWN_ID = "CAST(try_element_at(filter(headers, h -> h.key = {name}), -1).value AS string)"
_LEGAL_ID = r"^[\x20-\x7e]{1,200}$"


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A range of offsets in a partition: from `low` on, below `high`."""

    low: int
    high: int


Logs = Mapping[tuple[str, int], Log]
"""Ranges of offsets by topic and partition."""


class SparkTopics:
    """The topics to read, and the connection to Kafka. `settings` are librdkafka's."""

    def __init__(self, settings: Mapping[str, object], names: Sequence[str]) -> None:
        self.names = tuple(dict.fromkeys(names))
        self._settings = dict(settings)
        self._java = java_settings(settings)

    def logs(self) -> Logs:
        """Return the current range of committed records in each partition. A range ends before the first open
        transaction.

        Raises TopicMissing, KafkaUnavailable, KafkaAccessDenied, or ConfigError for settings librdkafka does not take.
        """
        said = LastError()
        own: dict[str, Any] = {"group.id": "harvest-audit", "isolation.level": "read_committed", "error_cb": said}
        with refused_settings():
            consumer = Consumer(client_settings(self._settings, **own, **{"allow.auto.create.topics": False}))
        try:
            deadline = monotonic() + _REACH_SECONDS
            return {place: log for name in self.names for place, log in _logs(consumer, name, deadline).items()}
        except KafkaException as error:
            consumer.poll(0.1)  # the cause, if it was reported
            raise translate(said.denied or error.args[0], settings=self._settings, said=said.text) from error
        finally:
            consumer.close()

    def settled_logs(self) -> Logs:
        """Return the current range of each partition, after all transactions in it were committed or aborted.

        Raises the errors of `logs`, and TransactionOpen if a transaction stays open.
        """
        logs = self.logs()
        ends = settled_ends(self._settings, logs, patience_seconds=_OPEN_SECONDS)
        return {place: Log(low=log.low, high=max(log.high, ends[place])) for place, log in logs.items()}

    def raw(self, spark: SparkSession, logs: Logs, *, parts: int = 1) -> DataFrame:
        """Return the committed records in the ranges `logs`, as rows of Spark's Kafka source. The additional column
        `stamp` is the header `harvest`, null in foreign records. The frame has at least `parts` partitions.

        Raises ConfigError if Spark lacks the jars of its Kafka source.
        """
        assigned: dict[str, list[int]] = {}
        for topic, partition in logs:
            assigned.setdefault(topic, []).append(partition)
        options = {
            **self._java,
            "kafka.isolation.level": "read_committed",
            "kafka.max.poll.records": "5000",
            "assign": json.dumps(assigned),
            "startingOffsets": _offsets({place: log.low for place, log in logs.items()}),
            "endingOffsets": _offsets({place: log.high for place, log in logs.items()}),
            "includeHeaders": "true",
            "minPartitions": str(max(len(logs), parts)),
        }
        try:
            return spark.read.format("kafka").options(**options).load().withColumn("stamp", F.expr(_STAMP))
        except PySparkException as error:
            if "data source" in str(error).lower():
                raise ConfigError(
                    "Spark has no Kafka source",
                    field="HARVEST_SPARK_JARS",
                    next_step="`export HARVEST_SPARK_JARS=$(python -m harvest_lib.spark.jars)` downloads it once; or "
                    f"start Spark with spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:{spark.version}",
                ) from error
            raise

    def ids(self) -> Mapping[str, str]:
        """Return Kafka's id of each topic, which changes when the topic is recreated. An unknown id is an empty
        text."""
        with AdminClient(client_settings(self._settings)) as admin:
            found = {}
            for name in self.names:
                asked = admin.describe_topics(TopicCollection([name]), request_timeout=_REACH_SECONDS)[name]
                try:
                    found[name] = str(answer_of(asked, 2 * _REACH_SECONDS).topic_id)
                except KafkaException:
                    found[name] = ""
        return found

    def read(
        self, spark: SparkSession, logs: Logs, before: Logs, observation: Observation, *, id_header: str | None
    ) -> DataFrame:
        """Return the harvester's records and all sequenced messages in the ranges `logs`, with the columns of
        `comparison.COPY` and `sequenced.IDS`. `record` is null in a message without the harvester's header, such as an
        acknowledgement.

        `observation` counts `messages` of any kind, `foreign` messages, `settled_foreign` messages (below the ends in
        `before`) and `sequenced` messages. The text of the header `id_header` identifies a record; if `id_header` is
        None, the outbox id does. Raises ConfigError if Spark lacks the jars of its Kafka source.
        """
        raw = with_ids(self.raw(spark, logs, parts=spark.sparkContext.defaultParallelism))
        is_ours = F.col("stamp").isNotNull()
        is_foreign = ~is_ours & F.col("clock").isNull()
        stamped = raw.observe(
            observation,
            F.count(F.lit(1)).alias("messages"),
            F.count(F.when(is_foreign, 1)).alias("foreign"),
            F.count(F.when(is_foreign & (F.col("offset") < end_of(before)), 1)).alias("settled_foreign"),
            F.count("clock").alias("sequenced"),
        )
        outbox_id = F.expr(OUTBOX_ID)
        record = outbox_id
        if id_header is not None:
            own_id = F.expr(_OWN_ID.format(name=_quoted(id_header)))
            # A message without a valid id is unknown, and a record of its own.
            record = F.when(own_id.rlike(_LEGAL_ID), own_id).otherwise(F.concat(F.lit("outbox id "), outbox_id))
        record = F.when(is_ours, record)
        return stamped.where(~is_foreign).select(
            record.alias("record"),
            outbox_id.alias("outbox_id"),
            F.expr(LEADER).alias("leader"),
            *("topic", "partition", "offset"),
            # A record without a key has no sequence.
            F.coalesce("key", record.cast("string").cast("binary")).alias("key"),
            F.col("timestamp").alias("at"),
            F.expr(CONTENT).alias("content"),
            *IDS,
        )


def end_of(logs: Logs) -> Column:
    """Return a column with the end of the range of each row's partition. `logs` has the ranges."""
    ends = _offsets({place: log.high for place, log in logs.items()})
    by_topic = F.from_json(F.lit(ends), "map<string,map<string,bigint>>")
    return by_topic[F.col("topic")][F.col("partition").cast("string")]


def _logs(consumer: Consumer, topic: str, deadline: float) -> dict[tuple[str, int], Log]:
    metadata = consumer.list_topics(topic, timeout=max(0.1, deadline - monotonic())).topics[topic]
    if metadata.error is not None and metadata.error.code() == ClientError.UNKNOWN_TOPIC_OR_PART:
        raise TopicMissing(
            f"the topic {topic!r} does not exist",
            evidence=metadata.error.str(),
            next_step="name a topic that the harvester delivers to",
        )
    if metadata.error is not None:
        raise KafkaException(metadata.error)
    found = {}
    for partition in metadata.partitions:
        low, high = log_range(consumer, topic, partition, timeout_seconds=_REACH_SECONDS)
        found[topic, partition] = Log(low=low, high=max(low, high))
    return found


def _offsets(places: Mapping[tuple[str, int], int]) -> str:
    document: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in places.items():
        document.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(document)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_SAME = ("bootstrap.servers", "security.protocol", "sasl.mechanism", "ssl.endpoint.identification.algorithm")
_CREDENTIALS = ("sasl.username", "sasl.password")
_TRUST = "ssl.ca.location"
_ALIASES = {"metadata.broker.list": "bootstrap.servers", "sasl.mechanisms": "sasl.mechanism"}


def java_settings(settings: Mapping[str, object]) -> dict[str, str]:
    """Return librdkafka's addresses and security settings as Spark's options for Kafka's Java client.

    Other settings are left out. Raises ConfigError for a setting of security that cannot be translated.
    """
    given = {_ALIASES.get(name, name): str(value) for name, value in settings.items()}
    java = {f"kafka.{name}": given[name] for name in _SAME if name in given}
    if "sasl.mechanism" in given:
        user, password = (given.get(name, "") for name in _CREDENTIALS)
        module = "plain.PlainLoginModule" if given["sasl.mechanism"] == "PLAIN" else "scram.ScramLoginModule"
        java["kafka.sasl.jaas.config"] = (
            f"org.apache.kafka.common.security.{module} required username={_jaas(user)} password={_jaas(password)};"
        )
    if _TRUST in given:
        java |= {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": given[_TRUST]}
    known = {*_SAME, *_CREDENTIALS, _TRUST}
    strange = sorted(
        name for name in given if name.startswith(("sasl.", "ssl.", "security.", "enable.ssl")) and name not in known
    )
    mechanism = given.get("sasl.mechanism", "PLAIN")
    if strange or not (mechanism == "PLAIN" or mechanism.startswith("SCRAM-")):
        raise ConfigError(
            f"the audit cannot pass {', '.join(strange) or f'sasl.mechanism {mechanism}'} to Spark's Kafka client",
            field=strange[0] if strange else "sasl.mechanism",
            next_step=f"use {', '.join([*_SAME, *_CREDENTIALS, _TRUST])}, with PLAIN or SCRAM",
        )
    return java


def _jaas(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def translated(error: Exception, settings: Mapping[str, object]) -> KafkaError | None:
    """Return the KafkaError behind a failure of Spark, None if Kafka was not the cause."""
    text = str(error)
    if "failOnDataLoss" in text or "OffsetOutOfRange" in text:
        return KafkaError(
            "the log was cut while it was read",
            evidence="Spark did not find an offset that was there when the audit began",
            next_step="run the audit again; if it repeats, check the topic's retention",
        )
    if "org.apache.kafka" in text:
        lines = [line.strip() for line in text.splitlines() if "org.apache.kafka" in line]
        return translate(ClientError(ClientError._ALL_BROKERS_DOWN, lines[0][:300]), settings=settings)
    return None
