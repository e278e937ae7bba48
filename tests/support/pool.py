"""A pool of real `harvest run` processes, each to be killed, frozen, thawed and replaced by its id."""

import json
import os
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path

from support.waiting import eventually

_LEADS = {"leader_acquired", "leader_refreshed"}

CONFIG = """\
harvest:
  baseKafkaConfig:
    bootstrap.servers: {servers}
  producerKafkaConfig:
    compression.type: lz4
  leaderGroupID: {group}
  dataSource: {dsn}
  sessionTimeout: {session_seconds}s
  delivery: {delivery}
  leadership: {leadership}
  limits:
    heartbeatTimeout: 1500ms
    ioErrorBackoff: {io_error_backoff}
"""


HARVEST = (sys.executable, "-m", "harvest_lib.cli", "run")
_TESTS = Path(__file__).parents[1]


class Member:
    """One process, with the log it writes."""

    def __init__(self, config, log, command=HARVEST, options=("--log-format", "json")):
        self.log = log
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HARVEST_")}
        environment["PYTHONPATH"] = str(_TESTS)
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                [*command, "-f", str(config), *options],
                stderr=stderr,
                stdout=subprocess.DEVNULL,
                env=environment,
            )

    @property
    def alive(self):
        return self.process.poll() is None

    def lines(self):
        """Return what was logged, without a last line that is not complete yet."""
        return [line for line in self.log.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def events(self):
        return [json.loads(line) for line in self.lines() if line.startswith("{")]

    @property
    def started(self):
        return any(event["event"] == "harvester_started" for event in self.events())

    def stopped_at(self):
        """Return when the harvester said that it had stopped; the process ends a little later."""
        stopped = next(event for event in self.events() if event["event"] == "harvester_stopped")
        return datetime.fromisoformat(stopped["timestamp"])

    @property
    def terms(self):
        """Return the ids of all terms this process has led in, refreshed ones included."""
        return [event["leader_id"] for event in self.events() if event["event"] in _LEADS]

    @property
    def spells(self):
        """Return for each time this process led the leader ids, and whether all that was in flight had landed."""
        spells, abandoned = [], False
        for event in self.events():
            match event["event"]:
                case "leader_acquired":
                    spells.append(([event["leader_id"]], False))
                    abandoned = False
                case "leader_refreshed":
                    spells[-1][0].append(event["leader_id"])
                case "in_flight_abandoned":
                    abandoned = True
                case "leader_revoked":
                    spells[-1] = spells[-1][0], not abandoned
        return spells

    @property
    def leads(self):
        """Return True if this process lives, and the newest thing it said of leadership is that it has it."""
        said = [event["event"] for event in self.events() if event["event"].startswith("leader_")]
        return self.alive and bool(said) and said[-1] in _LEADS

    def signal(self, number):
        self.process.send_signal(number)

    def end(self, seconds=60):
        """Ask the process to stop; return its exit code, or kill it."""
        if self.alive:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


class Pool:
    """Members of one leader group; a context manager that ends them all.

    In `command` "{number}" stands for the number of the member that is started.
    """

    def __init__(
        self,
        folder,
        *,
        dsn,
        servers,
        group,
        session_seconds=3,
        delivery="barrier",
        leadership="neli",
        io_error_backoff="100ms",
        command=HARVEST,
    ):
        self._folder = folder
        self._config = folder / "reaper.yaml"
        self._config.write_text(
            CONFIG.format(
                servers=servers,
                group=group,
                dsn=dsn,
                session_seconds=session_seconds,
                delivery=delivery,
                leadership=leadership,
                io_error_backoff=io_error_backoff,
            )
        )
        self._command = command
        self.members = []

    def add(self, command=None):
        """Start one more, by a command of its own if need be."""
        number = len(self.members)
        command = [word.format(number=number) for word in command or self._command]
        member = Member(self._config, self._folder / f"harvester-{number}.log", command)
        self.members.append(member)
        return member

    def await_started(self):
        """Wait until every living member has come as far as minding its signals."""
        eventually(lambda: all(m.started for m in self.members if m.alive), "every process has started")

    def leader(self):
        return next((member for member in self.members if member.leads), None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for member in self.members:
            if member.alive:
                member.process.kill()
                member.process.wait()
