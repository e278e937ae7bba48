"""A service of the platform: a process with its child processes, and a check that it serves.

Unlike a database server, a service starts processes (runs, tasks, workers) that may outlive it. Therefore a service
leads its own session, and `stop` returns when no process of the session is left.
"""

import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harvest_lib.local_stack.description import Server
from harvest_lib.local_stack.process import ServerProcess
from infra.platform import sessions

_READY_SECONDS = 300
_STOP_SECONDS = 15
_ANSWER_SECONDS = 5
_POLL_SECONDS = 0.2

# Servers of this machine are never queried through a proxy.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePlan:
    """Command of a service, and the check that it serves. `environment` contains secrets, so `repr` does not show it.

    `serves` receives the start time of the service (Unix time), because an answer of an earlier start must not count.
    """

    name: str
    version: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    serves: Callable[[float], bool]
    port: int = 0
    url: str = ""

    def __repr__(self) -> str:
        """Return the name and the command as text."""
        return f"Plan({self.name!r}, {self.command!r})"


class Service:
    """A service that can be started, and stopped together with the processes that it started."""

    def __init__(self, plan: ServicePlan, *, logs: Path) -> None:
        """Prepare; nothing is started yet."""
        self.plan = plan
        self._process = ServerProcess(
            plan.name,
            log=logs / f"{plan.name}.log",
            stop_signals={signal.SIGTERM: _STOP_SECONDS},
            end_signal=signal.SIGTERM,
        )
        self._session = 0
        self._reach: set[int] = set()
        self._started = 0.0

    @property
    def pid(self) -> int | None:
        """The process id of the service, equal to its session id; None if it does not run."""
        return self._process.pid

    @property
    def session(self) -> int:
        """The session id of the service and its child processes; 0 if the service is not started."""
        return self._session

    @property
    def found_port_taken(self) -> bool:
        """True if the service has ended because its port was taken."""
        return self._process.found_port_taken

    def spawn(self) -> None:
        """Start the service, and return before it serves."""
        self._started = time.time()
        self._process.spawn(self.plan.command, environment=self.plan.environment)
        self._session = self._process.pid or 0

    def await_ready(self) -> None:
        """Wait until the service serves. Raises StackError, which names the log, if it ends or does not serve in
        time."""

        def ready() -> bool:
            if self.plan.serves(self._started):
                return True
            time.sleep(_POLL_SECONDS)
            return False

        self._process.await_ready(ready, seconds=_READY_SECONDS)

    def begin_stop(self) -> None:
        """Request the end of the service and of the processes that it started, and return at once."""
        if self._session:
            self._reach = sessions.reach([self._session])  # now, while parents live: see `sessions`
            sessions.signal_all(self._reach, signal.SIGTERM)

    def stop(self) -> None:
        """End the service and the processes that it started, by SIGTERM and then by force. Does nothing if none run."""
        if self._session and not self._reach:
            self._reach = sessions.reach([self._session])
        self._process.stop()
        sessions.end(self._reach, seconds=_STOP_SECONDS)
        self._session, self._reach = 0, set()

    def describe(self) -> Server:
        """Return the description of the service: name, version, process id, port and address."""
        return Server(
            name=self.plan.name,
            version=self.plan.version,
            pid=self.pid or 0,
            port=self.plan.port,
            url=self.plan.url,
        )


def ask(url: str, question: Mapping[str, Any] | None = None) -> Any:
    """Return the JSON that a URL answers to a GET, or to a POST of `question`; None if there is no valid answer."""
    body = None if question is None else json.dumps(question).encode()
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})  # noqa: S310 - a URL of the stack
    try:
        with _DIRECT.open(request, timeout=_ANSWER_SECONDS) as answer:
            return json.load(answer)
    except (urllib.error.URLError, OSError, ValueError):
        return None
