"""The dashboard for Grafana, as code: `make docs` writes `dashboard.json` beside this.

A panel is a question that somebody on duty has, in the order in which they are asked: is all well, what waits, how fast
is it delivered, who leads, what is in trouble, what is kept. Each query is about the jobs that are chosen on top.
"""

from dataclasses import dataclass
from pathlib import Path

from grafana_foundation_sdk.builders import dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableRefresh,
)

FILE = Path(__file__).with_name("dashboard.json")
"""The file that Grafana imports."""

_SOURCE = DataSourceRef(type_val="prometheus", uid="${source}")
_JOB = '{job=~"$job"}'
_PARKED = 'sum(max by (topic) (harvest_parked_records{job=~"$job", state="parked"})) or vector(0)'
_EACH = "[$__rate_interval]"
_HEIGHT, _HEIGHT_OF_A_NUMBER = 7, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One panel. `queries` are PromQL by name; `unit` is Grafana's name for it."""

    title: str
    about: str
    queries: dict[str, str]
    unit: str = "short"
    red_at: float | None = None
    """Threshold above which it is red, for one number: shown instead of a course over time."""
    width: int = 8


def _quantiles(histogram: str) -> dict[str, str]:
    """Return the queries of a histogram's median and 99th percentile."""
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
            about="Something waits, and nobody has delivered anything. Alert HarvestNoProgress at two minutes.",
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
            about="`failed` ones are sent again, `fenced` ones end a term.",
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
            about="By the name of the event: docs/log-events.md says what each means.",
            queries={"{{event}}": f"sum by (event) (increase(harvest_log_events_total{_JOB}{_EACH}))"},
        ),
        Shown(
            title="Errors of Kafka's clients",
            about="By librdkafka's name of the kind.",
            queries={"{{error}}": f"sum by (error) (increase(harvest_kafka_errors_total{_JOB}{_EACH}))"},
        ),
        Shown(
            title="Parked and held records",
            about="`held` ones wait behind a parked one of their key.",
            queries={"{{topic}}, {{state}}": f"max by (topic, state) (harvest_parked_records{_JOB})"},
        ),
        Shown(
            title="Connections to Postgres",
            about="`failed` ones are attempts.",
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
    ),
}


def render() -> str:
    """Return the text of `dashboard.json`."""
    made = (
        dashboard.Dashboard("Outbox harvester")
        .uid("outbox-harvester")
        .tags(["outbox", "kafka", "postgres"])
        .refresh("30s")
        .time("now-1h", "now")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("source").label("Data source").type("prometheus"))
        .with_variable(
            dashboard.QueryVariable("job")
            .label("Job")
            .datasource(_SOURCE)
            .query("label_values(harvest_info, job)")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(multi=True)
            .include_all(include_all=True)
        )
    )
    for title, shown in ROWS.items():
        made = made.with_row(dashboard.Row(title))
        for each in shown:
            made = made.with_panel(_panel(each))
    return JSONEncoder(sort_keys=True, indent=2).encode(made.build()) + "\n"


def _panel(shown: Shown) -> stat.Panel | timeseries.Panel:
    panel = timeseries.Panel() if shown.red_at is None else stat.Panel().thresholds(_red_at(shown.red_at))
    panel = panel.title(shown.title).description(shown.about).unit(shown.unit).datasource(_SOURCE)
    panel = panel.span(shown.width).height(_HEIGHT if shown.red_at is None else _HEIGHT_OF_A_NUMBER)
    for place, (legend, query) in enumerate(shown.queries.items()):
        panel = panel.with_target(prometheus.Dataquery().expr(query).legend_format(legend).ref_id("AB"[place]))
    return panel


def _red_at(value: float) -> dashboard.ThresholdsConfig:
    steps = [Threshold(value=None, color="green"), Threshold(value=value, color="red")]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)
