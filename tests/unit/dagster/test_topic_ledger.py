"""A topic is materialized with its own records: each once, none without a record, and not too often."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_harvest.topic_ledger import TopicLedger

pytestmark = pytest.mark.quick

EVERY, GATHER = 60.0, 10.0


@pytest.fixture
def ledger():
    return TopicLedger(["orders", "refunds"], every_seconds=EVERY, gather_seconds=GATHER)


def materialize(ledger, now):
    """Do what a run does at a time: return the records of each topic that is due."""
    found = {}
    for topic in ledger.due(now):
        found[topic] = ledger.pending(topic)
        ledger.materialized(topic, found[topic], now)
    return found


def test_only_the_topic_that_got_records_is_due(ledger):
    ledger.count({"orders": 3, "unknown": 9}, 100.0)
    assert ledger.due(100.0 + GATHER) == ["orders"]
    assert (ledger.pending("orders"), ledger.pending("refunds")) == (3, 0)


def test_records_after_a_pause_are_gathered(ledger):
    ledger.count({"orders": 1}, 100.0)
    assert ledger.due(100.0 + GATHER - 0.1) == []
    ledger.count({"orders": 5}, 109.0)
    assert materialize(ledger, 110.0) == {"orders": 5}


def test_records_that_keep_coming_are_materialized_once_in_an_interval(ledger):
    seen = []
    for second in range(181):
        ledger.count({"orders": second}, float(second))
        seen += [(second, found["orders"]) for found in [materialize(ledger, float(second))] if found]
    assert [second for second, _ in seen] == [11, 71, 131]
    assert [records for _, records in seen] == [11, 60, 60]


def test_a_record_right_after_a_materialization_waits_for_the_interval_alone(ledger):
    ledger.count({"orders": 1}, 0.0)
    materialize(ledger, GATHER)
    ledger.count({"orders": 2}, GATHER + 0.2)
    assert materialize(ledger, GATHER + EVERY - 0.1) == {}
    assert materialize(ledger, GATHER + EVERY) == {"orders": 1}


def test_an_earlier_run_counts_for_the_interval(ledger):
    ledger.begin_after("orders", 90.0)
    ledger.count({"orders": 1}, 100.0)
    assert ledger.due(149.9) == []
    assert ledger.due(150.0) == ["orders"]


def test_a_clock_that_is_set_back_stops_nothing(ledger):
    ledger.begin_after("orders", 5_000.0)
    ledger.count({"orders": 1}, 100.0)
    assert ledger.due(100.0 + GATHER) == ["orders"]


def test_records_of_a_materialization_that_failed_are_in_the_next(ledger):
    ledger.count({"orders": 4}, 0.0)
    ledger.materialized("orders", 0, GATHER)
    assert ledger.due(GATHER + EVERY - 0.1) == []
    assert materialize(ledger, GATHER + EVERY) == {"orders": 4}


def test_an_hour_without_records_has_no_materialization(ledger):
    assert [ledger.due(float(second)) for second in range(3_600)] == [[]] * 3_600


@given(st.lists(st.tuples(st.floats(0.1, 200.0), st.integers(0, 3), st.integers(0, 3), st.booleans()), max_size=60))
def test_each_record_is_in_one_materialization(steps):
    ledger = TopicLedger(["orders", "refunds"], every_seconds=EVERY, gather_seconds=GATHER)
    now, totals = 0.0, {"orders": 0, "refunds": 0}
    written, times = dict.fromkeys(totals, 0), {topic: [] for topic in totals}
    for seconds, orders, refunds, fails in steps:
        now += seconds
        totals["orders"] += orders
        totals["refunds"] += refunds
        ledger.count(totals, now)
        for topic in ledger.due(now):
            records = 0 if fails else ledger.pending(topic)
            assert fails or records > 0
            ledger.materialized(topic, records, now)
            written[topic] += records
            times[topic].append(now)
    for topic in ledger.unfinished:
        written[topic] += ledger.pending(topic)
    assert written == totals
    for of_topic in times.values():
        assert all(later - earlier >= EVERY for earlier, later in pairwise(of_topic))
