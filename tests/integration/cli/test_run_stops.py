"""`harvest run` stops in order whenever it is asked to, also before the servers have answered."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.waiting import eventually

pytestmark = pytest.mark.gate


def _catches(pid, number):
    """Return True if a process has a handler for a signal."""
    (caught,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt")]
    return bool(int(caught.split()[1], 16) & 1 << (number - 1))


@contextmanager
def running(environment, *arguments, **variables):
    """A `harvest run`, once it stops by a signal."""
    command = [sys.executable, "-m", "harvest_lib.cli", "run", *arguments]
    run = subprocess.Popen(
        command, env={**environment, **variables}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        eventually(lambda: _catches(run.pid, signal.SIGTERM))
        yield run
    finally:
        run.kill()
        run.communicate()


def stopped(run, number=signal.SIGTERM):
    """Ask it to stop, and return its exit code and what it says."""
    run.send_signal(number)
    said = run.communicate(timeout=60)[0]
    return run.returncode, said


@pytest.mark.parametrize("arguments", [(), ("--drain",)])
def test_run_stops_in_order_while_it_waits_for_kafka(native, environment, servers, arguments):
    """Kafka takes the connection and does not answer: a check of everything takes as long again."""
    native.execute("ALTER SEQUENCE outbox_id_seq CACHE 1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = {"HARVEST_BOOTSTRAP_SERVERS": f"127.0.0.1:{silent.getsockname()[1]}"}
        with running(environment, *arguments, **{**servers, **address}) as run:
            silent.settimeout(60)
            taken = silent.accept()  # noqa: F841 - kept open; Postgres is asked first
            native.execute("ALTER SEQUENCE outbox_id_seq CACHE 10")
            code, said = stopped(run)
    assert code == 0
    assert "does not answer" not in said
    assert "hands out ids" not in said


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("ended", [0, 1], ids=["start", "check"])
def test_run_stops_in_order_while_it_waits_for_postgres(environment, ended, number):
    """A first connection that ends is a refused start, after which it checks everything by another."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        variables = {
            "HARVEST_DSN": f"host=127.0.0.1 port={port} dbname=shop user=bob sslmode=disable gssencmode=disable",
            "HARVEST_BOOTSTRAP_SERVERS": "127.0.0.1:2",
            "HARVEST_LEADER_GROUP_ID": "group",
        }
        with running(environment, **variables) as run:
            silent.settimeout(60)
            for _ in range(ended):
                silent.accept()[0].close()
            with silent.accept()[0]:
                code, said = stopped(run, number)
    assert code == 0
    assert "does not answer" not in said
    assert "Traceback" not in said


def test_run_stops_in_order_before_it_has_begun(environment, tmp_path):
    """A configuration that nobody has written yet: it is being read."""
    os.mkfifo(tmp_path / "harvest.yaml")
    with running(environment, "-f", str(tmp_path / "harvest.yaml")) as run:
        run.send_signal(signal.SIGTERM)
        (tmp_path / "harvest.yaml").write_text("harvest: {leaderGroupID: group}\n")
        assert "harvester_started" not in run.communicate(timeout=60)[0]
        assert run.returncode == 0
