"""The dashboard: as its code writes it, of metrics and labels that there are, in PromQL that Prometheus reads."""

import json
import re

import pytest
import yaml
from support.machine import promtool
from support.metrics import METRICS

from infra.monitoring.dashboard import FILE, render
from infra.monitoring.panels import ROWS

pytestmark = pytest.mark.quick

SHOWN = [each for row in ROWS.values() for each in row]
QUERIES = [query for each in SHOWN for query in each.queries.values()]
ADDED_BY_PROMETHEUS = {"job", "instance", "le"}
OF_PROMETHEUS_CLIENT = {"process_cpu_seconds_total", "process_start_time_seconds"}


def test_it_is_as_its_code_writes_it():
    assert FILE.read_text(encoding="utf-8") == render(), "`make docs` writes it"


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: shown.title)
def test_a_panel_is_of_metrics_and_labels_that_there_are(shown):
    for legend, query in shown.queries.items():
        named = {each.removesuffix("_bucket") for each in re.findall(r"\b(?:harvest|process)_\w+", query)}
        assert named
        assert named <= METRICS.keys() | OF_PROMETHEUS_CLIENT
        labels = {label for name in named & METRICS.keys() for label in METRICS[name].labels} | ADDED_BY_PROMETHEUS
        used = {each.strip() for by in re.findall(r"\bby \(([^)]*)\)", query) for each in by.split(",")}
        used |= set(re.findall(r"(\w+)=~?\"", query)) | set(re.findall(r"\{\{(\w+)\}\}", legend))
        assert used <= labels


def test_every_query_is_about_the_chosen_jobs():
    assert [query for query in QUERIES if query.count("{") != query.count('job=~"$job"')] == []


def test_prometheus_reads_every_query(tmp_path):
    rules = [
        {"record": f"panel:{place}", "expr": query.replace("$__rate_interval", "5m")}
        for place, query in enumerate(QUERIES)
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = promtool("check", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(QUERIES)} rules found" in done.stdout


def test_panels_fill_the_page_side_by_side():
    panels = [each for each in json.loads(render())["panels"] if each["type"] != "row"]
    assert len(panels) == len(SHOWN)
    assert all(each["gridPos"]["x"] + each["gridPos"]["w"] <= 24 for each in panels)
    assert len({(each["gridPos"]["x"], each["gridPos"]["y"]) for each in panels}) == len(panels)
