"""The panels of the dashboard for Grafana, by row.

Each panel answers a question of an on-call engineer, in the usual order: is all well, which records wait, how fast are
they delivered, which process leads, what fails, what is stored; then the same for consumers and pipelines. Each query
selects the jobs that are chosen at the top of the dashboard.
"""

from dataclasses import dataclass

_JOB = '{job=~"$job"}'
_PARKED = 'sum(max by (topic) (harvest_parked_records{job=~"$job", state="parked"})) or vector(0)'
_EXPIRY = "harvest_certificate_expiry_timestamp_seconds"
_EACH = "[$__rate_interval]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One panel. `queries` has the PromQL of each legend; `unit` is Grafana's name of the unit."""

    title: str
    about: str
    queries: dict[str, str]
    unit: str = "short"
    red_at: float | None = None
    """If set, the panel shows a single number instead of a graph over time; at this value or above it is red."""
    width: int = 8


def _quantiles(histogram: str) -> dict[str, str]:
    """Return the queries for the median and the 99th percentile of a histogram."""
    rate = f"sum by (le) (rate({histogram}_bucket{_JOB}{_EACH}))"
    return {"median": f"histogram_quantile(0.5, {rate})", "99 %": f"histogram_quantile(0.99, {rate})"}


ROWS: dict[str, tuple[Shown, ...]] = {
    "Is all well?": (
        Shown(
            title="Oldest record that waits",
            about="By the database's clock. Alert HarvestBacklogOld at five minutes.",
            queries={"age": f"max(harvest_backlog_age_seconds{_JOB})"},
            unit="s",
            red_at=300,
            width=6,
        ),
        Shown(
            title="Time without progress",
            about="Records wait, and no harvester has delivered any. Alert HarvestNoProgress at two minutes.",
            queries={"stalled": f"max(harvest_stalled_seconds{_JOB})"},
            unit="s",
            red_at=120,
            width=6,
        ),
        Shown(
            title="Shards without a leader",
            about="Alert HarvestNoLeader after a minute.",
            queries={"shards": f"count(max by (job, shard) (harvest_leader{_JOB}) == 0) or vector(0)"},
            red_at=1,
            width=6,
        ),
        Shown(
            title="Parked records",
            about="Kafka rejects them permanently: `harvest park list` shows them.",
            queries={"parked": _PARKED},
            red_at=1,
            width=6,
        ),
    ),
    "What waits, and how fast it goes": (
        Shown(
            title="Records that wait",
            about="Counted to 1,000, beyond that estimated from ids.",
            queries={"records": f"max(harvest_backlog_records{_JOB})"},
        ),
        Shown(
            title="Age of the oldest record that waits",
            about="By the database's clock.",
            queries={"age": f"max(harvest_backlog_age_seconds{_JOB})"},
            unit="s",
        ),
        Shown(
            title="Records delivered",
            about="Acknowledged by Kafka, and passed by a checkpoint or purged.",
            queries={"shard {{shard}}": f"sum by (shard) (rate(harvest_delivered_records_total{_JOB}{_EACH}))"},
            unit="cps",
        ),
        Shown(
            title="From commit to Kafka",
            about="From `create_time` to the acknowledgement: a sample of one record a second.",
            queries=_quantiles("harvest_delivery_latency_seconds"),
            unit="s",
        ),
        Shown(
            title="Batches by outcome",
            about="`failed` batches are sent again, `fenced` batches end a term.",
            queries={"{{outcome}}": f"sum by (outcome) (rate(harvest_batches_total{_JOB}{_EACH}))"},
            unit="cps",
        ),
        Shown(
            title="What a commit waits for Kafka",
            about="Until all of a batch is acknowledged, with the checkpoint if it goes along.",
            queries=_quantiles("harvest_commit_duration_seconds"),
            unit="s",
        ),
    ),
    "Who leads": (
        Shown(
            title="Leaders",
            about="1 where a process leads the shard.",
            queries={"{{instance}}, shard {{shard}}": f"harvest_leader{_JOB}"},
        ),
        Shown(
            title="Terms that ended",
            about="`revoked` in order, `fenced` as leadership could not be proved.",
            queries={"{{reason}}": f"sum by (reason) (increase(harvest_terms_ended_total{_JOB}{_EACH}))"},
        ),
        Shown(
            title="Records that may be in Kafka twice",
            about="Their outcome was unknown, and they were sent again. None under exactly once.",
            queries={"records": f"sum(increase(harvest_possible_duplicate_records_total{_JOB}{_EACH}))"},
        ),
    ),
    "What is in trouble": (
        Shown(
            title="Warnings and errors in the log",
            about="By the name of the event: docs/log-events.md explains each.",
            queries={"{{event}}": f"sum by (event) (increase(harvest_log_events_total{_JOB}{_EACH}))"},
        ),
        Shown(
            title="Errors of Kafka's clients",
            about="By librdkafka's name of the kind.",
            queries={"{{error}}": f"sum by (error) (increase(harvest_kafka_errors_total{_JOB}{_EACH}))"},
        ),
        Shown(
            title="Parked and held records",
            about="`held` records wait behind a parked record of their key.",
            queries={"{{topic}}, {{state}}": f"max by (topic, state) (harvest_parked_records{_JOB})"},
        ),
        Shown(
            title="Connections to Postgres",
            about="`failed` connections are attempts.",
            queries={"{{outcome}}": f"sum by (outcome) (increase(harvest_postgres_connections_total{_JOB}{_EACH}))"},
        ),
        Shown(
            title="Processes that Postgres answers",
            about="The numbers of the outbox are left out where it does not.",
            queries={"{{instance}}": f"harvest_postgres_up{_JOB}"},
        ),
        Shown(
            title="Processes that are ready",
            about="They lead, or stand by and could be elected.",
            queries={"{{instance}}": f"harvest_ready{_JOB}"},
        ),
    ),
    "What audits found": (
        Shown(
            title="Findings of the last complete audit",
            about="Alerts HarvestAuditAnomalies and HarvestAuditDuplicates where there are more than a day ago.",
            queries={"{{topics}}, {{finding}}": f"max by (topics, finding) (harvest_audit_findings{_JOB})"},
            width=12,
        ),
        Shown(
            title="Time since the last complete audit",
            about="Alert HarvestAuditFailed if the last audit ended without a result.",
            queries={"{{topics}}": f"time() - max by (topics) (harvest_audit_last_complete_timestamp_seconds{_JOB})"},
            unit="s",
            width=12,
        ),
    ),
    "What is kept, and what it costs": (
        Shown(
            title="Segments held back on disk",
            about="They stay for a subscription that has not passed them.",
            queries={"{{subscription}}": f"max by (subscription) (harvest_held_segments_bytes{_JOB})"},
            unit="bytes",
        ),
        Shown(
            title="Age of the checkpoints",
            about="It grows while nothing comes, too.",
            queries={
                "{{subscription}}, {{shard}}": f"max by (subscription, shard) (harvest_checkpoint_age_seconds{_JOB})"
            },
            unit="s",
        ),
        Shown(
            title="Processor",
            about="Cores that each process uses.",
            queries={"{{instance}}": f"rate(process_cpu_seconds_total{_JOB}{_EACH})"},
        ),
        Shown(
            title="Size of the database",
            about="Alert HarvestDatabaseFills where it reaches its limit within a day.",
            queries={
                "database": f"max(harvest_database_bytes{_JOB})",
                "limit": f"max(harvest_database_limit_bytes{_JOB})",
                "outbox": f"max(harvest_outbox_bytes{_JOB})",
            },
            unit="bytes",
        ),
        Shown(
            title="Time until certificates expire",
            about="Alert HarvestCertificateExpires at 14 days.",
            queries={"{{job}}, {{setting}}": f"min by (job, setting) ({_EXPIRY}{_JOB}) - time()"},
            unit="s",
        ),
    ),
    "Consumers": (
        Shown(
            title="Partitions that keep nothing",
            about="A transaction is open, or has only failed. Alert HarvestConsumerStuck at two minutes.",
            queries={
                "{{topic}}, {{partition}}": f"max by (topic, partition) (harvest_consumer_stuck_seconds{_JOB}) > 0"
            },
            unit="s",
        ),
        Shown(
            title="Messages taken in",
            about="In transactions that were kept.",
            queries={"{{job}}, {{topic}}": f"sum by (job, topic) (rate(harvest_consumer_messages_total{_JOB}{_EACH}))"},
            unit="cps",
        ),
        Shown(
            title="Parked messages, and fenced transactions",
            about="Parked messages are in their table. A fenced transaction has lost its shard to another owner.",
            queries={
                "parked, {{topic}}": f"sum by (topic) (increase(harvest_consumer_parked_messages_total{_JOB}{_EACH}))",
                "fenced": f"sum(increase(harvest_consumer_fenced_total{_JOB}{_EACH}))",
            },
        ),
    ),
    "Pipelines": (
        Shown(
            title="Messages behind the log",
            about="Of each writer.",
            queries={
                "{{pipeline}}, {{writer}}": f"max by (pipeline, writer) (harvest_pipeline_writer_behind_messages{_JOB})"
            },
        ),
        Shown(
            title="Time without progress of a writer",
            about="It is behind the log, and has written nothing. Alert HarvestPipelineStuck at two minutes.",
            queries={
                "{{pipeline}}, {{writer}}": f"max by (pipeline, writer) (harvest_pipeline_writer_stalled_seconds{_JOB})"
            },
            unit="s",
        ),
        Shown(
            title="Writers at work, and pipelines that run",
            about="Alert HarvestPipelineWriterStopped where a writer is not at work for a minute.",
            queries={
                "{{pipeline}}, {{writer}}": f"max by (pipeline, writer) (harvest_pipeline_writer_at_work{_JOB})",
                "{{pipeline}} runs": f"max by (pipeline) (harvest_pipeline_running{_JOB})",
            },
        ),
        Shown(
            title="Messages read into the log",
            about="Of each pipeline.",
            queries={"{{pipeline}}": f"sum by (pipeline) (rate(harvest_pipeline_log_end_offset{_JOB}{_EACH}))"},
            unit="cps",
        ),
        Shown(
            title="Starts in a quarter of an hour",
            about="Alert HarvestRestarts above three, of consumers and pipelines.",
            queries={"{{job}}": f"max by (job) (changes(process_start_time_seconds{_JOB}[15m]))"},
        ),
    ),
    "Topics and slots that consumers and pipelines read": (
        Shown(
            title="Unread records",
            about="From what is read next to the end of the topic.",
            queries={"{{job}}, {{topic}}": f"sum by (job, topic) (harvest_unread_records{_JOB})"},
        ),
        Shown(
            title="Time until a record is removed unread",
            about="At the least, by `retention.ms`. Alert HarvestUnreadExpires at a quarter of that.",
            queries={
                "{{job}}, {{topic}}": f"min by (job, topic) (harvest_unread_expiry_timestamp_seconds{_JOB}) - time()"
            },
            unit="s",
        ),
        Shown(
            title="Part of the retention that is left",
            about="Of the record that is read next; at 0 Kafka may remove it unread.",
            queries={
                "{{job}}, {{topic}}": f"(min by (job, topic) (harvest_unread_expiry_timestamp_seconds{_JOB}) - time()) "
                f"/ max by (job, topic) (harvest_read_retention_seconds{_JOB})"
            },
            unit="percentunit",
        ),
        Shown(
            title="Log that Postgres keeps for slots",
            about="Kept, and how much more may be written before a slot is lost. Alert HarvestSlotExpires.",
            queries={
                "{{pipeline}}": f"max by (pipeline) (harvest_pipeline_slot_retained_bytes{_JOB})",
                "{{pipeline}}, more": f"min by (pipeline) (harvest_pipeline_slot_safe_bytes{_JOB})",
            },
            unit="bytes",
        ),
    ),
}
