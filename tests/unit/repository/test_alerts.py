"""The alert rules: of metrics that there are, each with a runbook, tested by Prometheus' own tool."""

import re
from pathlib import Path

import pytest
import yaml
from support.machine import promtool
from support.metrics import METRICS

pytestmark = pytest.mark.gate

ROOT = Path(__file__).parents[3]
RULES = ROOT / "infra" / "monitoring" / "alerts.yml"
MONITORING = ROOT / "docs" / "monitoring.md"
TESTS = [RULES.with_name(name) for name in ("alerts-test.yml", "alerts-hours-test.yml")]
EVERY = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
ALERTS = [rule for rule in EVERY if "alert" in rule]
RECORDED = [rule for rule in EVERY if "record" in rule]
ADDED_BY_PROMETHEUS = {"job", "instance"}


def grouped_by(rule):
    """Return the labels by which an expression groups or matches."""
    return {each.strip() for by in re.findall(r"\b(?:by|on) \(([^)]*)\)", rule["expr"]) for each in by.split(",")}


@pytest.mark.parametrize("rule", EVERY, ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_is_of_metrics_and_labels_that_there_are(rule):
    named = set(re.findall(r"\bharvest_\w+", rule["expr"]))
    assert named <= METRICS.keys()
    assert set(re.findall(r"\bharvest:\w+", rule["expr"])) <= {each["record"] for each in RECORDED}
    labels = {label for name in named for label in METRICS[name].labels} | ADDED_BY_PROMETHEUS
    assert grouped_by(rule) <= labels


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_a_summary_is_of_labels_that_the_alert_has(rule):
    assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= grouped_by(rule)
    assert rule["labels"]["severity"] in {"page", "ticket", "info"}


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_has_a_runbook(rule):
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    titles = re.findall(r"^## (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert anchor == rule["alert"].lower()
    assert rule["alert"] in titles


def test_a_runbook_has_an_alert():
    titles = re.findall(r"^## (.+)$", (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert titles == [rule["alert"] for rule in ALERTS]


def test_each_alert_is_seen_to_fire_and_to_stay_quiet():
    tests = [test for file in TESTS for test in yaml.safe_load(file.read_text())["tests"]]
    asked = [each for test in tests for each in test["alert_rule_test"]]
    for rule in ALERTS:
        seen = {bool(each["exp_alerts"]) for each in asked if each["alertname"] == rule["alert"]}
        assert seen == {True, False}, rule["alert"]


def test_the_configuration_that_is_shown_names_jobs_as_the_rules_do(tmp_path):
    (shown,) = re.findall(r"^```yaml\n(# prometheus.yml\n.*?)^```$", MONITORING.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "prometheus.yml").write_text(shown)
    (tmp_path / RULES.name).write_text(RULES.read_text())
    done = promtool("check", "config", tmp_path / "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    said = {quoted for rule in ALERTS for quoted in re.findall(r'job=~?"([^"]+)"', rule["expr"])}
    jobs = [each["job_name"] for each in yaml.safe_load(shown)["scrape_configs"]]
    assert {job: any(re.fullmatch(each, job) for each in said) for job in jobs} == dict.fromkeys(jobs, True)
    assert {each for each in said if not any(re.fullmatch(each, job) for job in jobs)} == set()


@pytest.mark.full
def test_the_rules_fire_at_what_they_should():
    done = promtool("test", "rules", *TESTS)
    assert done.returncode == 0, done.stdout + done.stderr
