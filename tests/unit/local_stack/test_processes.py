"""The small parts below the local stack: children that end with us, ports, descriptions, the state folder."""

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from support.waiting import eventually

from harvest_lib.errors import StackError
from harvest_lib.local_stack import child, ports
from harvest_lib.local_stack.description import Description, process_started, running
from harvest_lib.local_stack.ports import keep_ports
from harvest_lib.local_stack.process import Identity, ServerProcess, through_child
from harvest_lib.local_stack.state import default_state, locked, write_private

pytestmark = pytest.mark.gate

NOBODY = 65534
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends children with their parent on Linux only")
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


@LINUX
@pytest.mark.parametrize("user", [None, pytest.param(Identity(NOBODY, NOBODY), marks=ROOT)])
def test_a_child_ends_with_its_parent(user, tmp_path):
    # The command lies in a folder closed to others: with a user, the child must pass it and still end with us.
    (tmp_path / "private").mkdir(mode=0o700)
    sleep = tmp_path / "private" / "sleep.sh"
    sleep.write_text("#!/bin/sh\nexec sleep 600\n")
    sleep.chmod(0o755)
    parent = (
        "import os, subprocess, sys; from pathlib import Path\n"
        "from harvest_lib.local_stack.process import Identity, through_child\n"
        f"user = {f'Identity({NOBODY}, {NOBODY})' if user else None}\n"
        f"child = subprocess.Popen(through_child([Path({str(sleep)!r})], user=user))\n"
        "print(child.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        pid = int(process.stdout.readline())
        eventually(lambda: "sleep" in Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0], "it became sleep")
        if user:
            assert Path(f"/proc/{pid}").stat().st_uid == NOBODY
        process.kill()
    eventually(lambda: process_started(pid) is None, "the child ended")


@LINUX
def test_a_child_ignores_no_signal_that_whoever_started_us_ignores():
    """A shell without job control ignores SIGINT for what it starts by `&`; Dagster then ignores SIGTERM as well."""
    script = (
        "import signal, subprocess\n"
        "from pathlib import Path\n"
        "from harvest_lib.local_stack.process import through_child\n"
        "for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):\n"
        "    signal.signal(number, signal.SIG_IGN)\n"
        "command = through_child([Path('/bin/cat'), '/proc/self/status'])\n"
        "print(subprocess.run(command, capture_output=True, text=True, check=True).stdout)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    (ignored,) = [int(line.split()[1], 16) for line in done.stdout.splitlines() if line.startswith("SigIgn:")]
    ours = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)  # the machine may have others ignored for us
    assert not ignored & sum(1 << (number - 1) for number in ours)


@LINUX
def test_a_child_whose_parent_is_gone_does_not_start():
    command = [sys.executable, "-I", "-S", child.__file__, "--parent", "1", "--", "/bin/echo", "started"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (child.FAILED, "")
    assert "the parent is gone" in done.stderr


def test_a_child_that_cannot_start_says_so(tmp_path):
    done = subprocess.run(through_child([tmp_path / "missing"]), capture_output=True, text=True, check=False)
    assert done.returncode == child.FAILED
    assert "cannot start" in done.stderr


def test_a_server_that_ends_while_starting_is_reported_with_its_last_words(tmp_path):
    server = ServerProcess("some", log=tmp_path / "some.log", stop_signals={signal.SIGTERM: 1})
    server.spawn([Path("/bin/sh"), "-c", "echo its last words; exit 3"], environment=os.environ)
    with pytest.raises(StackError, match=r"(?s)exit code 3.*its last words"):
        server.await_ready(lambda: False, seconds=60)


def test_a_log_is_for_the_owner_alone_also_one_that_was_open_before(tmp_path):
    log = tmp_path / "some.log"
    log.write_text("before\n")
    log.chmod(0o644)
    server = ServerProcess("some", log=log, stop_signals={signal.SIGTERM: 1})
    server.spawn([Path("/bin/sh"), "-c", "echo said; umask"], environment=os.environ)
    eventually(lambda: server.pid is None, "it ended")
    assert log.stat().st_mode & 0o777 == 0o600
    assert log.read_text() == "before\nsaid\n0077\n"


def test_a_server_that_ignores_signals_is_ended_with_its_family(tmp_path):
    server = ServerProcess("some", log=tmp_path / "some.log", stop_signals={signal.SIGTERM: 0.1})
    script = "trap '' TERM; sleep 600 & echo $!; wait; wait"
    server.spawn([Path("/bin/sh"), "-c", script], environment=os.environ)
    server.await_ready(lambda: server.log.read_text().strip() != "", seconds=60)
    grandchild = int(server.log.read_text())
    with pytest.raises(StackError, match="not ready within 0 s"):
        server.await_ready(lambda: False, seconds=0)
    server.stop()
    server.stop()
    assert server.pid is None
    assert process_started(grandchild) is None


def test_ports_are_kept_while_free(tmp_path):
    file = tmp_path / "ports.json"
    first = keep_ports(file, ["one", "two"])
    assert len(set(first.values())) == 2
    assert keep_ports(file, ["one", "two"]) == first
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first["one"]))
        taken.listen()
        second = keep_ports(file, ["one", "two"])
    assert second["one"] != first["one"]
    assert second["two"] == first["two"]


def test_no_two_names_get_the_same_port_when_the_dice_return_a_number_twice(tmp_path, monkeypatch):
    """A server that binds beside another, and not in its place, would answer for it."""
    one, another = keep_ports(tmp_path / "free.json", ["one", "another"]).values()
    monkeypatch.setattr(ports, "_chosen", set())  # another process chose them
    diced = iter([one - 10_000, one - 10_000, another - 10_000])
    monkeypatch.setattr(ports.secrets, "randbelow", lambda _end: next(diced))
    assert keep_ports(tmp_path / "ports.json", ["first", "second"]) == {"first": one, "second": another}


def test_ports_are_none_that_a_client_could_get_before_the_server_is_up(tmp_path):
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="utf-8").split()[0])
    if first <= 10_000:
        pytest.skip("this system gives clients all ports there are")
    names = [str(number) for number in range(50)]
    assert max(keep_ports(tmp_path / "ports.json", names).values()) < first


def test_a_description_counts_only_while_its_process_lives(tmp_path):
    started = process_started(os.getpid())
    assert started
    saved = Description(dsn="password=canary", bootstrap_servers="", servers=(), pid=os.getpid(), started=started)
    saved.save(tmp_path)
    assert running(tmp_path) == saved
    assert (tmp_path / "stack.json").stat().st_mode & 0o777 == 0o600
    Description(dsn="", bootstrap_servers="", servers=(), pid=os.getpid(), started=started + 1).save(tmp_path)
    assert running(tmp_path) is None  # the id is another process's by now
    assert running(tmp_path / "nowhere") is None


def test_a_private_file_is_whole_and_private(tmp_path):
    write_private(tmp_path / "file", "content")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_lock_is_held_once(tmp_path):
    with locked(tmp_path / "lock", wait=False) as first, locked(tmp_path / "lock", wait=False) as second:
        assert (first, second) == (True, False)
    with locked(tmp_path / "lock", wait=False) as again:
        assert again


def test_the_state_folder_is_at_the_projects_root(tmp_path, monkeypatch):
    monkeypatch.delenv("HARVEST_HOME", raising=False)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "deep" / "er")
    assert default_state() == tmp_path / ".harvest"
    monkeypatch.setenv("HARVEST_HOME", str(tmp_path / "elsewhere"))
    assert default_state() == tmp_path / "elsewhere"


@LINUX
def test_a_process_stands_still_once_it_is_suspended(tmp_path):
    """One that is starting another is stopped only after that has its files, here a pipe that opens late."""
    pipe, starting = tmp_path / "pipe", tmp_path / "starting"
    os.mkfifo(pipe)
    code = (
        "import os, pathlib, time\n"
        f"pathlib.Path({str(starting)!r}).touch()\n"
        f"os.posix_spawn('/bin/true', ['true'], {{}}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, {str(pipe)!r}, 0, 0)])\n"
        "time.sleep(600)"
    )
    server = ServerProcess("server", log=tmp_path / "log", stop_signals={signal.SIGTERM: 5.0})
    server.spawn([sys.executable, "-c", code], environment=os.environ)
    try:
        eventually(starting.exists, "it starts another")
        process = psutil.Process(server.pid)
        eventually(lambda: process.status() == psutil.STATUS_DISK_SLEEP, "it waits for the other")
        opening = threading.Timer(0.3, lambda: os.close(os.open(pipe, os.O_RDWR)))  # waits for nobody
        opening.start()
        server.suspend()
        assert process.status() == psutil.STATUS_STOPPED
    finally:
        server.kill()
