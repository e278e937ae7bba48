"""A pool of harvester processes, whose leader can be killed."""

import time
from pathlib import Path

from infra.harvester import Harvester, Lead
from infra.processes import end_in_order, failed

SIZE = 3


class DemoPool:
    """Harvesters of the same outbox, of which a single harvester leads."""

    def __init__(self, config: Path, folder: Path, size: int = SIZE) -> None:
        """Prepare; nothing is started yet."""
        self.leads: list[Lead] = []
        """All terms that began, in the order in which they were reported."""
        self._leaving: list[Harvester] = []
        self._living = [Harvester(number, config, folder) for number in range(1, size + 1)]

    @property
    def leader(self) -> Lead | None:
        """The current term, as of the last `look`; None if no living harvester leads."""
        leads = [harvester.lead for harvester in self._living if harvester.lead is not None]
        return max(leads, key=lambda lead: lead.at, default=None)

    def start(self) -> None:
        """Start all, and return at once."""
        for harvester in self._living:
            harvester.start()

    def look(self) -> list[Lead]:
        """Return the terms that began since the last call. Raises StackError if a harvester has ended by itself."""
        began: list[Lead] = []
        for harvester in self._living:
            ended = harvester.process.pid is None
            began += harvester.look()
            if ended:
                raise failed(harvester.process, "ended by itself", lines=2)
        self.leads += began
        return began

    def kill(self, lead: Lead) -> float:
        """SIGKILL the harvester of a term, and return the Unix time of the kill."""
        victim, at = self._remove(lead), time.time()
        victim.process.kill()
        return at

    def release(self, lead: Lead) -> float:
        """Request the harvester of a term to stop, and return the Unix time of the request."""
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
        """True if every living harvester has logged a complete start, as of the last `look`."""
        return all(harvester.started for harvester in self._living)

    def end(self) -> float:
        """Stop the living harvesters, and return the seconds that this took. Raises StackError if a harvester did not
        stop in order."""
        began = time.monotonic()
        self.leads += end_in_order(self._living)
        return time.monotonic() - began

    def stop(self) -> None:
        """End all harvesters, by SIGTERM and then by force."""
        for harvester in self._living:
            harvester.process.begin_stop()
        for harvester in [*self._living, *self._leaving]:
            harvester.process.stop()
