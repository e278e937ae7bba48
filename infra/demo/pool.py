"""A pool of harvesters: real `harvest run` processes, who leads among them, and the killing of the leader.

Who leads is read from their logs, as an operator would.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from uuid import UUID

from harvest_lib.errors import StackError
from infra.demo.log_lines import JsonLines
from infra.local.process import ServerProcess, tail

SIZE = 3

_STOP_SECONDS = 15
_BEGINS = {"leader_acquired", "leader_refreshed"}
_ENDS = {"leader_revoked", "leader_fenced"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """Harvester `harvester` began to lead under `leader_id` at `at` (Unix time)."""

    harvester: int
    leader_id: UUID
    at: float


class Harvester:
    """One process of the pool."""

    def __init__(self, number: int, config: Path, folder: Path) -> None:
        self.number = number
        self.lead: Lead | None = None
        self.started = False
        self.stopped_cleanly = False
        self.process = ServerProcess(
            f"harvester {number}",
            log=folder / f"harvester-{number}.log",
            stop_signals={signal.SIGTERM: _STOP_SECONDS},
        )
        self._config = config
        self._lines = JsonLines(self.process.log)

    def start(self) -> None:
        """Start it; returns at once."""
        # The variables that named the servers of the stack would go before the file.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HARVEST_")}
        command: list[str | Path] = [sys.executable, "-m", "harvest_lib.cli"]
        command += ["run", "-f", self._config, "--log-format", "json"]
        self.process.spawn(command, environment=environment)

    def look(self) -> Iterator[Lead]:
        """Read what it has logged and yield the terms it began."""
        for line in self._lines.new():
            event = line.get("event")
            if event in _BEGINS:
                at = datetime.fromisoformat(line["timestamp"]).timestamp()
                self.lead = Lead(harvester=self.number, leader_id=UUID(line["leader_id"]), at=at)
                yield self.lead
            elif event in _ENDS:
                self.lead = None
            elif event == "harvester_started":
                self.started = True
            elif event == "harvester_stopped":
                self.stopped_cleanly = True


class Pool:
    """Some harvesters on one outbox, of which one leads."""

    def __init__(self, config: Path, folder: Path, size: int = SIZE) -> None:
        """Prepare; nothing is started yet."""
        self.leads: list[Lead] = []
        """All terms that began, in the order in which they were heard of."""
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
        """Return the terms that began since the last look. Raises StackError when one has ended by itself."""
        began: list[Lead] = []
        for harvester in self._living:
            ended = harvester.process.pid is None
            began += harvester.look()
            if ended:
                raise StackError(
                    f"{harvester.process.name} ended by itself",
                    evidence=tail(harvester.process.log, lines=2),
                    next_step=f"read {harvester.process.log}",
                )
        self.leads += began
        return began

    def kill(self, lead: Lead) -> float:
        """SIGKILL the harvester of a term and return when, in Unix time."""
        victim = next(harvester for harvester in self._living if harvester.number == lead.harvester)
        at = time.time()
        victim.process.kill()
        self._living.remove(victim)
        return at

    def release(self, lead: Lead) -> float:
        """Ask the harvester of a term to stop, and return when, in Unix time."""
        leaving = next(harvester for harvester in self._living if harvester.number == lead.harvester)
        at = time.time()
        leaving.process.begin_stop()
        self._living.remove(leaving)
        self._leaving.append(leaving)
        return at

    @property
    def all_started(self) -> bool:
        """Tell whether every living harvester has come up."""
        return all(harvester.started for harvester in self._living)

    def end(self) -> float:
        """Ask those that live to stop, and return how long they took. Raises StackError when one had to be forced."""
        began = time.monotonic()
        self.stop()
        seconds = time.monotonic() - began
        for harvester in self._living:
            self.leads += harvester.look()
            if not harvester.stopped_cleanly:
                raise StackError(
                    f"{harvester.process.name} did not stop in order",
                    evidence=tail(harvester.process.log, lines=2),
                    next_step=f"read {harvester.process.log}",
                )
        return seconds

    def stop(self) -> None:
        """End all, in order and then by force."""
        for harvester in self._living:
            harvester.process.begin_stop()
        for harvester in [*self._living, *self._leaving]:
            harvester.process.stop()
