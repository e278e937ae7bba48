"""Cost of numbers, health and traces: drains and idling with all of it on, in turn with the same without.

All of it is: `/metrics` served, and scraped every two seconds; metrics that OpenTelemetry collects as often; a tracer.
That is more often than usual: Prometheus asks every 15 seconds or once a minute, OpenTelemetry once a minute.
"""

import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING

from harvest_lib.local_stack.ports import keep_ports
from harvest_lib.local_stack.state import default_state
from tests.benchmarks import idle
from tests.benchmarks.backlog import Servers
from tests.benchmarks.drain import COLLECT_SECONDS, BatchDrain, drain_in_process, native_unavailable, ways
from tests.benchmarks.report import LeftOut, Result, at_least, at_most

if TYPE_CHECKING:
    from tests.benchmarks.scenarios import Size

_TARGET = 0.98
_IDLE_PERCENT, _MEGABYTES = 2.0, 15.0
_ANSWER_SECONDS = 5.0
_TIMES = 20
"""The size of a drain: a short one has no room for a scrape."""
_PAIRS = 4
"""For each round: the ratio asked for is finer than what one pair shows."""


def telemetry(servers: Servers, size: "Size") -> Iterator[Result | LeftOut]:
    """Pairs of drains of one table, then pairs of idle leaders; each pair begins with the other kind."""
    records = _TIMES * size.records
    servers.make_native()
    servers.insert(records)
    servers.settle()
    if no_native := native_unavailable():
        yield LeftOut(name="telemetry-native, telemetry-native-cpu", reason=no_native)
    for implementation in ways():
        pairs = [_pair(servers, records, implementation, turn) for turn in range(_PAIRS * size.rounds)]
        without, beside = zip(*pairs, strict=True)
        ratios = [on.rate / off.rate for off, on in pairs]
        yield at_least(
            f"telemetry-{implementation}",
            median(each.rate for each in beside),
            "/s",
            floor=median(each.rate for each in without),
            ratio=median(ratios),
            ratios=(min(ratios), max(ratios)),
            target=_TARGET,
        )
        more = median(on.cpu_micros / off.cpu_micros for off, on in pairs)
        yield Result(name=f"telemetry-{implementation}-cpu", value=more, unit="times")
    yield from _idle(servers, size.rounds)


def _pair(servers: Servers, records: int, implementation: str, turn: int) -> tuple[BatchDrain, BatchDrain]:
    """Return a drain without and one with everything on."""
    found: dict[bool, BatchDrain] = {}
    for is_on in (turn % 2 == 1, turn % 2 == 0):
        servers.forget()
        address = _address() if is_on else None
        with _scraped(address) as scrapes:
            found[is_on] = drain_in_process(
                servers, records, delivery="transactional", implementation=implementation, listen=address
            )
        if is_on and not scrapes:
            raise RuntimeError("nothing was scraped: a drain has to take longer; raise --records")
    return found[False], found[True]


def _idle(servers: Servers, rounds: int) -> Iterator[Result]:
    percents, more = [], []
    for _ in range(rounds):
        without, address = idle.cost(servers, "native"), _address()
        with _scraped(address):
            beside = idle.cost(servers, "native", "--listen", address)
        percents.append(beside.core_percent)
        more.append((beside.resident_bytes - without.resident_bytes) / 1e6)
    yield at_most("telemetry-idle-cpu", median(percents), "% core", target=_IDLE_PERCENT)
    yield at_most("telemetry-memory", median(more), "MB", target=_MEGABYTES)


def _address() -> str:
    ports = keep_ports(default_state() / "bench" / "telemetry-ports.json", ["listen"])
    return f"127.0.0.1:{ports['listen']}"


@contextmanager
def _scraped(address: str | None) -> Iterator[list[int]]:
    """Scrape, and yield how many bytes each scrape brought; without an address nothing is done."""
    stopping, scrapes = threading.Event(), list[int]()

    def scrape() -> None:
        while not stopping.wait(COLLECT_SECONDS):
            try:
                with urllib.request.urlopen(f"http://{address}/metrics", timeout=_ANSWER_SECONDS) as answer:
                    scrapes.append(len(answer.read()))
            except OSError:  # it does not listen yet, or any more
                continue

    thread = threading.Thread(target=scrape)
    if address:
        thread.start()
    try:
        yield scrapes
    finally:
        stopping.set()
        if address:
            thread.join()
