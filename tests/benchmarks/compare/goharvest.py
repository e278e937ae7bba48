"""goharvest, by its own program `reaper`, on its own table."""

import os
import signal
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from confluent_kafka.admin import AdminClient, NewTopic
from psycopg.conninfo import conninfo_to_dict

from harvest_lib.local_stack.process import ServerProcess
from tests.benchmarks.compare.ours import BARRIER
from tests.benchmarks.compare.peer import Built, LeftOutError, Place
from tests.benchmarks.compare.pool import Pool, running
from tests.support.goharvest_build import VERSION, Unavailable, reaper

_STOP_SECONDS = 10
_LIMITS = {"markQueryRecords": 1_000, "maxInFlightRecords": 10_000, "sendConcurrency": 8}
"""Limits of the throughput by its documentation, larger than the defaults of 100, 1,000 and 8; 8 is kept: each is a
producer of its own, and there are two cores. No code of it reads `sendBuffer`."""
_LEADS = ("Elected as leader, ID: ", "Refreshed leader ID: ")
_LEADS_NOT = ("Lost leader status", "Leader fenced")


class _Member:
    """A `reaper` process."""

    def __init__(self, number: int, program: Path, config: Path, folder: Path) -> None:
        self.process = ServerProcess(
            f"goharvest {number}",
            log=folder / f"goharvest-{number}.log",
            stop_signals={signal.SIGTERM: _STOP_SECONDS},
        )
        self._command: list[str | Path] = [program, "-f", config]
        self._began = 0

    def start(self) -> None:
        log = self.process.log
        self._began = log.stat().st_size if log.exists() else 0
        self.process.spawn(self._command, environment=dict(os.environ))

    def leads(self) -> bool:
        with self.process.log.open("rb") as log:
            log.seek(self._began)
            said = log.read().decode(errors="replace")
        last = max(map(said.rfind, _LEADS))
        return last >= 0 and last > max(map(said.rfind, _LEADS_NOT))


@dataclass(slots=True, kw_only=True)
class Goharvest:
    """Built from its published module."""

    name: str = "goharvest"
    title: str = "goharvest"
    share: float = 0.1
    insert_one: str = BARRIER.insert_one
    _program: Path = field(default=Path(), init=False)

    def build(self, state: Path) -> Built:
        """Build the program."""
        try:
            self._program = reaper(state)
        except Unavailable as reason:
            raise LeftOutError(str(reason)) from reason
        configuration = _yaml("KAFKA", "goharvest", "POSTGRES sslmode=disable")
        return Built(versions={"goharvest": VERSION}, configuration=configuration)

    def make(self, place: Place) -> None:
        """Make its table."""
        place.servers.fill(0)

    def insert(self, place: Place, records: int) -> None:
        """Add a backlog."""
        BARRIER.insert(place, records)

    def run(self, place: Place, *, members: int) -> AbstractContextManager[Pool]:
        """Run `reaper` so many times; the leader topic is made, as it makes none."""
        servers = place.servers
        admin = AdminClient({"bootstrap.servers": servers.bootstrap_servers, "log_level": 0})
        for made in admin.create_topics([NewTopic(f"{servers.topic}.neli", 1)]).values():
            made.result(30)
        config = place.folder / "goharvest.yaml"
        config.write_text(_yaml(servers.bootstrap_servers, servers.topic, _data_source(servers.dsn)))
        folder = place.folder / servers.topic
        return running([_Member(number, self._program, config, folder) for number in range(1, members + 1)])


def _data_source(dsn: str) -> str:
    """Write a connection string by its driver's rules."""
    names = ("host", "port", "user", "password", "dbname")
    known = conninfo_to_dict(dsn)
    return " ".join(f"{name}={_quoted(str(known[name]))}" for name in names if known.get(name)) + " sslmode=disable"


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _yaml(bootstrap_servers: str, group: str, data_source: str) -> str:
    return yaml.safe_dump(
        {
            "harvest": {
                "baseKafkaConfig": {"bootstrap.servers": bootstrap_servers},
                "producerKafkaConfig": {"compression.type": "lz4"},
                "leaderTopic": f"{group}.neli",
                "leaderGroupID": group,
                "dataSource": data_source,
                "outboxTable": "outbox",
                "limits": _LIMITS,
            },
            "logging": {"level": "Info"},
        },
        sort_keys=False,
    )
