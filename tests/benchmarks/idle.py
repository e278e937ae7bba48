"""Cost of an idle leader with the default limits."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import psutil
import psycopg

from tests.benchmarks.backlog import Servers

_SECONDS = 15.0
_START_SECONDS = 30.0
_COMMITS = """
SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()
"""


DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "native": {"delivery": "transactional", "leadership": "postgres"},
    "goharvest": {"delivery": "barrier", "leadership": "neli"},
}
"""By the table, the settings that `auto` chooses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Per cent of one core, statements (each a transaction of its own) a second, and resident memory at the end."""

    core_percent: float
    statements_per_second: float
    resident_bytes: int


def cost(servers: Servers, table: str, *options: str) -> Cost:
    """Let one process lead an empty outbox of its own, of a table of `DEFAULTS`; `options` are further ones of
    `harvest run`."""
    if table == "native":
        servers.make_native()
    else:
        servers.fill(0)
    with TemporaryDirectory() as folder, psycopg.connect(servers.dsn, autocommit=True) as connection:
        config, log = Path(folder) / "harvest.yaml", Path(folder) / "log"
        config.write_text(servers.yaml(leaderGroupID=f"bench-{uuid4().hex[:8]}", **DEFAULTS[table]))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HARVEST_")}
        command = [sys.executable, "-m", "harvest_lib.cli", "run", "-f", str(config), "--log-format", "json", *options]
        with log.open("w") as stderr, subprocess.Popen(command, stderr=stderr, env=environment) as process:
            try:
                _wait_until(lambda: "leader_acquired" in log.read_text())
                time.sleep(1)  # its start is over
                watched = psutil.Process(process.pid)
                commits, began, before = _commits(connection), time.monotonic(), watched.cpu_times()
                time.sleep(_SECONDS)
                commits = _commits(connection) - commits
                seconds, after = time.monotonic() - began, watched.cpu_times()
                resident = watched.memory_info().rss
            finally:
                process.terminate()
    busy = after.user + after.system - before.user - before.system
    return Cost(core_percent=100 * busy / seconds, statements_per_second=commits / seconds, resident_bytes=resident)


def _commits(connection: "psycopg.Connection[tuple[int]]") -> int:
    connection.execute("SELECT pg_stat_clear_snapshot()")
    time.sleep(1.2)  # sessions report what they did once a second
    row = connection.execute(_COMMITS).fetchone()
    return row[0] if row else 0


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("the harvester did not come to lead")
        time.sleep(0.05)
