"""Real processes under faults that a fixed seed puts in order; the history of what everybody did is checked.

As `harvest chaos`, for less long. Each mode has faults that are worst for it. Odd seeds go natively.
"""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.machine import require
from typer.testing import CliRunner

from harvest_lib.cli import app
from harvest_lib.local_stack.state import default_state
from harvest_lib.native import implementation
from infra.chaos.history.reader import read_history
from infra.chaos.namespaces import mounts_lacking, networks_lacking

pytestmark = pytest.mark.full

RUNS = [
    ("snapshot/transactional", 11, "leader-frozen,kafka-unheard,postgres-killed,leader-killed,prepared-left-open"),
    ("mark/barrier", 12, "leader-frozen,kafka-unreached,sessions-killed,leader-killed,postgres-unheard"),
    (
        "transaction_id/pipelined",
        13,
        "leader-released,kafka-cut,postgres-cut,latency,writer-waited-for,topic-recreated",
    ),
    ("mark/transactional", 14, "leader-killed,kafka-unheard,postgres-unreached,leader-released,postgres-killed"),
    ("snapshot/sequenced", 21, "leader-frozen,postgres-unheard,kafka-unheard,leader-killed,sessions-killed"),
]
SERVERS = "failover-sync,failover-async,record-too-large"
MACHINE = "failover-sync,disk-full-postgres,disk-full-kafka,network-lost,clock-behind,record-too-large"
RECREATED = "topic-recreated,leader-killed"
LONG_RUNS = [
    pytest.param(mode, seed, faults, marks=pytest.mark.long)
    for mode, seed, faults in [
        ("snapshot/pipelined", 13, "leader-released,kafka-cut,postgres-cut,latency,writer-left-open"),
        ("snapshot/transactional", 15, SERVERS),
        ("mark/barrier", 16, SERVERS),
        ("transaction_id/pipelined", 17, SERVERS),
        ("snapshot/transactional", 18, MACHINE),
        ("mark/barrier", 19, MACHINE),
        ("snapshot/sequenced", 22, RECREATED),
        ("mark/transactional", 23, RECREATED),
        ("snapshot/barrier", 20, "credentials-revoked,failover-sync,leader-killed"),
    ]
]
TOLD_OF = {"failover-async": "failover", "record-too-large": "park", "topic-recreated": "recreate"}
TOLD = {"write", "poll", "assign", "fault", "term", "produce", "acknowledge"}
ALSO_TOLD = {
    "snapshot/transactional": {"transaction", "checkpoint"},
    "mark/barrier": {"mark", "purge"},
    "snapshot/barrier": {"checkpoint"},
    "snapshot/pipelined": {"checkpoint"},
    "transaction_id/pipelined": {"checkpoint"},
    "mark/transactional": {"transaction", "checkpoint", "mark", "purge"},
    "snapshot/sequenced": {"transaction", "checkpoint"},
}


def _histories(mode, seed):
    """A folder that no other test removes, nor this one in another process."""
    return default_state() / "chaos" / f"test-{os.getpid()}-{mode.replace('/', '-')}-{seed}"


def test_no_two_runs_share_a_folder():
    runs = [*RUNS, *(each.values for each in LONG_RUNS)]
    folders = {_histories(mode, seed) for mode, seed, _ in runs}
    assert len(folders) == len(runs)
    assert all(folder.parent == default_state() / "chaos" for folder in folders)


def started(folder):
    """Return what harvesters said as they started that they hand records over by."""
    lines = (json.loads(line) for log in folder.glob("harvester-*.log") for line in log.read_text().splitlines())
    return {line["hand_over"] for line in lines if line.get("event") == "harvester_started"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("mode", "seed", "faults"), [*RUNS, *LONG_RUNS])
def test_every_promise_is_kept(mode, seed, faults):
    if faults == MACHINE:
        require(mounts_lacking(), "mount")
        require(networks_lacking(), "ip")
    folder = _histories(mode, seed)  # a failed run is kept
    command = [sys.executable, "-m", "harvest_lib.cli", "chaos", "--json", "--brokers", "1"]
    command += ["--duration", "35s" if (mode, seed, faults) in RUNS else "100s"]
    impl = "native" if seed % 2 and implementation().library is not None else "python"
    command += ["--impl", impl, "--rate", "200", "--histories", folder]
    command += ["--mode", mode, "--seed", str(seed), "--faults", faults]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HARVEST_DSN")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=580, env=environment, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert (found["lost"], found["unexplained"]) == (0, 0)
    assert found["delivered"] >= found["committed"] > 500
    assert found["faults"] >= 2
    (run,) = found["runs"]
    assert (run["hand_over"], started(Path(run["history"]).parent)) == (impl, {impl})
    if (mode, seed, faults) not in RUNS:
        assert not found["not_injected"]
    reported = Counter()
    for file in Path(found["runs"][0]["history"]).glob("*.jsonl"):
        reported.update(type(event).kind for event in read_history([file], on_bad=pytest.fail))
    injected = {each["fault"] for each in found["runs"][0]["injected"]}
    of_faults = {kind for fault, kind in TOLD_OF.items() if fault in injected}
    assert TOLD | ALSO_TOLD[mode] | of_faults <= set(reported), "somebody has kept silent"
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--duration", "soon"], "--duration"),
        (["--faults", "leader-killed,rain"], "unknown: rain"),
        (["--brokers", "2"], "1 or 3"),
        (["--brokers", "1", "--faults", "two-brokers-killed"], "with 3 brokers only: two-brokers-killed"),
        (["--mode", "mark/snapshot"], "--mode"),
        (["--impl", "rust"], "--impl"),
        (["--mode", "mark/barrier", "--faults", "writer-waited-for"], "not in this mode: writer-waited-for"),
    ],
)
def test_a_run_that_cannot_be_is_a_usage_error(options, said):
    result = CliRunner().invoke(app, ["chaos", *options])
    assert result.exit_code == 2
    assert said in result.output
