"""Checks judge numbers: below, at and above each threshold."""

import datetime as dt

import dagster as dg
import pytest

from dagster_harvest.checks import judged_backlog, judged_duplicates, judged_lost, judged_ordering, judged_unknown
from dagster_harvest.settings import Thresholds
from harvest_lib.audit.summary import AuditSummary
from harvest_lib.subscriptions.backlog import Backlog

pytestmark = pytest.mark.quick

WARN, ERROR = dg.AssetCheckSeverity.WARN, dg.AssetCheckSeverity.ERROR
THRESHOLDS = Thresholds(
    backlog_age_warn_seconds=60, backlog_age_error_seconds=600, backlog_warn_records=100, backlog_error_records=1000
)
AT = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)


def summary(**numbers):
    counts = dict.fromkeys(AuditSummary.__slots__, 0) | {"audit_id": "a", "at": AT, "records": 1000, "committed": 1000}
    return AuditSummary(**(counts | numbers))


def numbers(verdict):
    return {name: value.value for name, value in verdict.metadata.items()}


@pytest.mark.parametrize(
    ("seconds", "passed", "severity"),
    [(0, True, WARN), (59.9, True, WARN), (60, False, WARN), (599.9, False, WARN), (600, False, ERROR)],
)
def test_an_old_backlog_warns_and_then_fails(seconds, passed, severity):
    age, size = judged_backlog(Backlog(records=1, oldest_age_seconds=seconds), THRESHOLDS)
    assert (age.passed, age.severity) == (passed, severity)
    assert numbers(age) == {"value": seconds, "warn_at": 60.0, "error_at": 600.0}
    assert size.passed


@pytest.mark.parametrize(
    ("records", "passed", "severity"),
    [(0, True, WARN), (99, True, WARN), (100, False, WARN), (999, False, WARN), (1000, False, ERROR)],
)
def test_a_long_backlog_warns_and_then_fails(records, passed, severity):
    age, size = judged_backlog(Backlog(records=records, oldest_age_seconds=0), THRESHOLDS)
    assert (size.passed, size.severity) == (passed, severity)
    assert age.passed


def test_a_long_backlog_is_no_error_unless_somebody_says_from_where_on():
    _, size = judged_backlog(Backlog(records=10**9, oldest_age_seconds=0, is_estimate=True), Thresholds())
    assert (size.passed, size.severity) == (False, WARN)
    assert "estimated" in size.description


@pytest.mark.parametrize(
    ("judged", "name"), [(judged_lost, "lost"), (judged_unknown, "unknown"), (judged_ordering, "reordered")]
)
@pytest.mark.parametrize("count", [0, 1, 7])
def test_one_is_too_many(judged, name, count):
    verdict = judged(summary(**{name: count}))
    assert (verdict.passed, verdict.severity) == (count == 0, ERROR)
    assert numbers(verdict)[name] == count
    assert numbers(verdict)["audit_id"] == "a"


def test_each_finding_fails_its_own_check_and_no_other():
    judges = {
        "lost": judged_lost,
        "unknown": judged_unknown,
        "reordered": judged_ordering,
        "duplicates_adjacent": judged_duplicates,
        "duplicates_separated": judged_duplicates,
        "duplicates_cross_epoch": judged_duplicates,
    }
    for found, own in judges.items():
        failed = {judge for judge in judges.values() if not judge(summary(**{found: 1})).passed}
        assert failed == {own}


@pytest.mark.parametrize(
    ("found", "severity"),
    [("duplicates_adjacent", ERROR), ("duplicates_separated", ERROR), ("duplicates_cross_epoch", WARN)],
)
def test_a_copy_by_the_next_term_warns_and_one_by_the_same_fails(found, severity):
    verdict = judged_duplicates(summary(**{found: 2}))
    assert (verdict.passed, verdict.severity) == (False, severity)
    assert numbers(verdict)[found] == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"backlog_age_warn_seconds": 601},
        {"backlog_error_records": 99_999},
        {"backlog_age_warn_seconds": 0},
        {"backlog_warn_records": -1},
        {"backlog_age_warn": 1},
    ],
)
def test_thresholds_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong)).removesuffix("_seconds")):
        Thresholds(**wrong)
