"""Whose turn it is: of all faults each strikes before any strikes again, over the runs of all ways together."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence

from infra.chaos.faults.fault import Fault
from infra.chaos.system import Mode


class Schedule:
    """The faults of several runs, one after the other, in an order that the seed draws."""

    def __init__(self, faults: Mapping[str, Fault], ways: Sequence[Mode], brokers: int, seed: int) -> None:
        """Prepare. `ways` are those of the runs, in their order."""
        self._faults, self._ways, self._brokers = faults, list(ways), brokers
        self._draw = random.Random(seed)  # noqa: S311 - no secret
        self._rank = {name: self._draw.random() for name in faults}
        self._lacks = {name: sentence for name, fault in faults.items() if (sentence := fault.needs()) is not None}
        self.struck: Counter[str] = Counter()

    def possible(self, way: Mode) -> list[str]:
        """Return the faults that may strike in a run of this way."""
        return [
            name
            for name, fault in self._faults.items()
            if fault.brokers <= self._brokers and name not in self._lacks and fault.fits(way)
        ]

    def next(self, way: Mode) -> str | None:
        """Return the next fault for a run of this way, None if there is none: one that struck least often, of those
        one that has the fewest ways left to strike in."""
        left = self._ways[self._ways.index(way) :]
        turns = [
            (self.struck[name], sum(map(self._faults[name].fits, left)), self._rank[name], name)
            for name in self.possible(way)
        ]
        if not turns:
            return None
        name = min(turns)[-1]
        self.struck[name] += 1
        self._rank[name] = self._draw.random()
        return name

    def left_out(self) -> dict[str, str]:
        """Return the faults that never struck, and why."""
        return {name: self._why(name, fault) for name, fault in self._faults.items() if not self.struck[name]}

    def _why(self, name: str, fault: Fault) -> str:
        if fault.brokers > self._brokers:
            return f"takes {fault.brokers} brokers"
        if not any(map(fault.fits, self._ways)):
            return "does not concern these ways"
        if name in self._lacks:
            return self._lacks[name]
        return "there was no time left"
