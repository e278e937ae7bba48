"""Counters and histograms with a few labels. Working threads add values, and a scrape reads the counts.

Counts never decrease during the life of the process.
"""

import itertools
import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

OTHER = "other"
"""Label value that stands for all further label values after a counter has reached its limit of series."""
MOST_SERIES = 100
"""Maximum number of series of a counter. Label values, such as names of topics, come from outside, and unlimited series
would exhaust memory, here and in Prometheus."""

_BITS = 32
"""Maximum number of bits of an amount that is added at once: more than any addition needs."""
_LONGEST_VALUE = 200
"""Maximum length of a label's value, in characters. A longer value is cut off, because a name from outside must not
fill the page."""

Labels = tuple[str, ...]

DURATION_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 60.0)
"""Bounds of histograms of durations, in seconds: the bounds of OpenTelemetry's conventions for messaging, and two
higher bounds for waits."""
AGE_BOUNDS = (*DURATION_BOUNDS, 300.0, 1_800.0, 7_200.0, 86_400.0)
"""Bounds of histograms of ages, in seconds, for records that may have waited in a backlog."""


def safe_value(value: str) -> str:
    """Return a label's value, shortened to 200 characters. Characters that UTF-8 cannot encode are escaped."""
    return value[:_LONGEST_VALUE].encode("utf-8", "backslashreplace").decode()


class Counts:
    """Increasing counts, a count for each combination of label values.

    `add` takes no lock, so that any callback of a client may call it. Some callbacks are invoked while a Python
    exception is set. Such a callback would acquire a lock and never release it.
    """

    def __init__(self, most: int = MOST_SERIES) -> None:
        self._most = most
        self._reading = threading.Lock()
        self._sums: dict[Labels, _Sum] = {}

    def add(self, *labels: str, amount: int = 1) -> None:
        found = self._sums.get(labels)
        if found is None:
            key = labels if len(self._sums) < self._most else (OTHER,) * len(labels)
            found = self._sums.setdefault(key, _Sum())
        found.add(amount)

    def read(self) -> Mapping[Labels, int]:
        with self._reading:
            return {labels: each.read() for labels, each in self._sums.copy().items()}

    @property
    def total(self) -> int:
        """Return the sum of the counts of all label values."""
        return sum(self.read().values())


class _Sum:
    """A sum that several threads increase without a lock. It consists of an `itertools.count` for each bit of a number.

    `next` on an `itertools.count` is atomic among threads. But `next` is also the only way to read the count, so each
    read increases every count by one, and subtracts the number of earlier reads.
    """

    __slots__ = ("_powers", "_reads")

    def __init__(self) -> None:
        self._powers = [itertools.count() for _ in range(_BITS)]
        self._reads = 0

    def add(self, amount: int) -> None:
        for power in range(amount.bit_length()):
            if amount >> power & 1:
                next(self._powers[power])

    def read(self) -> int:
        """Return the sum. Called by a single thread at a time."""
        reads, self._reads = self._reads, self._reads + 1
        return sum((next(each) - reads) << power for power, each in enumerate(self._powers))


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramReading:
    """Contents of a histogram. `buckets` has the number of values at or below each bound; the last bound is infinity.
    `total` is the sum of all values."""

    buckets: Sequence[tuple[float, int]]
    total: float


Observer = Callable[[float, Labels], None]
"""Function that is called with each value of a histogram and the label values. It must not raise."""


class Histogram:
    """Values counted in buckets, for each combination of label values. The caller must use few label values, because
    the number of series has no limit here. `observer`, if set, is called with each value."""

    def __init__(self, bounds: Sequence[float] = DURATION_BOUNDS) -> None:
        self.bounds = bounds
        self.observer: Observer | None = None
        self._lock = threading.Lock()
        self._series: dict[Labels, tuple[list[int], list[float]]] = {}

    def observe(self, value: float, *labels: str) -> None:
        with self._lock:
            if labels not in self._series:
                self._series[labels] = ([0] * (len(self.bounds) + 1), [0.0])
            buckets, total = self._series[labels]
            buckets[bisect_left(self.bounds, value)] += 1
            total[0] += value
        if (observer := self.observer) is not None:
            observer(value, labels)

    def read(self) -> Mapping[Labels, HistogramReading]:
        with self._lock:
            copied = {labels: ([*buckets], total[0]) for labels, (buckets, total) in self._series.items()}
        return {labels: self._reading(*found) for labels, found in copied.items()}

    def empty(self) -> HistogramReading:
        """Return the reading of a series without values."""
        return self._reading([0] * (len(self.bounds) + 1), 0.0)

    def _reading(self, buckets: Sequence[int], total: float) -> HistogramReading:
        below, found = 0, []
        for bound, count in zip((*self.bounds, float("inf")), buckets, strict=True):
            below += count
            found.append((bound, below))
        return HistogramReading(buckets=found, total=total)


KAFKA_ERRORS = Counts()
"""Errors that Kafka's clients in this process reported, by librdkafka's name for the kind."""
POSTGRES_CONNECTIONS = Counts()
"""Connections to Postgres that this process `opened`, and attempts that `failed`."""
