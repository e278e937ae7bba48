"""One harvester as a real `harvest run` process. Its terms are read from its log, as an operator reads them."""

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from uuid import UUID

from harvest_lib.local_stack.process import ServerProcess
from infra.log_lines import JsonLines

_STOP_SECONDS = 15
_BEGINS = {"leader_acquired", "leader_refreshed"}
_ENDS = {"leader_revoked", "leader_fenced"}
_RUN = (sys.executable, "-m", "harvest_lib.cli", "run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """A term: the number of the harvester, its leader id, and the Unix time `at` when it began to lead."""

    harvester: int
    leader_id: UUID
    at: float


class Harvester:
    """One process of a pool. `look` updates its attributes from the log."""

    def __init__(self, number: int, config: Path, folder: Path, *, command: Sequence[str | Path] = _RUN) -> None:
        """Prepare; nothing is started yet. `command` runs the harvester, `harvest run` by default."""
        self.number = number
        self.lead: Lead | None = None
        self.started = False
        self.stopped_cleanly = False
        self.process = ServerProcess(
            f"harvester {number}",
            log=folder / f"harvester-{number}.log",
            stop_signals={signal.SIGTERM: _STOP_SECONDS},
        )
        self._command = [*command, "-f", config, "--log-format", "json"]
        self._lines = JsonLines(self.process.log)

    def start(self) -> None:
        """Start the process, and return at once."""
        # Variables of harvesters would override the configuration file.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HARVEST_")}
        self.process.spawn(self._command, environment=environment)

    def look(self) -> list[Lead]:
        """Read the new lines of its log, and return the terms that it began."""
        began: list[Lead] = []
        for line in self._lines.new():
            event = line.get("event")
            if event in _BEGINS:
                at = datetime.fromisoformat(line["timestamp"]).timestamp()
                self.lead = Lead(harvester=self.number, leader_id=UUID(line["leader_id"]), at=at)
                began.append(self.lead)
            elif event in _ENDS:
                self.lead = None
            elif event == "harvester_started":
                self.started = True
            elif event == "harvester_stopped":
                self.stopped_cleanly = True
        return began
