"""Counts of a harvester: each event of leadership, and each outcome of a batch, is counted where it belongs."""

from uuid import uuid4

import pytest

from harvest_lib.delivery import BatchCommitted, BatchFailed, BatchFenced
from harvest_lib.events import LeaderAcquired, LeaderFenced, LeaderRefreshed, LeaderRevoked
from harvest_lib.harvester.observers.measures import HarvestMeasures

pytestmark = pytest.mark.quick

ROWS = [(1,), (2,)]
HEARD = {
    "terms": ({("0",): 1}, LeaderAcquired(leader_id=uuid4())),
    "refreshes": ({("0",): 1}, LeaderRefreshed(leader_id=uuid4())),
    "terms_ended": ({("0", "revoked"): 1}, LeaderRevoked()),
    "terms_ended too": ({("0", "fenced"): 1}, LeaderFenced()),
}


@pytest.mark.parametrize("name", HEARD)
def test_an_event_is_counted_once_and_nothing_else(name):
    measures = HarvestMeasures()
    expected, event = HEARD[name]
    measures.count(0, event)
    found = {each: getattr(measures, each).read() for each in ("terms", "refreshes", "terms_ended")}
    counted = name.split(maxsplit=1)[0]
    assert {each: counts for each, counts in found.items() if counts} == {counted: expected}


@pytest.mark.parametrize(
    ("outcome", "label"),
    [
        (BatchCommitted(), "committed"),
        (BatchFailed(reason="no answer"), "failed"),
        (BatchFenced(reason="another leads"), "fenced"),
    ],
    ids=["committed", "failed", "fenced"],
)
def test_a_batch_with_records_is_counted_by_its_outcome(outcome, label):
    measures = HarvestMeasures()
    shard = measures.shard(3)
    shard.committed(outcome, 0.0)
    assert measures.batches.read() == {}, "it had no record"
    shard.handing_over(ROWS)
    shard.committed(outcome, 0.0)
    assert measures.batches.read() == {("3", label): 1}
    assert len(measures.commit_seconds.read()) == len(measures.batch_seconds.read()) == (label == "committed")


@pytest.mark.parametrize(("repeats", "expected"), [(True, {("0",): len(ROWS)}), (False, {})])
def test_what_may_be_sent_twice_is_counted(repeats, expected):
    measures = HarvestMeasures()
    shard = measures.shard(0)
    shard.handing_over(ROWS)
    shard.abandoned(repeats=repeats)
    assert measures.possible_duplicates.read() == expected
    shard.abandoned(repeats=repeats)
    assert measures.possible_duplicates.read() == expected, "it is forgotten by then"
