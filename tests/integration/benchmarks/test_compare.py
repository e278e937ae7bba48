"""The comparison at its smallest, from the build of each relay to its report; and interrupted, when nothing is left."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from rich.console import Console
from support.waiting import eventually

from tests.benchmarks.compare.__main__ import run
from tests.benchmarks.compare.debezium import Debezium
from tests.benchmarks.compare.goharvest import Goharvest
from tests.benchmarks.compare.ours import BARRIER, EXACTLY_ONCE
from tests.benchmarks.compare.rounds import Size

pytestmark = [pytest.mark.full, pytest.mark.long, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[3]
SMALLEST = Size(records=100_000, long_records=200_000, rounds=1, seconds=3.0, kills=1)


@pytest.fixture
def state(tmp_path, parts):
    """A state folder of its own, with what was built and brought before."""
    made = tmp_path / "state"
    made.mkdir()
    for name in ("cache", "goharvest", "java"):
        (parts / name).mkdir(exist_ok=True)
        (made / name).symlink_to(parts / name)
    return made


def test_every_relay_that_can_be_built_is_measured_and_ended(state):
    page = state / "page.md"
    (state / "images").mkdir()
    page.write_text("<!-- comparison --><!-- end of comparison -->")
    peers = [EXACTLY_ONCE, BARRIER, Debezium(), Goharvest()]
    found = {each.name: each for each in run(SMALLEST, peers, state, Console(), page=page)}
    kept = json.loads((state / "compare" / "conditions.json").read_text())
    built = [each.name for each in peers if each.name in kept["relays"]]
    assert {"exactly-once", "barrier"} <= set(built)
    assert {each.name for each in peers} == {*built, *kept["left_out"]}  # nothing else failed
    for name in built:
        figures = [found[f"{figure}-{name}"] for figure in ("drain", "drain-long", "cpu", "memory", "failover")]
        assert all(each.value > 0 for each in figures), figures
        assert found[f"latency-500-{name}-p50"].value <= found[f"latency-500-{name}-p99"].value
        assert found[f"failover-{name}-lost"].value == 0
    assert found["failover-exactly-once-duplicates"].value == 0
    for name in set(built) & {"debezium", "goharvest"}:
        assert found[f"exactly-once-to-{name}"].ratio > 1
        assert f"{name}-to-alone" in found
    assert [each["name"] for each in json.loads((state / "compare" / "report.json").read_text())] == list(found)
    assert (state / "images" / "compare.png").stat().st_size > 0
    assert all(each in page.read_text() for each in ("3.9.1", "Versions: outbox-harvester"))
    assert not psutil.Process().children(recursive=True)


def test_an_interrupted_comparison_leaves_no_process(state):
    command = [sys.executable, "-m", "tests.benchmarks.compare", "--records", "100000"]
    environment = {**os.environ, "HARVEST_HOME": str(state)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    started: set[psutil.Process] = set()

    def servers():
        started.update(psutil.Process(process.pid).children(recursive=True))
        return any("kafka.Kafka" in command_line(each) for each in started)

    try:
        eventually(servers, "the servers run", seconds=600)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGINT
    assert "everything that was started has been stopped" in output
    eventually(lambda: not any(map(command_line, started)), "all have ended")


def command_line(process):
    """Return a process's arguments, none when it has ended."""
    with suppress(psutil.Error):
        return process.cmdline()
    return []
