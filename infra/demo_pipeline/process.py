"""The pipeline as a process that can be killed, restarted and stopped."""

import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harvest_lib.local_stack.process import ServerProcess
from harvest_lib.pipeline import operations
from harvest_lib.pipeline.declaration import load
from infra.processes import environment, require_up
from infra.waiting import until

_RUN = (sys.executable, "-m", "harvest_lib.cli", "pipeline", "run")
_STOP_SECONDS = 40.0
_WAIT_SECONDS = 60.0
_TICK_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class StateAfterKill:
    """State after a kill: the offset at which each writer resumes, by name, and the end of the log. A writer may
    deliver the messages from its offset to this end twice."""

    resumes_at: dict[str, int]
    end: int


class PipelineProcess:
    """A process of `harvest pipeline run` that is restarted after each kill."""

    def __init__(self, file: Path, log: Path, *, seed: int) -> None:
        self.kills: list[StateAfterKill] = []
        self._declaration = load(file)
        self._dice = random.Random(seed)  # noqa: S311 - nothing is kept secret by it
        self._command: list[str | Path] = [*_RUN, "-f", file, "--log-format", "json"]
        self._process = ServerProcess("the pipeline", log=log, stop_signals={signal.SIGTERM: _STOP_SECONDS})

    def start(self) -> None:
        """Start the process, and return at once."""
        self._process.spawn(self._command, environment=environment())

    def kill(self, *, within_seconds: float) -> StateAfterKill:
        """Wait until the reader has appended to the log, then a random time up to `within_seconds`; then kill the
        process and start it again. Return the state after the kill."""
        before = self._status().end
        self.await_status(lambda status: status.end > before, "the pipeline reads nothing")
        time.sleep(self._dice.random() * within_seconds)
        self.look()
        self._process.kill()
        status = self._status()
        killed = StateAfterKill(resumes_at={each.name: each.position for each in status.writers}, end=status.end)
        self.kills.append(killed)
        self.start()
        return killed

    def await_status(self, reached: Callable[[operations.PipelineStatus], bool], otherwise: str) -> None:
        """Wait until `reached` returns True for the status. Raises StackError after 60 s, or if the process ends."""
        until(
            lambda: reached(self._status()),
            _WAIT_SECONDS,
            otherwise,
            next_step=f"read {self._process.log}",
            tick_seconds=_TICK_SECONDS,
            watched=[self.look],
        )

    def _status(self) -> operations.PipelineStatus:
        return operations.pipeline_status(self._declaration)

    def look(self) -> None:
        """Raise StackError if the process has ended by itself."""
        require_up(self._process)

    def stop(self) -> None:
        """Stop the process, by SIGTERM and then by force."""
        self._process.stop()
