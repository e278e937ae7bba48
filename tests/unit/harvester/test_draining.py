"""What a harvester that drains, and does not lead, takes for the end of its work."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from harvest_lib.harvester import draining
from harvest_lib.subscriptions.backlog import Backlog

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("backlog", "is_delivered"),
    [
        (Backlog(records=0), True),
        (Backlog(records=1, oldest_age_seconds=4.9), True),
        (Backlog(records=1, oldest_age_seconds=5.0), False),
        (Backlog(records=1), False),  # the table has no column for the time
    ],
)
def test_records_are_delivered_when_all_that_wait_are_younger(backlog, is_delivered):
    assert draining.delivered_since(backlog, 5.0) == is_delivered


def test_a_slow_reading_does_not_make_an_old_record_seem_new(monkeypatch):
    now = 0.0
    backlogs = [Backlog(records=1, oldest_age_seconds=0.7, is_estimate=False), Backlog(records=0, is_estimate=False)]

    class Harvest:
        is_drained, delivered_records, shards, config = False, 0, (), SimpleNamespace(shards=1)

        def await_stopped(self, _seconds):
            nonlocal now
            now += 0.6
            return False

    class SlowReader:
        def __init__(self, *_):
            pass

        def waiting(self):
            nonlocal now
            now += 10  # after the answer
            return backlogs.pop(0)

        def leaders(self):
            return SimpleNamespace(by_shard=["another"])

    monkeypatch.setattr(draining, "StatusReader", SlowReader)
    monkeypatch.setattr(draining, "time", SimpleNamespace(monotonic=lambda: now))
    ends = [text for text in draining.progress(Harvest(), nullcontext, 0.5) if text.startswith("ends")]
    assert (len(ends), backlogs) == (1, []), "it ends at the second reading"
