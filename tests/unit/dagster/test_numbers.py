"""A report is left out only if nothing waits and nothing has changed, and never for long."""

from dataclasses import replace

import pytest

from dagster_harvest.numbers import IDLE_SECONDS, Numbers
from harvest_lib.subscriptions.backlog import Backlog

pytestmark = pytest.mark.quick

EMPTY = Backlog(records=0, oldest_age_seconds=0.0)
IDLE = Numbers(at=100.0, delivered=7, rate=0.0, in_flight=0, leader_id="a", generation=1, version="1", waiting=EMPTY)
LATER = replace(IDLE, at=110.0)


def test_an_idle_run_says_nothing_new():
    assert LATER.says_nothing_after(IDLE)


@pytest.mark.parametrize(
    "change",
    [
        {"waiting": Backlog(records=1, oldest_age_seconds=3.0)},
        {"waiting": None},
        {"rate": 3.0},
        {"leader_id": None},
        {"at": 100.0 + IDLE_SECONDS},
    ],
)
def test_whatever_changed_is_reported(change):
    assert not replace(LATER, **change).says_nothing_after(IDLE)


@pytest.mark.parametrize("before", [None, replace(IDLE, rate=5.0), replace(IDLE, waiting=None)])
def test_the_first_report_of_an_idle_run_is_made(before):
    assert not LATER.says_nothing_after(before)


def test_a_day_of_an_idle_run_stays_below_half_a_megabyte_a_topic():
    log_line_and_observation = 2 * 1_500
    assert 86_400 / IDLE_SECONDS * log_line_and_observation < 500_000
