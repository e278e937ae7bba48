"""The meter: counts and rates over its life and over the interval since it was last read."""

import pytest

from harvest_lib.events import Meter, MeterStats

pytestmark = pytest.mark.quick


def test_a_reading_holds_the_whole_and_the_interval():
    meter = Meter("throughput", 10.0)
    meter.add(30)
    meter.add(10)
    assert meter.read(14.0) == MeterStats(
        name="throughput", start=10.0, total_count=40, total_rate=10.0, interval_count=40, interval_rate=10.0
    )


def test_a_reading_closes_the_interval_and_begins_the_next():
    meter = Meter("throughput", 10.0)
    meter.add(40)
    meter.read(14.0)
    meter.add(6)
    stats = meter.read(16.0)
    assert (stats.interval_count, stats.interval_rate) == (6, 3.0)
    assert (stats.total_count, stats.total_rate) == (46, pytest.approx(46 / 6))
    quiet = meter.read(20.0)
    assert (quiet.interval_count, quiet.interval_rate, quiet.total_count) == (0, 0.0, 46)


def test_the_total_can_be_had_without_a_reading():
    meter = Meter("throughput", 0.0)
    meter.add(5)
    assert meter.total == 5
    assert meter.read(1.0).interval_count == 5
    assert meter.total == 5


def test_no_time_is_no_rate():
    meter = Meter("throughput", 10.0)
    meter.add(5)
    stats = meter.read(10.0)
    assert (stats.total_rate, stats.interval_rate) == (0.0, 0.0)


def test_a_reading_is_due_once_the_interval_has_passed():
    meter = Meter("throughput", 10.0)
    assert not meter.due(14.9, 5.0)
    assert meter.due(15.0, 5.0)
    meter.read(17.0)
    assert not meter.due(21.9, 5.0)
    assert meter.due(22.0, 5.0)
    assert meter.due(17.0, 0.0), "always, if no interval is asked for"
