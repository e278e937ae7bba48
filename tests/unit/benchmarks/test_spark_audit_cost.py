"""The prediction from two audits for a larger one."""

import pytest

from tests.benchmarks.spark_audit import Cost, Run

pytestmark = pytest.mark.quick


def test_the_line_goes_through_both_runs_and_memory_is_the_most_that_was_measured():
    small = Run(records=1_000_000, seconds=99.0, cpu_seconds=40.0, megabytes=1_300.0)
    large = Run(records=5_000_000, seconds=60.0, cpu_seconds=80.0, megabytes=1_200.0)
    cost = Cost.of(small, large)
    assert (cost.fixed_cpu_seconds, cost.slope_cpu_seconds) == pytest.approx((30.0, 10.0))
    assert (cost.wall_of_cpu, cost.megabytes) == pytest.approx((0.75, 1_300.0))
    assert cost.seconds(large.records) == pytest.approx(large.seconds)
    assert cost.seconds(100_000_000) == pytest.approx(0.75 * 1_030)
