"""The catalogue of all metrics: name, type, labels and meaning. Only metrics of this catalogue are reported.

Names follow Prometheus' conventions: a prefix, base units (seconds, bytes), `_total` for counters. Bounds of histograms
follow OpenTelemetry's conventions for messaging. Names are public API, because dashboards and alerts use them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from harvest_lib.telemetry.counts import HistogramReading, Labels

Kind = Literal["counter", "gauge", "histogram", "info"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """Description of a metric. The name of a counter ends in `_total`, the name of an info metric in `_info`."""

    name: str
    kind: Kind
    help: str
    labels: Sequence[str] = ()

    def __post_init__(self) -> None:
        suffix = {"counter": "_total", "info": "_info"}.get(self.kind, "")
        if not self.name.endswith(suffix):
            raise ValueError(self.name)


Reading = tuple[Metric, Mapping[Labels, float | HistogramReading]]
"""A metric, and its current value for each combination of label values."""


class Readings(Protocol):
    """A source of current values of metrics."""

    def readings(self) -> Iterable[Reading]:
        """Return the current values. Several threads may call this at the same time."""
        ...


def _counter(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(name=name, kind="counter", help=meaning, labels=labels)


def _gauge(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(name=name, kind="gauge", help=meaning, labels=labels)


def _histogram(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(name=name, kind="histogram", help=meaning, labels=labels)


# -- a harvester

INFO = Metric(
    name="harvest_info",
    kind="info",
    help="What runs: always 1.",
    labels=("version", "process", "outbox", "subscription", "leadership", "source", "delivery", "hand_over"),
)
LEADER = _gauge("harvest_leader", "1 where this process leads the shard under a live term, else 0.", "shard")
READY = _gauge("harvest_ready", "1 while `/readyz` is healthy, else 0.")
TERMS = _counter("harvest_terms_total", "Terms that this process began.", "shard")
TERM_REFRESHES = _counter(
    "harvest_term_refreshes_total",
    "New leader ids within a term: a delivery failed, or Postgres did not answer.",
    "shard",
)
TERMS_ENDED = _counter(
    "harvest_terms_ended_total",
    "Terms that ended: `revoked` in order, `fenced` as leadership could not be proved, or another process leads.",
    *("shard", "reason"),
)
DELIVERED = _counter(
    "harvest_delivered_records_total",
    "Records that this process delivered: acknowledged by Kafka, and passed by a checkpoint or purged.",
    "shard",
)
POSSIBLE_DUPLICATES = _counter(
    "harvest_possible_duplicate_records_total",
    "Records that are sent again because their outcome was unknown: the most records that are in Kafka twice; none "
    "under an exactly-once delivery. Records in flight in a killed process are not counted here; `harvest audit` "
    "finds them.",
    "shard",
)
IN_FLIGHT = _gauge("harvest_in_flight_records", "Records that were sent and are not acknowledged yet.")
BATCHES = _counter(
    "harvest_batches_total",
    "Batches with records, by outcome: `committed`, `failed` or `fenced`.",
    *("shard", "outcome"),
)
BATCH_SECONDS = _histogram(
    "harvest_batch_duration_seconds", "From the first record of a batch to its commit. Committed batches.", "shard"
)
COMMIT_SECONDS = _histogram(
    "harvest_commit_duration_seconds",
    "How long a commit waited for Kafka: until all of a batch was acknowledged, with the checkpoint if it is part of "
    "it.",
    "shard",
)
LATENCY_SECONDS = _histogram(
    "harvest_delivery_latency_seconds",
    "From `create_time` to the acknowledgement, by the database's clock. A sample: at most a record a second.",
    "shard",
)
KAFKA_ERRORS = _counter(
    "harvest_kafka_errors_total",
    "Errors that Kafka's clients in this process reported, by librdkafka's name of the kind.",
    "error",
)
POSTGRES_CONNECTIONS = _counter(
    "harvest_postgres_connections_total",
    "Connections to Postgres that this process `opened`, and attempts that `failed`.",
    "outcome",
)
CERTIFICATE_EXPIRY = _gauge(
    "harvest_certificate_expiry_timestamp_seconds",
    "When the certificate in the file of a setting expires, in Unix seconds: for a client certificate the earliest "
    "expiry in its chain, for a trust store the latest. Of harvesters and consumers.",
    "setting",
)
LOG_EVENTS = _counter(
    "harvest_log_events_total", "Events logged as a warning or worse, by their name in the log.", *("event", "level")
)

POSTGRES_UP = _gauge(
    "harvest_postgres_up",
    "1 if Postgres answered the last query for the numbers below, else 0; they are left out then.",
)
SAMPLE_AGE = _gauge("harvest_sample_age_seconds", "How long ago Postgres was queried for the numbers below.")
BACKLOG_RECORDS = _gauge(
    "harvest_backlog_records",
    "Records that wait for the configured subscription. Counted to 1,000; beyond, estimated from the ids from the "
    "first that waits to the last that was given out. Every process reports it: take the greatest, not the sum.",
)
BACKLOG_IS_ESTIMATE = _gauge("harvest_backlog_is_estimate", "1 where `harvest_backlog_records` is an estimate.")
BACKLOG_AGE = _gauge(
    "harvest_backlog_age_seconds",
    "Age of the oldest record that waits, by the database's clock, 0 if none does; absent without a column for it.",
)
STALLED = _gauge(
    "harvest_stalled_seconds",
    "How long the backlog was not reduced, as observed by this process; 0 while no record waits.",
)
PARKED = _gauge(
    "harvest_parked_records",
    "Records by topic that are `parked`, or `held` behind a parked record. Counted to 10,000; the 20 topics with the "
    "most.",
    *("topic", "state"),
)
EPOCH = _gauge("harvest_subscription_epoch", "The epoch of the last term: it rises with each.", "subscription", "shard")
SUBSCRIPTION_DELIVERED = _counter(
    "harvest_subscription_delivered_records_total",
    "Records that a subscription delivered, over all terms and processes, by its checkpoint in Postgres; from 0 "
    "again when it is rewound. Every process reports it: take the greatest, not the sum.",
    *("subscription", "shard"),
)
CHECKPOINT_AGE = _gauge(
    "harvest_checkpoint_age_seconds",
    "Time since the checkpoint in Postgres was written, by the database's clock. It grows while no record comes. A "
    "process that started after the last term began knows no time before that: take the greatest.",
    *("subscription", "shard"),
)
SEGMENTS_HELD = _gauge(
    "harvest_held_segments",
    "Closed segments, older than `keepSegments`, that stay as this subscription has not passed them.",
    "subscription",
)
SEGMENTS_HELD_BYTES = _gauge(
    "harvest_held_segments_bytes", "Size of the held segments on disk, indexes included.", "subscription"
)
OUTBOX_BYTES = _gauge("harvest_outbox_bytes", "Size of the outbox on disk: all segments, with their indexes.")
DATABASE_BYTES = _gauge("harvest_database_bytes", "Size of the whole database on disk, without its log.")
DATABASE_LIMIT = _gauge(
    "harvest_database_limit_bytes", "Size limit of the database: `databaseLimitBytes`; absent where it is not set."
)
PARTITIONS_ADDED = _gauge(
    "harvest_partitions_added_timestamp_seconds",
    "When it was noticed that partitions were added to a topic, in Unix seconds; the 20 topics of the last.",
    "topic",
)

# -- readers of topics: consumers, pipelines

UNREAD_RECORDS = _gauge(
    "harvest_unread_records",
    "Offsets from the next record to be read to the end of the partition.",
    *("topic", "partition"),
)
READ_RETAINED = _gauge(
    "harvest_read_retained_records",
    "Offsets from the start of the partition to the next record to be read: retention removes them before an unread "
    "record.",
    *("topic", "partition"),
)
READ_START = _gauge(
    "harvest_read_start_offset", "First offset of the partition that is still there.", *("topic", "partition")
)
UNREAD_EXPIRY = _gauge(
    "harvest_unread_expiry_timestamp_seconds",
    "When Kafka may remove the next record to be read, by the topic's `retention.ms`, in Unix seconds; for a reader "
    "at the end, when it may remove a record written now; absent if the topic keeps all records, if unread records "
    "were removed, or if it is unknown.",
    *("topic", "partition"),
)
TOPIC_RETENTION = _gauge(
    "harvest_read_retention_seconds",
    "How long a topic that is read keeps records: its `retention.ms`; absent if it keeps all records, or is unknown.",
    "topic",
)

# -- a consumer

CONSUMER_SHARDS = _gauge("harvest_consumer_shards", "Partitions that this process owns, by topic.", "topic")
CONSUMER_MESSAGES = _counter(
    "harvest_consumer_messages_total", "Messages that were processed in transactions that were kept.", "topic"
)
CONSUMER_TRANSACTIONS = _counter("harvest_consumer_transactions_total", "Transactions that were kept.", "topic")
CONSUMER_PARKED = _counter("harvest_consumer_parked_messages_total", "Messages that were parked.", "topic")
CONSUMER_FENCED = _counter(
    "harvest_consumer_fenced_total", "Transactions that were refused, as another owner had begun."
)
CONSUMER_OFFSET = _gauge(
    "harvest_consumer_offset", "Where the last transaction that was kept ends.", *("topic", "partition")
)
CONSUMER_STUCK = _gauge(
    "harvest_consumer_stuck_seconds",
    "How long a partition of this process has had a transaction open, or has only failed, since it last kept a "
    "transaction; 0 while it continues, or has no message.",
    *("topic", "partition"),
)

# -- a pipeline

PIPELINE_RUNNING = _gauge("harvest_pipeline_running", "1 while messages flow, 0 while it resumes or stops.", "pipeline")
PIPELINE_LOG_END = _gauge(
    "harvest_pipeline_log_end_offset", "The offset that the next message of the commit log gets.", "pipeline"
)
PIPELINE_WRITER_POSITION = _gauge(
    "harvest_pipeline_writer_position", "The first offset that a writer has not acknowledged.", *("pipeline", "writer")
)
PIPELINE_WRITER_BEHIND = _gauge(
    "harvest_pipeline_writer_behind_messages",
    "Offsets between a writer's position and the end of the log.",
    *("pipeline", "writer"),
)
PIPELINE_WRITER_AT_WORK = _gauge(
    "harvest_pipeline_writer_at_work", "1 while a writer works, 0 once it ended or failed.", *("pipeline", "writer")
)
PIPELINE_WRITER_STALLED = _gauge(
    "harvest_pipeline_writer_stalled_seconds",
    "How long a writer behind the log has acknowledged nothing, as observed at requests; 0 while it continues, or "
    "has all messages.",
    *("pipeline", "writer"),
)
PIPELINE_SLOT_STATUS = _gauge(
    "harvest_pipeline_slot_status",
    "1 for the `wal_status` that Postgres gives for the slot that a pipeline reads, 0 for other states: `reserved`, "
    "`extended`, `unreserved` (it may be lost at any time), `lost`.",
    *("pipeline", "slot", "status"),
)
PIPELINE_SLOT_RETAINED = _gauge(
    "harvest_pipeline_slot_retained_bytes",
    "Bytes of its log that Postgres keeps for the slot; absent once it is lost.",
    *("pipeline", "slot"),
)
PIPELINE_SLOT_SAFE = _gauge(
    "harvest_pipeline_slot_safe_bytes",
    "Bytes that may be written before the slot may be lost; absent where `max_slot_wal_keep_size` sets no limit.",
    *("pipeline", "slot"),
)

# -- an audit

AUDIT_FINDINGS = _gauge(
    "harvest_audit_findings",
    "Anomalies that the last complete audit found: `lost`, `reordered` and the like.",
    *("topics", "finding"),
)
AUDIT_LAST_COMPLETE = _gauge(
    "harvest_audit_last_complete_timestamp_seconds", "When the last complete audit ended, in Unix seconds.", "topics"
)
AUDIT_FAILED = _gauge("harvest_audit_failed", "1 if the last audit ended without a result, else 0.", "topics")

OF_EVERY_PROCESS = (KAFKA_ERRORS, POSTGRES_CONNECTIONS, LOG_EVENTS)
OF_THE_HARVESTER = (
    *(INFO, LEADER, READY, TERMS, TERM_REFRESHES, TERMS_ENDED, DELIVERED, POSSIBLE_DUPLICATES, IN_FLIGHT),
    *(BATCHES, BATCH_SECONDS, COMMIT_SECONDS, LATENCY_SECONDS, DATABASE_LIMIT),
)
OF_THE_OUTBOX = (
    *(POSTGRES_UP, SAMPLE_AGE, BACKLOG_RECORDS, BACKLOG_IS_ESTIMATE, BACKLOG_AGE, STALLED, PARKED),
    *(EPOCH, SUBSCRIPTION_DELIVERED, CHECKPOINT_AGE, SEGMENTS_HELD, SEGMENTS_HELD_BYTES),
    *(OUTBOX_BYTES, DATABASE_BYTES, PARTITIONS_ADDED),
)
OF_CONSUMERS = (
    *(CONSUMER_SHARDS, CONSUMER_MESSAGES, CONSUMER_TRANSACTIONS, CONSUMER_PARKED, CONSUMER_FENCED),
    *(CONSUMER_OFFSET, CONSUMER_STUCK),
)
OF_SLOTS = (PIPELINE_SLOT_STATUS, PIPELINE_SLOT_RETAINED, PIPELINE_SLOT_SAFE)
OF_READERS = (UNREAD_RECORDS, READ_RETAINED, READ_START, UNREAD_EXPIRY, TOPIC_RETENTION)
OF_CERTIFICATES = (CERTIFICATE_EXPIRY,)
OF_PIPELINES = (
    *(PIPELINE_RUNNING, PIPELINE_LOG_END, PIPELINE_WRITER_POSITION),
    *(PIPELINE_WRITER_BEHIND, PIPELINE_WRITER_AT_WORK, PIPELINE_WRITER_STALLED),
)
OF_AUDITS = (AUDIT_FINDINGS, AUDIT_LAST_COMPLETE, AUDIT_FAILED)

ALL = (
    *(*OF_EVERY_PROCESS, *OF_CERTIFICATES, *OF_THE_HARVESTER, *OF_THE_OUTBOX),
    *(*OF_CONSUMERS, *OF_PIPELINES, *OF_SLOTS, *OF_READERS, *OF_AUDITS),
)
