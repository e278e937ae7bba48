"""A Prometheus server for a run: it scrapes the harvesters, evaluates rules, and reports alerts with their times.

It starts without data, so the ranges that a rule reads contain no event from before its start.
"""

import os
import signal
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

from harvest_lib.errors import StackError
from harvest_lib.local_stack.ports import keep_ports
from harvest_lib.local_stack.process import ServerProcess
from infra.platform.prometheus import configure, find_prometheus, prepared
from infra.platform.service import ask
from infra.processes import failed

_READY_SECONDS = 30.0
_STOP_SECONDS = 5.0
_FIRING = 'ALERTS{alertstate="firing"}'
_ADDED = {"__name__", "alertname", "alertstate"}
_KEPT = "1d"


def prometheus_lacking() -> str | None:
    """Return the reason why Prometheus is unavailable, None if it is installed."""
    try:
        find_prometheus()
    except StackError as error:
        return f"{error.cause}: {error.next_step}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Firing:
    """An alert with its labels. `since` and `until` are the first and the last evaluation that found it firing, in Unix
    time."""

    alert: str
    labels: Mapping[str, str]
    since: float
    until: float


class Prometheus:
    """One Prometheus server with its own folder; a context manager."""

    def __init__(self, folder: Path, rules: Mapping[str, Any], targets: Sequence[str], *, interval_seconds: float):
        """Write the configuration; nothing is started yet. The server scrapes and evaluates once per interval."""
        self._gap_seconds = 1.5 * interval_seconds
        self._folder, self._interval_seconds = folder, interval_seconds
        port = keep_ports(folder.parent / "prometheus.json", ["prometheus"])["prometheus"]
        self._url = f"http://127.0.0.1:{port}/api/v1"
        folder.mkdir(parents=True)
        self._command = prepared(
            find_prometheus(),
            folder,
            yaml.safe_dump(dict(rules)),
            targets,
            port=port,
            interval_seconds=interval_seconds,
            kept=_KEPT,
        )
        self._process = ServerProcess(
            "Prometheus", log=folder / "prometheus.log", stop_signals={signal.SIGTERM: _STOP_SECONDS}
        )

    def __enter__(self) -> Self:
        self._process.spawn([*self._command, "--log.level=warn"], environment={"PATH": "/usr/bin:/bin"})
        self._process.await_ready(self._is_ready, seconds=_READY_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()

    def scrape(self, jobs: Mapping[str, Sequence[str]]) -> None:
        """Scrape only the targets of these jobs from now on."""
        configure(self._folder, jobs, self._interval_seconds)
        if (pid := self._process.pid) is not None:
            os.kill(pid, signal.SIGHUP)

    def alerts(self) -> list[dict[str, Any]]:
        """Return the firing and the pending alerts, in the form of `/api/v1/alerts`."""
        found: list[dict[str, Any]] = self._ask("alerts")["alerts"]
        return found

    def query(self, expression: str, at: float | None = None) -> list[tuple[dict[str, str], float]]:
        """Return labels and value of each series of an expression, now or at `at` (Unix time)."""
        asked = {"query": expression} | ({"time": f"{at:.3f}"} if at is not None else {})
        return [(each["metric"], float(each["value"][1])) for each in self._ask("query", asked)["result"]]

    def fired(self) -> list[Firing]:
        """Return all alerts that have fired, sorted by start. They are read from the samples of all evaluations, so no
        alert is missed. An alert that ended and fired again is returned twice."""
        found = []
        for each in self._ask("query", {"query": f"{_FIRING}[{_KEPT}]"})["result"]:
            times = [at for at, _ in each["values"]]
            labels = {name: value for name, value in each["metric"].items() if name not in _ADDED}
            ends = [place for place in range(1, len(times)) if times[place] - times[place - 1] > self._gap_seconds]
            for first, last in zip([0, *ends], [*ends, len(times)], strict=True):
                alert = each["metric"]["alertname"]
                found.append(Firing(alert=alert, labels=labels, since=times[first], until=times[last - 1]))
        return sorted(found, key=lambda each: each.since)

    def _ask(self, what: str, asked: Mapping[str, str] | None = None) -> Any:
        answer = ask(f"{self._url}/{what}?{urllib.parse.urlencode(asked or {})}")
        if answer is None:
            raise failed(self._process, "does not answer")
        return answer["data"]

    def _is_ready(self) -> bool:
        return ask(f"{self._url}/status/buildinfo") is not None
