"""The alerts that a fault should fire are said for each, and any other is found."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from infra.chaos.alert_matrix import ALLOWED_SECONDS, FACTOR, SESSION_SECONDS, Episode, FiredAlert, scaled_rules_of_run
from infra.chaos.expected_alerts import CASES, Case
from infra.chaos.faults import FAULTS

pytestmark = pytest.mark.quick

RULES = scaled_rules_of_run()[1]
CASE = Case(fault="postgres-killed", alerts=frozenset({"HarvestPostgresAway"}))
PUBLISHED = Path(__file__).parents[3] / "docs" / "alerts.md"
AWAY = FiredAlert(alert="HarvestPostgresAway", labels={}, value=0.0, after_seconds=7.0, ended_seconds=2.0)


def wrong(*fired, case=CASE, injecting_seconds=0.0, left=()):
    episode = Episode(case=case, injecting_seconds=injecting_seconds, lasted_seconds=15.0, fired=fired, left=left)
    return episode.wrong(RULES)


def test_every_fault_has_a_case_and_each_case_a_mode():
    assert {case.fault for case in CASES} == FAULTS.keys()
    assert all(FAULTS[case.fault].fits(case.mode()) for case in CASES)


def test_the_published_table_has_each_case_once_and_nothing_else():
    table = PUBLISHED.read_text().partition("<!-- table -->")[2]
    rows = re.findall(r"^\| (?!fault \||---)([^|]+) \| [^|]+ \| ([^|]+) \|", table, re.MULTILINE)
    (left_out,) = re.findall(r"^Not injected: (.+)$", table, re.MULTILINE) or [""]
    named = set(re.findall(r"(?:^|\); )`([\w-]+)` \(", left_out))
    assert named <= FAULTS.keys()
    injected = [case for case in CASES if case.fault not in named]
    assert Counter(rows) == Counter((str(case), ", ".join(sorted(case.alerts)) or "none") for case in injected)


def test_what_is_only_late_to_be_led_is_called_by_a_run_as_it_would_be():
    assert RULES["HarvestNoLeader"].due_seconds / SESSION_SECONDS == pytest.approx(60 / 10)


def test_a_case_expects_alerts_that_there_are_and_lasts_until_they_are_due():
    for case in CASES:
        assert all(RULES[name].due_seconds < case.minutes * 60 / FACTOR for name in case.alerts), case


def test_what_should_fire_and_does_is_right():
    assert wrong(AWAY) == []


def test_an_alert_that_is_missing_is_named_with_its_fault():
    assert wrong() == ["postgres-killed: HarvestPostgresAway did not fire"]


def test_an_alert_too_many_is_named_with_its_fault_and_its_value():
    more = replace(AWAY, alert="HarvestNoLeader", labels={"shard": "0"})
    (said,) = wrong(AWAY, more)
    assert "postgres-killed: HarvestNoLeader {'shard': '0'} with the value 0.0 should not have fired" in said


@pytest.mark.parametrize(
    ("fired", "said"),
    [
        (replace(AWAY, after_seconds=6.0 + ALLOWED_SECONDS + 0.1), "fired after 16.1 s, not 6.0 s"),
        (replace(AWAY, after_seconds=1.0), "fired after 1.0 s, before 6.0 s"),
        (replace(AWAY, ended_seconds=ALLOWED_SECONDS + 0.1), "went on for 10.1 s"),
    ],
)
def test_an_alert_at_the_wrong_time_is_named(fired, said):
    (found,) = wrong(fired)
    assert said in found


def test_what_injecting_took_is_not_too_early():
    assert wrong(replace(AWAY, after_seconds=1.0), injecting_seconds=3.0) == []


def test_an_alert_that_does_not_end_is_named():
    assert wrong(AWAY, left=["HarvestPostgresAway"]) == ["postgres-killed: HarvestPostgresAway did not end"]
