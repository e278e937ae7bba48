"""Checks judge numbers: below, at and above each threshold."""

import datetime as dt

import dagster as dg
import pytest

from dagster_harvest.audit_results import FoundRows
from dagster_harvest.checks import (
    judged_backlog,
    judged_duplicates,
    judged_lost,
    judged_ordering,
    judged_unknown,
    stopped,
    with_findings,
)
from dagster_harvest.settings import OutboxSettings, Thresholds
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


def test_a_failed_check_names_the_first_records_and_the_next_step():
    settings = OutboxSettings(name="shop", topics=["orders"])
    found = FoundRows(records=[str(each) for each in range(1, 21)], markdown="| record |\n| --- |\n| 1 |")
    lost = summary(lost=25)
    verdict = with_findings(judged_lost(lost), "lost", found, [lost, summary(audit_id="b's")], settings)
    assert verdict.description == "25 of 1,000 records are committed and not in Kafka, such as record 1, 2, 3"
    shown = numbers(verdict)
    assert shown["lost"] == 25
    assert shown["records_found"].split(", ") == found.records
    assert shown["sample"] == found.markdown
    assert shown["next_step"] == (
        "SELECT * FROM harvest_audit.lost WHERE audit_id IN ('a', 'b''s'); "
        "after a repair `harvest audit --topic orders`"
    )
    assert (verdict.passed, verdict.severity) == (False, ERROR)
    bare = with_findings(judged_lost(lost), "lost", None, [lost], settings)
    assert "sample" not in bare.metadata
    assert bare.description == "25 of 1,000 records are committed and not in Kafka"


def test_the_run_fails_with_the_numbers_of_each_failed_check_once():
    settings = OutboxSettings(name="shop", topics=["orders"])
    wrong = summary(lost=2, unknown=1)
    failure = stopped([judged_lost(wrong), judged_unknown(wrong), judged_lost(wrong)], settings)
    assert failure.description == (
        "the audit of shop did not pass: 2 of 1,000 records are committed and not in Kafka; "
        "1 of 1,000 records are in Kafka and never committed, or not with that value"
    )
    assert failure.metadata["next_step"].value == "read the checks of audit/shop_audit"
