"""The rules with their times divided: all of them, and nothing else."""

import re
from collections import Counter
from pathlib import Path

import pytest
import yaml
from support.machine import promtool

from infra.monitoring.scaled_rules import FILE, UnscalableRule, scaled, scaled_expression, tokens_of

pytestmark = pytest.mark.quick

RULES = yaml.safe_load(FILE.read_text())
EVERY = [rule for group in RULES["groups"] for rule in group["rules"]]
ALERTS = [rule for rule in EVERY if "alert" in rule]
TIMES = {
    "HarvestNoProgress": ["60", "1m", "1m"],
    "HarvestBacklogOld": ["300", "1m"],
    "HarvestNoLeader": ["1m"],
    "HarvestDown": ["5m", "1h", "1h", "1m"],
    "HarvestPostgresAway": ["1m"],
    "HarvestLeadershipFlaps": ["15m", "15m", "120"],
    "HarvestRecordsParked": ["1m"],
    "HarvestSegmentsHeld": ["10m"],
    "HarvestCheckpointStale": ["300", "1m"],
    "HarvestPossibleDuplicates": ["15m"],
    "HarvestAuditAnomalies": ["1d", "1d"],
    "HarvestAuditDuplicates": ["1d", "1d"],
    "HarvestAuditFailed": [],
    "HarvestDatabaseFills": ["1d", "10m"],
    "harvest:unread_expiry_timestamp_seconds": ["1h", "1h", "86400"],
    "harvest:read_retention_seconds": ["1h"],
    "HarvestUnreadExpires": ["1h", "5m"],
    "HarvestPartitionsAdded": ["86400"],
    "HarvestCertificateExpires": ["1209600"],
    "HarvestCertificateExpiresSoon": ["172800"],
    "HarvestConsumerStuck": ["120", "1m"],
    "HarvestConsumerDown": ["5m", "1h", "1m"],
    "HarvestPipelineDown": ["5m", "1h", "1m"],
    "HarvestRestarts": ["15m"],
    "HarvestPipelineStuck": ["120", "1m"],
    "HarvestPipelineWriterStopped": ["1m"],
    "HarvestSlotExpires": ["2m"],
}
"""All times that a rule has, by hand: each number that is not among them is a count or a ratio."""
COUNTS = {
    "HarvestNoLeader": ["0", "0"],
    "HarvestDown": ["0", "0.5"],
    "HarvestPostgresAway": ["0"],
    "HarvestLeadershipFlaps": ["6.5"],
    "HarvestRecordsParked": ["0"],
    "HarvestSegmentsHeld": ["0"],
    "HarvestCheckpointStale": ["0"],
    "HarvestPossibleDuplicates": ["0"],
    "HarvestAuditAnomalies": ["0"],
    "HarvestAuditDuplicates": ["0"],
    "HarvestAuditFailed": ["1"],
    "HarvestUnreadExpires": ["0.25"],
    "HarvestConsumerDown": ["0.5"],
    "HarvestPipelineDown": ["0.5"],
    "HarvestRestarts": ["3"],
    "HarvestPipelineStuck": ["1"],
    "HarvestPipelineWriterStopped": ["0"],
    "HarvestSlotExpires": ["0", "0.75"],
}
NUMBER = re.compile(r"(?<![\w.\"])\d+(?:\.\d+)?(?:ms|[smhdwy])?\b")
UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def name_of(rule):
    return rule.get("alert") or rule["record"]


def seconds(written):
    number, unit = re.fullmatch(r"([\d.]+)([a-z]*)", written).groups()
    return float(number) * UNITS.get(unit, 1)


def numbers(rule):
    """Return every number that a rule has, found without knowing PromQL."""
    return [*NUMBER.findall(re.sub(r'"[^"]*"', "", rule["expr"])), *([rule["for"]] if "for" in rule else [])]


@pytest.mark.parametrize("factor", [10.0, 20.0])
@pytest.mark.parametrize("rule", EVERY, ids=name_of)
def test_each_number_that_is_a_time_is_divided_and_no_other(rule, factor):
    times, counts = TIMES[name_of(rule)], COUNTS.get(name_of(rule), [])
    assert Counter(numbers(rule)) == Counter([*times, *counts])
    (copy,) = scaled({"groups": [{"name": "g", "rules": [rule]}]}, factor)[0]["groups"][0]["rules"]
    written = sorted(map(seconds, numbers(copy)))
    assert written == pytest.approx(sorted([*(seconds(each) / factor for each in times), *map(float, counts)]))
    assert {**copy, "expr": "", "for": ""} == {**rule, "expr": "", "for": ""}


def test_what_a_rule_says_of_time_is_known():
    rules = {each.name: each for each in scaled(RULES, 10.0)[1]}
    assert rules.keys() == {rule["alert"] for rule in ALERTS}
    assert TIMES.keys() == {name_of(rule) for rule in EVERY}
    stale, flaps = rules["HarvestCheckpointStale"], rules["HarvestLeadershipFlaps"]
    assert (stale.for_seconds, stale.due_seconds, stale.window_seconds) == (6, 36, 0)
    assert (flaps.due_seconds, flaps.window_seconds) == (0, 90)
    assert rules["HarvestConsumerDown"].window_seconds == 30, "what was scraped within an hour is scraped again"
    assert rules["HarvestAuditAnomalies"].window_seconds == 8640
    added, expires = rules["HarvestPartitionsAdded"], rules["HarvestCertificateExpires"]
    assert (added.due_seconds, added.window_seconds) == (0, 8640)
    assert (expires.due_seconds, expires.window_seconds) == (0, 0)


@pytest.mark.parametrize(
    ("expression", "divided"),
    [
        ("max(harvest_stalled_seconds) > 1.5e2", "max(harvest_stalled_seconds) > 15"),
        (
            "(harvest_stalled_seconds > 60) and harvest_leader == 1",
            "(harvest_stalled_seconds > 6) and harvest_leader == 1",
        ),
        (
            "max_over_time(harvest_leader[1h30m] offset 10s) < 1",
            "max_over_time(harvest_leader[540000ms] offset 1000ms) < 1",
        ),
        ('harvest_x{topic="5m > 300"} > 30 # 20m', 'harvest_x{topic="5m > 300"} > 30 # 20m'),
        ("last_over_time(harvest_x[7d:15m]) > 0", "last_over_time(harvest_x[60480000ms:90000ms]) > 0"),
        ("rate(harvest_x_total[1m]) > 0", "rate(harvest_x_total[6000ms]) > 0"),
        ("changes(process_start_time_seconds[1m]) > 30", "changes(process_start_time_seconds[6000ms]) > 30"),
        (
            "(min(harvest_x_seconds) - time()) / max(harvest_y_seconds) < 0.25 or harvest_y_seconds < 30",
            "(min(harvest_x_seconds) - time()) / max(harvest_y_seconds) < 0.25 or harvest_y_seconds < 3",
        ),
    ],
)
def test_an_expression_is_read_as_prometheus_reads_it(expression, divided):
    assert scaled_expression(expression, 10)[0] == divided
    assert "".join(each.text for each in tokens_of(expression)) == expression


@pytest.mark.parametrize(
    "expression",
    [
        "predict_linear(harvest_x_bytes[6h], 3600) > 5",
        "harvest_backlog_age_seconds * 2 > 300",
        "harvest_backlog_age_seconds / harvest_backlog_records > 300",
        "harvest_x_seconds - harvest_x_seconds / harvest_y_seconds > 300 or harvest_x_total / harvest_y_seconds > 5",
        "rate(harvest_x_total[1m]) > 5",
        "300 < harvest_backlog_age_seconds",
        "changes(harvest_stalled_seconds[1m]) + harvest_backlog_age_seconds > 30",
        "vector(1) > 5",
    ],
)
def test_a_number_that_may_be_a_time_is_not_guessed_at(expression):
    with pytest.raises(UnscalableRule, match="`"):
        scaled_expression(expression, 10)


def test_prometheus_reads_the_copy(tmp_path: Path):
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump(scaled(RULES, 10.0)[0]))
    done = promtool("check", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(EVERY)} rules found" in done.stdout
