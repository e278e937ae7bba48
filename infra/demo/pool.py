"""A pool of harvesters: its leaders, and the killing of the leader."""

import time
from pathlib import Path

from infra.harvester import Harvester, Lead
from infra.processes import end_in_order, failed

SIZE = 3


class DemoPool:
    """Some harvesters on an outbox; one of them leads."""

    def __init__(self, config: Path, folder: Path, size: int = SIZE) -> None:
        """Prepare; nothing is started yet."""
        self.leads: list[Lead] = []
        """All terms that began, in the order in which they were reported."""
        self._leaving: list[Harvester] = []
        self._living = [Harvester(number, config, folder) for number in range(1, size + 1)]

    @property
    def leader(self) -> Lead | None:
        """The term of the living harvester that leads, None when none does."""
        leads = [harvester.lead for harvester in self._living if harvester.lead is not None]
        return max(leads, key=lambda lead: lead.at, default=None)

    def start(self) -> None:
        """Start all; returns at once."""
        for harvester in self._living:
            harvester.start()

    def look(self) -> list[Lead]:
        """Return the terms that began since the last call. Raises StackError when a harvester has ended by itself."""
        began: list[Lead] = []
        for harvester in self._living:
            ended = harvester.process.pid is None
            began += harvester.look()
            if ended:
                raise failed(harvester.process, "ended by itself", lines=2)
        self.leads += began
        return began

    def kill(self, lead: Lead) -> float:
        """SIGKILL the harvester of a term and return when, in Unix time."""
        victim, at = self._remove(lead), time.time()
        victim.process.kill()
        return at

    def release(self, lead: Lead) -> float:
        """Request the harvester of a term to stop, and return the time of the request, in Unix time."""
        leaving, at = self._remove(lead), time.time()
        leaving.process.begin_stop()
        self._leaving.append(leaving)
        return at

    def _remove(self, lead: Lead) -> Harvester:
        harvester = next(each for each in self._living if each.number == lead.harvester)
        self._living.remove(harvester)
        return harvester

    @property
    def all_started(self) -> bool:
        """True if every living harvester has come up."""
        return all(harvester.started for harvester in self._living)

    def end(self) -> float:
        """Stop the living harvesters; return the time that took. Raises StackError if a harvester had to be forced."""
        began = time.monotonic()
        self.leads += end_in_order(self._living)
        return time.monotonic() - began

    def stop(self) -> None:
        """End all, in order and then by force."""
        for harvester in self._living:
            harvester.process.begin_stop()
        for harvester in [*self._living, *self._leaving]:
            harvester.process.stop()
