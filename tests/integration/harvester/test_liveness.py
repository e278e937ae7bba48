"""Signs of life for a supervisor: the alive file of `harvest run`, and systemd's protocol of each service."""

import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
import yaml
from support.waiting import eventually

from harvest_lib import Harvest, HarvestConfig
from harvest_lib.leadership import Solo
from harvest_lib.telemetry.health import Verdict
from harvest_lib.telemetry.liveness import Liveness, supervised

pytestmark = pytest.mark.gate


@pytest.fixture
def systemd(tmp_path):
    """The socket of `sd_notify`, at `notify` in the folder."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(tmp_path / "notify"))
        bound.settimeout(60)
        yield bound


@contextmanager
def notifying(systemd, command, environment, log):
    """Run a service from `READY=1`, and a `WATCHDOG=1` after that, to the `STOPPING=1` of a stop in order."""
    with log.open("w") as stderr:
        service = subprocess.Popen(command, env=environment, stdout=stderr, stderr=stderr)
    try:
        assert systemd.recv(100) == b"READY=1"
        assert systemd.recv(100) == b"WATCHDOG=1"
        yield
        service.send_signal(signal.SIGTERM)
        said = systemd.recv(100)
        while said == b"WATCHDOG=1":
            said = systemd.recv(100)
        assert said == b"STOPPING=1"
        assert service.wait(60) == 0
    finally:
        service.kill()
        service.wait()


def test_systemd_is_notified_of_each_state_of_a_harvester(systemd, allowed, reaper, outbox, tmp_path):
    file, log = tmp_path / "alive", tmp_path / "log"
    command = [sys.executable, "-m", "harvest_lib.cli", "run", "-f", reaper, "--alive-file", file]
    file.touch()
    environment = allowed("run", "-f", reaper, NOTIFY_SOCKET=str(tmp_path / "notify"))
    with notifying(systemd, command, environment, log):
        assert "harvester_started" in log.read_text()
        assert file.exists()
    assert not file.exists()


def test_systemd_is_notified_of_each_state_of_a_pipeline(systemd, environment, bootstrap_servers, make_topic, tmp_path):
    kafka = {"bootstrap.servers": bootstrap_servers}
    declared = {
        "folder": str(tmp_path / "copy"),
        "reader": {"adaptor": "kafka", "kafka": kafka, "topics": [make_topic()], "content": "data"},
        "writers": {"lake": {"adaptor": "file", "path": str(tmp_path / "lake.jsonl")}},
    }
    (tmp_path / "copy.yaml").write_text(yaml.safe_dump(declared))
    command = [sys.executable, "-m", "harvest_lib.cli", "pipeline", "run", "-f", tmp_path / "copy.yaml"]
    log = tmp_path / "log"
    with notifying(systemd, command, {**environment, "NOTIFY_SOCKET": str(tmp_path / "notify")}, log):
        assert "pipeline_resuming" in log.read_text()


def test_systemd_is_notified_of_each_state_of_a_consumer(
    systemd, environment, dsn, bootstrap_servers, make_topic, tmp_path
):
    command = [sys.executable, "-m", "harvest_lib.examples.flight_counts", "--topic", make_topic()]
    given = {
        "HARVEST_DSN": dsn,
        "HARVEST_BOOTSTRAP_SERVERS": bootstrap_servers,
        "NOTIFY_SOCKET": str(tmp_path / "notify"),
    }
    with notifying(systemd, [*command, "--counts", make_topic()], {**environment, **given}, tmp_path / "log"):
        pass


def test_systemd_hears_nothing_while_the_work_does_not_turn(systemd, tmp_path, monkeypatch):
    monkeypatch.setattr("harvest_lib.telemetry.liveness._EVERY_SECONDS", 0)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    verdict, looks = [False], []

    def live():
        looks.append(verdict[0])
        return Verdict(is_healthy=looks[-1], reason="")

    with supervised(live):
        eventually(lambda: len(looks) >= 2, "it is checked")
        verdict[0] = True
        assert systemd.recv(100) == b"READY=1"
        assert systemd.recv(100) == b"WATCHDOG=1"
        verdict[0] = False
        eventually(lambda: looks[-2:] == [False, False], "it is checked again")
    last = list(iter(lambda: systemd.recv(100), b"STOPPING=1"))
    assert set(last) <= {b"WATCHDOG=1"}
    assert 2 + len(last) == sum(looks) + 1, "and once as it ends in order"


def test_work_that_ends_in_order_before_anybody_saw_it_was_ready(systemd, tmp_path, monkeypatch):
    """Otherwise systemd takes a short run for a failed start, and starts it again, for ever."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with supervised(lambda: Verdict(is_healthy=False, reason="it is done")):
        pass
    assert [systemd.recv(100) for _ in range(2)] == [b"READY=1", b"STOPPING=1"]


def test_work_that_fails_before_anybody_saw_it_was_never_ready(systemd, tmp_path, monkeypatch):
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with pytest.raises(RuntimeError), supervised(lambda: Verdict(is_healthy=False, reason="it fails")):
        raise RuntimeError
    assert systemd.recv(100) == b"STOPPING=1"


def test_a_supervisor_that_reads_nothing_is_not_waited_for(systemd, tmp_path, monkeypatch):
    monkeypatch.setattr("harvest_lib.telemetry.liveness._EVERY_SECONDS", 0)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with Liveness(None) as liveness:
        for _ in range(1_000):  # more than a socket holds
            liveness.show()


def test_a_process_without_a_supervisor_has_no_thread_for_it(monkeypatch):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    with supervised(lambda: pytest.fail("nobody asks")):
        assert "harvest-liveness" not in {each.name for each in threading.enumerate()}


def test_what_cannot_start_shows_no_sign(harvest, reaper, tmp_path):
    file = tmp_path / "alive"
    file.touch()  # of the process before, in the same volume; the table is not there
    assert harvest("run", "-f", reaper, "--alive-file", str(file)).returncode == 4
    assert not file.exists()


def test_a_sign_that_cannot_be_given_ends_it(harvest, reaper, outbox, tmp_path):
    ended = harvest("run", "-f", reaper, "--alive-file", str(tmp_path / "missing" / "alive"))
    assert ended.returncode == 3
    assert "create its folder" in ended.stderr


def test_a_later_sign_that_cannot_be_given_ends_nothing(systemd, tmp_path, monkeypatch):
    """The harvester may lead: a disk that fails for a moment is for the probe to judge."""
    monkeypatch.setattr("harvest_lib.telemetry.liveness._EVERY_SECONDS", 0)
    folder = tmp_path / "run"
    folder.mkdir()
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
