"""The audit by Spark: its time and memory at two sizes, what they predict for a hundred million records, and what an
audit costs that goes on from the last. Beside it stands the floor: Spark, started, counts the same topic."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING
from uuid import uuid4

from harvest_lib.local_stack.state import default_state
from tests.benchmarks.backlog import Servers
from tests.benchmarks.drain import drain_batches
from tests.benchmarks.processes import Run, run_module
from tests.benchmarks.report import Result, at_most

if TYPE_CHECKING:
    from tests.benchmarks.scenarios import Size

_LARGE, _SMALL = 50, 10
"""Multiples of `--records` that are audited."""
_PLANNED_RECORDS = 100_000_000
_LONGEST_SECONDS = 300
_MOST_MEGABYTES = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of a run by its number of records: CPU time, `fixed_cpu_seconds` and `slope_cpu_seconds` for each million,
    which hardly depends on what else the machine does; and wall time, `wall_of_cpu` of it.

    Memory does not grow with the records, so the most that was measured is the prediction.
    """

    fixed_cpu_seconds: float
    slope_cpu_seconds: float
    wall_of_cpu: float
    megabytes: float

    @classmethod
    def of(cls, small: Run, large: Run) -> "Cost":
        """Draw the line through two runs. The larger one says how wall time and CPU time go together."""
        slope = (large.cpu_seconds - small.cpu_seconds) / (large.records - small.records)
        return cls(
            fixed_cpu_seconds=small.cpu_seconds - slope * small.records,
            slope_cpu_seconds=slope * 1e6,
            wall_of_cpu=large.seconds / large.cpu_seconds,
            megabytes=max(small.megabytes, large.megabytes),
        )

    def seconds(self, records: int) -> float:
        """Return the wall time that so many records take."""
        return (self.fixed_cpu_seconds + self.slope_cpu_seconds * records / 1e6) * self.wall_of_cpu


def audit(servers: Servers, size: "Size") -> Iterator[Result]:
    """From the start of the process, Spark's included, until the results are committed. All must be well."""
    own = replace(servers, topic=f"bench-audit-{uuid4().hex[:8]}")
    own.make_topic()
    own.make_native()
    state = Path(mkdtemp(prefix="state-", dir=default_state()))
    small, large = _SMALL * size.records, _LARGE * size.records
    try:
        _deliver(own, small)
        first = run_module(own, small, "harvest_lib.spark.audit", "--topic", own.topic)
        _deliver(own, large - small)
        floor = run_module(own, large, "tests.benchmarks.spark_count", own.topic)
        second = run_module(own, large, "harvest_lib.spark.audit", "--topic", own.topic)
        kept = run_module(own, large, "harvest_lib.spark.audit", "--topic", own.topic, "--state", str(state))
        state_bytes = sum(path.stat().st_size for path in state.rglob("*.parquet"))
        _deliver(own, size.records)
        since = run_module(own, size.records, "harvest_lib.spark.audit", "--topic", own.topic, "--state", str(state))
    finally:
        shutil.rmtree(state, ignore_errors=True)
    cost = Cost.of(first, second)
    yield Result(name="spark-audit-records", value=large, unit="records")
    yield Result(
        name="spark-audit-of-count",
        value=second.seconds,
        unit="s",
        floor=floor.seconds,
        ratio=second.seconds / floor.seconds,
    )
    yield at_most("spark-audit", second.seconds, "s", target=_LONGEST_SECONDS)
    yield at_most("spark-audit-memory", second.megabytes, "MB", target=_MOST_MEGABYTES)
    yield Result(name="spark-audit-cpu-fixed", value=cost.fixed_cpu_seconds, unit="s")
    yield Result(name="spark-audit-cpu-slope", value=cost.slope_cpu_seconds, unit="s/1,000,000")
    yield Result(name="spark-audit-slope", value=cost.slope_cpu_seconds * cost.wall_of_cpu, unit="s/1,000,000")
    yield Result(name="spark-audit-10^8-predicted", value=cost.seconds(_PLANNED_RECORDS), unit="s")
    yield at_most("spark-audit-10^8-memory-predicted", cost.megabytes, "MB", target=_MOST_MEGABYTES)
    yield Result(name="spark-audit-state", value=kept.seconds, unit="s")
    yield Result(name="spark-audit-state-disk", value=state_bytes / large, unit="B/record")
    yield Result(name="spark-audit-since", value=since.seconds, unit="s")


def _deliver(servers: Servers, records: int) -> None:
    servers.insert(records)
    servers.settle()
    drain_batches(servers, records, delivery="pipelined")
