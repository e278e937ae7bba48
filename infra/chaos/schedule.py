"""The order of faults: over the runs of all modes, every fault is injected once before a fault is injected again."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence

from infra.chaos.faults.fault import Fault
from infra.chaos.system import SystemMode


class Schedule:
    """Chooses the faults of consecutive runs, in a random order that the seed determines."""

    def __init__(self, faults: Mapping[str, Fault], modes: Sequence[SystemMode], brokers: int, seed: int) -> None:
        """`modes` are the modes of the runs, in the order of the runs."""
        self._faults, self._modes, self._brokers = faults, list(modes), brokers
        self._draw = random.Random(seed)  # noqa: S311 - no secret
        self._rank = {name: self._draw.random() for name in faults}
        self._lacks = {name: sentence for name, fault in faults.items() if (sentence := fault.needs()) is not None}
        self.injected: Counter[str] = Counter()

    def possible(self, mode: SystemMode) -> list[str]:
        """Return the faults that can be injected in a run of this mode."""
        return [
            name
            for name, fault in self._faults.items()
            if fault.brokers <= self._brokers and name not in self._lacks and fault.fits(mode)
        ]

    def next(self, mode: SystemMode) -> str | None:
        """Return the next fault for a run of this mode, None if no fault can be injected. Faults that were injected
        least often come first; among them, faults that fit the fewest remaining modes."""
        left = self._modes[self._modes.index(mode) :]
        candidates = [
            (self.injected[name], sum(map(self._faults[name].fits, left)), self._rank[name], name)
            for name in self.possible(mode)
        ]
        if not candidates:
            return None
        name = min(candidates)[-1]
        self.injected[name] += 1
        self._rank[name] = self._draw.random()
        return name

    def left_out(self) -> dict[str, str]:
        """Return the faults that were never injected, each with the reason."""
        return {name: self._why(name, fault) for name, fault in self._faults.items() if not self.injected[name]}

    def _why(self, name: str, fault: Fault) -> str:
        if fault.brokers > self._brokers:
            return f"takes {fault.brokers} brokers"
        if not any(map(fault.fits, self._modes)):
            return "does not concern these modes"
        if name in self._lacks:
            return self._lacks[name]
        return "there was no time left"
