"""Counters and histograms: what they hold, and how many series."""

import threading

import pytest

from harvest_lib.telemetry.counts import OTHER, Counts, Histogram

pytestmark = pytest.mark.quick


def test_counts_are_by_labels_and_bounded():
    counts = Counts(most=2)
    counts.add("a")
    counts.add("b", amount=3)
    for number in range(50):
        counts.add(f"hostile-{number}")
    counts.add("a")
    assert counts.read() == {("a",): 2, ("b",): 3, (OTHER,): 50}
    assert counts.total == 55


def test_what_was_added_is_read_as_often_as_one_likes():
    counts, total = Counts(), 0
    for amount in (0, 1, 2, 3, 5_000, 2**31, 2**32 - 1):
        counts.add("x", amount=amount)
        total += amount
        assert counts.read() == counts.read() == {("x",): total}
        assert counts.total == total


class _Interrupted(str):
    """A label during whose use something else is counted, as a client's callback may come at any time."""

    __slots__ = ("counts",)

    def __hash__(self):
        self.counts.add("callback")
        return super().__hash__()


def test_to_add_waits_for_nobody_who_is_adding():
    label = _Interrupted("interrupted")
    label.counts = counts = Counts()
    thread = threading.Thread(target=counts.add, args=(label,), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "it waits for itself"
    assert counts.read()["callback",] >= 1


def test_a_histogram_is_cumulative_and_a_bound_belongs_to_its_bucket():
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value, "x")
    reading = histogram.read()["x",]
    assert list(reading.buckets) == [(1.0, 2), (2.0, 3), (float("inf"), 4)]
    assert reading.total == 12.0
    assert list(histogram.empty().buckets) == [(1.0, 0), (2.0, 0), (float("inf"), 0)]


def test_threads_that_add_at_once_lose_nothing():
    counts, histogram = Counts(), Histogram((1.0,))

    def add():
        for _ in range(5_000):
            counts.add("x")
            histogram.observe(0.5)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert counts.total == 20_000
    assert histogram.read()[()].buckets[-1] == (float("inf"), 20_000)
