"""Record of a test session, one JSON object a line, as it goes: the collected tests, and the outcome of each.

With `--record FILE`. Of a session that is killed, the lines written stay.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--record`."""
    parser.addoption("--record", type=Path, default=None, metavar="FILE", help="write what becomes of each test")


def register(config: pytest.Config) -> None:
    """Record this session if it is asked for, in the process that all reports reach."""
    file = config.getoption("record")
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(file), "record")


class Recorder:
    """Pytest hooks that write the record."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._collected: set[str] = set()
        file.write_text("")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Write which tests this process found."""
        self._collect([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Write which tests a worker found."""
        self._collect(ids)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Write which module could not be imported."""
        if report.failed:
            self._write(id=report.nodeid, when="collect", outcome="failed", reason=_reason(report), seconds=0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write how a phase of a test ended. A worker that died is the failure of the test that it ran."""
        reason = _reason(report) if report.failed else ""
        self._write(
            id=report.nodeid, when=report.when, outcome=report.outcome, reason=reason, seconds=round(report.duration, 3)
        )

    def _collect(self, ids: list[str]) -> None:
        new = [each for each in ids if each not in self._collected]
        self._collected.update(new)
        if new:
            self._write(collected=new)

    def _write(self, **fields: Any) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(fields) + "\n")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The first line of what went wrong."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else report.longreprtext
    lines = (line.strip() for line in text.splitlines())
    # In front of what it says of a worker that died, xdist names the interpreter.
    return next((line for line in lines if line and not line.startswith("[gw")), "no reason given")[:300]


@dataclass
class Record:
    """A record as read back."""

    collected: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """First reason by test, in order."""
    uncollected: dict[str, str] = field(default_factory=dict)
    """Reason by module that could not be imported."""
    passed: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)

    @property
    def left(self) -> list[str]:
        """Tests that were collected and not run to their end, in order."""
        return [each for each in self.collected if each not in self.ended]

    @classmethod
    def read(cls, file: Path) -> "Record":
        """Read a record; one whose writer was killed in a line, up to there."""
        record = cls()
        for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
            try:
                record._take(json.loads(line))
            except json.JSONDecodeError:
                break
        return record

    def _take(self, entry: dict[str, Any]) -> None:
        if "collected" in entry:
            self.collected += entry["collected"]
            return
        test, outcome, when = entry["id"], entry["outcome"], entry["when"]
        if when == "collect":
            self.uncollected[test] = entry["reason"]
        elif outcome == "failed":
            self.failed.setdefault(test, entry["reason"])
            self.passed.discard(test)
        elif outcome == "skipped":
            self.skipped.add(test)
        elif when == "call":
            self.passed.add(test)
        if when not in {"setup", "call"}:  # a worker that died has a phase of its own
            self.ended.add(test)
