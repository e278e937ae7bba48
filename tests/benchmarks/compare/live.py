"""Latency of a record from its commit to a reader at a steady rate, and the cost of an idle relay."""

import time
from bisect import bisect_right
from dataclasses import dataclass
from statistics import quantiles

from tests.benchmarks.compare.cost import cost_of
from tests.benchmarks.compare.peer import Peer, Place
from tests.benchmarks.compare.traffic import Traffic, traffic

RATE = 500
_SETTLE_SECONDS = 3.0
"""The first records, which wait for code to be compiled and plans to be made, do not count."""
_PATIENCE_SECONDS = 5.0
"""Wait for the last records after the writer ended. Later ones count in `behind`."""
_QUIET_SECONDS = 2.0
_FEWEST = 100
"""Without so many there is no 99th percentile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """Milliseconds, and per cent of one core. `behind` records had not come when the writer had long ended; `written`
    is the rate that the writer kept up."""

    p50: float
    p99: float
    behind: int
    written: float
    idle_percent: float
    idle_servers_percent: float


def live(peer: Peer, place: Place, seconds: float) -> Live:
    """Measure both, one after the other, on one process."""
    peer.make(place)
    with peer.run(place, members=1) as relay:
        with traffic(place, peer.insert_one, RATE) as flow:
            time.sleep(_SETTLE_SECONDS + seconds)
            flow.finish(_PATIENCE_SECONDS)
        p50, p99 = percentiles(flow)
        time.sleep(_QUIET_SECONDS)
        pids = [each.pid for each in relay.processes if each.pid]
        before, servers, began = cost_of(pids), cost_of(place.pids), time.monotonic()
        time.sleep(seconds)
        spent, around = cost_of(pids), cost_of(place.pids)
        lasted = time.monotonic() - began
    return Live(
        p50=p50,
        p99=p99,
        behind=flow.lost,
        written=(len(flow.written) - 1) / (flow.written[-1] - flow.written[0]),
        idle_percent=100 * (spent.cpu_seconds - before.cpu_seconds) / lasted,
        idle_servers_percent=100 * (around.cpu_seconds - servers.cpu_seconds) / lasted,
    )


def percentiles(flow: Traffic) -> tuple[float, float]:
    """Return the median and the 99th percentile, in milliseconds, of what was written after the first seconds.

    Raises RuntimeError when next to nothing of that has come.
    """
    settled = bisect_right(flow.written, flow.written[0] + _SETTLE_SECONDS) if flow.written else 0
    after = range(settled, len(flow.written))
    waits = [(flow.arrivals[each][0] - flow.written[each]) * 1_000 for each in after if each in flow.arrivals]
    if len(waits) < _FEWEST:
        raise RuntimeError(f"only {len(waits)} of {len(after)} records came")
    cuts = quantiles(waits, n=100)
    return cuts[49], cuts[98]
