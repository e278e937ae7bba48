"""Workers of Kafka Connect, in distributed mode, and one connector in them, controlled by its REST interface."""

import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harvest_lib.local_stack.java import java_environment
from harvest_lib.local_stack.ports import keep_ports
from harvest_lib.local_stack.process import ServerProcess, tail

HEAP = ("-Xms256m", "-Xmx2g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
"""JVM options of a worker, as in the scripts that come with Kafka."""
_LOGGING = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true")
_STOP_SECONDS = 15
_LONGEST_SECONDS = 90
_LOOK_SECONDS = 0.1
_ANSWER_SECONDS = 10
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Worker:
    """One worker of a group."""

    def __init__(self, number: int, folder: Path, settings: Mapping[str, Any], java: Path, jars: list[Path]) -> None:
        """Write its configuration; nothing is started yet."""
        folder.mkdir(parents=True, exist_ok=True)
        port = keep_ports(folder / f"worker-{number}.ports", ["rest"])["rest"]
        self.process = ServerProcess(
            f"connect {number}",
            log=folder / f"connect-{number}.log",
            stop_signals={signal.SIGTERM: _STOP_SECONDS},
        )
        self.id = f"127.0.0.1:{port}"
        file = folder / f"worker-{number}.properties"
        listens = {"listeners": f"http://{self.id}", "rest.advertised.host.name": "127.0.0.1"}
        file.write_text(properties({**settings, **listens}))
        classes = os.pathsep.join(map(str, jars))
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        self._command: list[str | Path] = [java / "bin" / "java", *HEAP, *_LOGGING, "-cp", classes, main, file]

    def start(self) -> None:
        """Start it; returns at once."""
        self.process.spawn(self._command, environment=java_environment())

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the worker's answer, None when it gives none or an error."""
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://{self.id}{path}", data=content, method=method, headers={"Content-Type": "application/json"}
        )
        try:
            with _DIRECT.open(request, timeout=_ANSWER_SECONDS) as answer:
                return json.loads(answer.read() or b"{}")
        except (urllib.error.URLError, OSError, ValueError):
            return None


class Connect:
    """Workers, and the connector that one of them runs."""

    def __init__(self, workers: list[Worker], name: str, connector: Mapping[str, Any]) -> None:
        """Start nothing yet."""
        self._workers = workers
        self._name = name
        self._connector = connector

    @property
    def processes(self) -> list[ServerProcess]:
        """Those that were not killed."""
        return [each.process for each in self._workers]

    def start(self, streams: Callable[[], bool]) -> None:
        """Start the workers and the connector, and wait until it `streams`."""
        for each in self._workers:
            each.start()
        self._await(lambda: all(each.ask("GET", "/connectors") is not None for each in self._workers), "workers answer")
        path = f"/connectors/{self._name}/config"
        self._await(lambda: self._workers[0].ask("PUT", path, self._connector) is not None, "the connector is there")
        self._await(lambda: bool(self._task()) and streams(), "the connector streams")

    def pause(self) -> None:
        """Stop the connector; its worker goes on, warm as it is."""
        self._tell("stop", lambda: self._status() == "STOPPED")

    def resume(self) -> None:
        """Let the connector go on from where it was; returns at once."""
        self._tell("resume", lambda: True)

    def kill_leader(self) -> float:
        """SIGKILL the worker that runs the task."""
        worker = next(each for each in self._workers if each.id == self._task())
        self._workers.remove(worker)
        at = time.time()
        worker.process.kill()
        return at

    def stop(self) -> None:
        """End all workers."""
        for each in self._workers:
            each.process.begin_stop()
        for each in self._workers:
            each.process.stop()

    def _tell(self, verb: str, done: Callable[[], bool]) -> None:
        path = f"/connectors/{self._name}/{verb}"
        self._await(lambda: self._workers[0].ask("PUT", path) is not None, f"the connector is asked to {verb}")
        self._await(done, f"the connector did {verb}")

    def _status(self) -> str:
        found = self._workers[0].ask("GET", f"/connectors/{self._name}/status") or {}
        return str(found.get("connector", {}).get("state", ""))

    def _task(self) -> str:
        """Return the id of the worker that runs the task, nothing while none does."""
        found = self._workers[0].ask("GET", f"/connectors/{self._name}/status") or {}
        tasks = [each for each in found.get("tasks", []) if each.get("state") == "RUNNING"]
        return str(tasks[0]["worker_id"]) if tasks else ""

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _LONGEST_SECONDS
        while not condition():
            for each in self._workers:
                if each.process.pid is None:
                    raise RuntimeError(f"{each.process.name} ended by itself: {tail(each.process.log)}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"not in time: {what}: {tail(self._workers[0].process.log)}")
            time.sleep(_LOOK_SECONDS)


def properties(settings: Mapping[str, Any]) -> str:
    """Write a file of Java's properties."""
    return "".join(f"{name}={value}\n" for name, value in settings.items())
