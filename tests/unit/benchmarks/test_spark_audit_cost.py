"""What two audits predict for a larger one."""

import pytest

from tests.benchmarks.spark_audit import Cost, Run


def test_the_line_goes_through_both_runs_and_memory_is_the_most_that_was_measured():
    small = Run(records=1_000_000, seconds=30.0, megabytes=1_300.0)
    large = Run(records=5_000_000, seconds=70.0, megabytes=1_200.0)
    cost = Cost.of(small, large)
    assert (cost.fixed_seconds, cost.slope_seconds, cost.megabytes) == pytest.approx((20.0, 10.0, 1_300.0))
    assert cost.seconds(small.records) == pytest.approx(30.0)
    assert cost.seconds(100_000_000) == pytest.approx(1_020.0)
