"""Signs of life of `harvest run` for a supervisor: the alive file, and systemd's protocol."""

import shutil
import signal
import socket
import subprocess
import sys
import threading

import pytest
from support.waiting import eventually

from harvest_lib import Harvest, HarvestConfig
from harvest_lib.cli.liveness import Liveness
from harvest_lib.leadership import Solo

pytestmark = pytest.mark.gate


def test_systemd_is_told_of_each_state(allowed, reaper, outbox, tmp_path):
    file, log = tmp_path / "alive", tmp_path / "log"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60)
        command = [sys.executable, "-m", "harvest_lib.cli", "run", "-f", reaper, "--alive-file", file]
        file.touch()
        environment = allowed("run", "-f", reaper, NOTIFY_SOCKET=str(tmp_path / "notify"))
        with log.open("w") as stderr:
            harvester = subprocess.Popen(command, env=environment, stderr=stderr)
        try:
            assert systemd.recv(100) == b"READY=1"
            assert "harvester_started" in log.read_text()
            assert systemd.recv(100) == b"WATCHDOG=1"
            assert file.exists()
            harvester.send_signal(signal.SIGTERM)
            said = systemd.recv(100)
            while said == b"WATCHDOG=1":
                said = systemd.recv(100)
            assert said == b"STOPPING=1"
            assert harvester.wait(60) == 0
        finally:
            harvester.kill()
            harvester.wait()
    assert not file.exists()


def test_what_cannot_start_shows_no_sign(harvest, reaper, tmp_path):
    file = tmp_path / "alive"
    file.touch()  # of the process before, in the same volume; the table is not there
    assert harvest("run", "-f", reaper, "--alive-file", str(file)).returncode == 4
    assert not file.exists()


def test_a_sign_that_cannot_be_given_ends_it(harvest, reaper, outbox, tmp_path):
    ended = harvest("run", "-f", reaper, "--alive-file", str(tmp_path / "missing" / "alive"))
    assert ended.returncode == 3
    assert "create its folder" in ended.stderr


def test_a_later_sign_that_cannot_be_given_ends_nothing(tmp_path, monkeypatch):
    """The harvester may lead: a disk that fails for a moment is for the probe to judge."""
    monkeypatch.setattr("harvest_lib.cli.liveness._EVERY_SECONDS", 0)
    folder = tmp_path / "run"
    folder.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with Liveness(folder / "alive") as liveness:
            liveness.show()
            shutil.rmtree(folder)
            liveness.show()
            folder.mkdir()
            liveness.show()
            assert (folder / "alive").exists()
        assert [systemd.recv(100) for _ in range(4)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1", b"STOPPING=1"]


def test_a_thread_that_hangs_is_not_responsive(outbox, dsn, bootstrap_servers, monkeypatch):
    monkeypatch.setattr("harvest_lib.harvester.harvest._UNRESPONSIVE_SECONDS", 0.5)
    config = HarvestConfig(
        data_source=dsn,
        base_kafka_config={"bootstrap.servers": bootstrap_servers},
        leadership="solo",
        delivery="barrier",
    )
    leadership = Solo()
    harvest, hangs, go_on = Harvest(config, leadership=leadership), threading.Event(), threading.Event()
    assert not harvest.is_responsive
    terms = leadership.terms

    def hanging(*arguments, **named):
        if hangs.is_set():
            go_on.wait()
        return terms(*arguments, **named)

    monkeypatch.setattr(harvest._leadership, "terms", hanging)
    with harvest:
        eventually(lambda: harvest.is_leader, "it leads")
        eventually(lambda: harvest.is_responsive, "it goes round")
        hangs.set()
        eventually(lambda: not harvest.is_responsive, "it is seen")
        go_on.set()
        eventually(lambda: harvest.is_responsive, "it goes on")
    assert not harvest.is_responsive
