"""The pipeline as a process that is killed, started again, and asked to stop."""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harvest_lib.errors import StackError
from harvest_lib.local_stack.process import ServerProcess, tail
from harvest_lib.pipeline import operations
from harvest_lib.pipeline.declaration import Declaration
from infra.waiting import until

_RUN = (sys.executable, "-m", "harvest_lib.cli", "pipeline", "run")
_STOP_SECONDS = 40.0
_WAIT_SECONDS = 60.0
_TICK_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """State after a kill: by writer, the offset that it resumes at; and the log's end. Those between may come twice."""

    resumes_at: dict[str, int]
    end: int


class PipelineProcess:
    """`harvest pipeline run`, again and again."""

    def __init__(self, file: Path, declaration: Declaration, log: Path, *, seed: int) -> None:
        self.kills: list[Kill] = []
        self._declaration = declaration
        self._dice = random.Random(seed)  # noqa: S311 - nothing is kept secret by it
        self._command: list[str | Path] = [*_RUN, "-f", file, "--log-format", "json"]
        self._process = ServerProcess("pipeline", log=log, stop_signals={signal.SIGTERM: _STOP_SECONDS})

    def start(self) -> None:
        """Start it; returns at once."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HARVEST_")}
        self._process.spawn(self._command, environment=environment)

    def kill(self, *, within_seconds: float) -> Kill:
        """Kill it at a random moment after its reader has appended something more."""
        before = operations.pipeline_status(self._declaration).end
        self.await_status(lambda status: status.end > before, "the pipeline reads nothing")
        time.sleep(self._dice.random() * within_seconds)
        self.require_alive()
        self._process.kill()
        status = operations.pipeline_status(self._declaration)
        killed = Kill(resumes_at={each.name: each.position for each in status.writers}, end=status.end)
        self.kills.append(killed)
        return killed

    def await_status(
        self, reached: Callable[[operations.PipelineStatus], bool], otherwise: str, seconds: float = _WAIT_SECONDS
    ) -> None:
        """Wait until `reached`. Raises StackError, at once if the process has ended."""

        def looked() -> bool:
            self.require_alive()
            return reached(operations.pipeline_status(self._declaration))

        until(looked, seconds, otherwise, next_step=self._advice, tick_seconds=_TICK_SECONDS)

    def stop(self) -> None:
        """Have it shut down in order."""
        self._process.stop()

    def require_alive(self) -> None:
        """Raise StackError if it has ended by itself."""
        if self._process.pid is None:
            raise StackError("the pipeline ended by itself", evidence=tail(self._process.log), next_step=self._advice)

    @property
    def _advice(self) -> str:
        return f"read {self._process.log}"
