"""The verdict on a reader of the comparison: records lost, out of order, repeated and left waiting."""

import pytest

from tests.benchmarks.approaches.judge import Poll, judge

pytestmark = pytest.mark.quick

COMMITTED = {("a", 1): 1.0, ("a", 2): 2.0, ("b", 1): 2.0, ("a", 3): 3.0}


def polls(*records, seconds=0.1):
    """One poll for each list of records, the first at 10 s, a second apart."""
    return [Poll(10.0 + number, 10.0 + number + seconds, found) for number, found in enumerate(records)]


def test_all_in_order_is_no_fault():
    verdict = judge(COMMITTED, polls([("a", 1), ("b", 1)], [], [("a", 2), ("a", 3)]))
    assert (verdict.lost, verdict.reordered, verdict.repeated) == (0, 0, 0)


def test_what_was_never_read_is_lost():
    assert judge(COMMITTED, polls([("a", 1), ("a", 3)])).lost == 2
    assert judge(COMMITTED, []).lost == 4


def test_each_first_reading_behind_a_later_record_of_its_key_is_out_of_order():
    verdict = judge(COMMITTED, polls([("a", 3)], [("a", 1), ("a", 2)], [("b", 1)]))
    assert (verdict.reordered, verdict.repeated) == (2, 0)


def test_a_record_read_again_is_repeated_and_not_out_of_order():
    verdict = judge(COMMITTED, polls([("a", 1), ("a", 2), ("b", 1)], [("a", 1), ("a", 2), ("a", 3)]))
    assert (verdict.reordered, verdict.repeated) == (0, 2)


def test_waiting_counts_from_the_commit_to_the_end_of_the_first_poll_that_has_the_record():
    verdict = judge(COMMITTED, polls([("a", 1)], [("a", 1), ("b", 1)]))
    assert verdict.stalled_seconds == pytest.approx(10.1 - 1.0)
    assert verdict.median_wait_seconds == pytest.approx((9.1 + 9.1) / 2)
    assert judge({("a", 1): 20.0}, polls([("a", 1)])).stalled_seconds == 0.0  # read before its writer had the answer


def test_an_empty_poll_counts_while_a_record_waits_that_is_read_later():
    committed = {("a", 1): 10.5, ("a", 2): 15.5, ("b", 1): 9.0}
    read = polls([], [], [("a", 1)], [], [], [], [("a", 2)])
    assert judge(committed, read).empty_share == 1 / 3  # only the second; of those with something to find, three
    assert judge({("a", 1): 10.5}, polls([])).empty_share == 0.0
