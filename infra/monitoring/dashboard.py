"""The dashboard for Grafana as code. `make docs` writes it to `dashboard.json`, with the panels in `panels.py`."""

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

from infra.monitoring.panels import ROWS, Shown

FILE = Path(__file__).with_name("dashboard.json")
"""The file that Grafana imports."""

_SOURCE = DataSourceRef(type_val="prometheus", uid="${source}")
_OF_EACH_JOB = '{__name__=~"harvest_postgres_connections_total|harvest_audit_failed"}'
_HEIGHT, _HEIGHT_OF_A_NUMBER = 7, 4


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
            .query(f"label_values({_OF_EACH_JOB}, job)")
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
        panel = panel.with_target(prometheus.Dataquery().expr(query).legend_format(legend).ref_id("ABC"[place]))
    return panel


def _red_at(value: float) -> dashboard.ThresholdsConfig:
    steps = [Threshold(value=None, color="green"), Threshold(value=value, color="red")]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)
