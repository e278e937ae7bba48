"""One service of the platform: a process of ours with a check that it serves, and all that it starts.

Unlike a database server, a service starts others (runs, tasks, workers) that it may leave behind. It leads a session of
its own, and `stop` is over when that session is.
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

# Servers of this machine are never asked through a proxy.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePlan:
    """Command of a service, and the check that it serves. `environment` holds secrets, and is not shown.

    `serves` gets the start time of the service (Unix time): answers of an earlier one do not count.
    """

    name: str
    version: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    serves: Callable[[float], bool]
    port: int = 0
    url: str = ""

    def __repr__(self) -> str:
        """Show the name and the command."""
        return f"Plan({self.name!r}, {self.command!r})"


class Service:
    """A service that can be started, and stopped with all that it started."""

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
        """The service's process id while it runs, which is its session's too."""
        return self._process.pid

    @property
    def session(self) -> int:
        """The session of the service and of all it started; 0 when it was not started."""
        return self._session

    @property
    def found_port_taken(self) -> bool:
        """True if the service has ended because it could not have its port."""
        return self._process.found_port_taken

    def spawn(self) -> None:
        """Start the service without waiting until it serves."""
        self._started = time.time()
        self._process.spawn(self.plan.command, environment=self.plan.environment)
        self._session = self._process.pid or 0

    def await_ready(self) -> None:
        """Wait until it serves. Raises StackError, which names the log, when it ends or takes too long."""

        def ready() -> bool:
            if self.plan.serves(self._started):
                return True
            time.sleep(_POLL_SECONDS)
            return False

        self._process.await_ready(ready, seconds=_READY_SECONDS)

    def begin_stop(self) -> None:
        """Ask the service and all it started to end, without waiting."""
        if self._session:
            self._reach = sessions.reach([self._session])  # looked up now: a process that ends is a parent no more
            sessions.signal_all(self._reach, signal.SIGTERM)

    def stop(self) -> None:
        """End the service and all it started, in order and then by force; does nothing when it does not run."""
        if self._session and not self._reach:
            self._reach = sessions.reach([self._session])
        self._process.stop()
        sessions.end(self._reach, seconds=_STOP_SECONDS)
        self._session, self._reach = 0, set()

    def describe(self) -> Server:
        """Return the server with its process and address."""
        return Server(
            name=self.plan.name,
            version=self.plan.version,
            pid=self.pid or 0,
            port=self.plan.port,
            url=self.plan.url,
        )


def ask(url: str, question: Mapping[str, Any] | None = None) -> Any:
    """Return the JSON at an address, None without a valid answer; with a question, post it."""
    body = None if question is None else json.dumps(question).encode()
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})  # noqa: S310 - ours
    try:
        with _DIRECT.open(request, timeout=_ANSWER_SECONDS) as answer:
            return json.load(answer)
    except (urllib.error.URLError, OSError, ValueError):
        return None
