"""Settings that start the platform's services, and that nothing of them stays: without a server."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import yaml
from psycopg.conninfo import make_conninfo
from support.waiting import eventually

from harvest_lib.airflow.dagster.endpoint import from_connection
from harvest_lib.errors import StackError
from harvest_lib.local_stack import supervisor
from harvest_lib.local_stack.description import Description, process_started
from harvest_lib.local_stack.passwords import kept_secret
from harvest_lib.local_stack.state import default_state
from infra.platform import sessions
from infra.platform.airflow import Airflow, kafka_connections
from infra.platform.dagster import Dagster
from infra.platform.databases import sqlalchemy_url
from infra.platform.platform import DAGS, LOGIN, Platform
from infra.platform.service import Service, ServicePlan, ask
from infra.platform.up import up

pytestmark = pytest.mark.gate

DSN = make_conninfo("", host="127.0.0.1", port=5433, user="u", password="ca/na@ry", dbname="d", sslmode="disable")
SERVERS = {"postgres": "18", "kafka": "4.3.1", "brokers": 1, "fresh": False}
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="sessions are looked up as Linux has them")


def dagster(folder):
    made = Dagster(folder, definitions="json")
    made.prepare()
    return made


def airflow(folder):
    made = Airflow(folder)
    made.prepare()
    return made


def test_dagster_gets_its_own_database_and_the_password_only_by_environment(tmp_path):
    plans = dagster(tmp_path).plans(DSN, {"HARVEST_DSN": "x"})
    assert [plan.name for plan in plans] == ["dagster-code", "dagster-webserver", "dagster-daemon"]
    instance = (tmp_path / "dagster" / "dagster.yaml").read_text()
    assert "ca/na@ry" not in instance
    content = yaml.safe_load(instance)
    assert content["telemetry"] == content["nux"] == {"enabled": False}
    assert content["storage"]["postgres"]["postgres_db"]["params"] == {"sslmode": "disable"}
    for plan in plans:
        assert plan.environment["DAGSTER_POSTGRES_PASSWORD"] == "ca/na@ry"
        assert plan.environment["HARVEST_DSN"] == "x"
        assert "ca/na@ry" not in repr(plan)
        assert "ca/na@ry" not in " ".join(plan.command)
    code, webserver, _ = plans
    assert code.command[code.command.index("json") - 1] == "-m"
    server = yaml.safe_load((tmp_path / "dagster" / "workspace.yaml").read_text())["load_from"][0]["grpc_server"]
    assert (server["port"], webserver.url) == (code.port, f"http://127.0.0.1:{webserver.port}")


def test_what_dagster_keeps_is_understood_by_dagster(tmp_path):
    dagster(tmp_path).plans(DSN, {})
    check = (
        "from dagster._core.instance.config import dagster_instance_config as read\n"
        f"config = read({str(tmp_path / 'dagster')!r}); print(sorted(config[0]))"
    )
    environment = {**os.environ, "DAGSTER_POSTGRES_PASSWORD": "p"}
    done = subprocess.run(
        [sys.executable, "-c", check], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert "storage" in done.stdout, done.stderr


def test_airflow_is_told_everything_by_environment_and_keeps_its_secrets(tmp_path):
    made = airflow(tmp_path)
    variables = made.environment(DSN, {"HARVEST_DSN": "x"})
    assert variables["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].startswith("postgresql+psycopg://u:ca%2Fna%40ry@127.0.0.1")
    assert variables["AIRFLOW__CORE__LOAD_EXAMPLES"] == "False"
    assert Path(variables["AIRFLOW__CORE__DAGS_FOLDER"]).name == "airflow_dags"
    assert airflow(tmp_path).environment(DSN, {"HARVEST_DSN": "x"}) == variables
    password = json.loads(made.password_file.read_text())["admin"]
    assert len(password) > 20
    assert all(file.stat().st_mode & 0o077 == 0 for file in (tmp_path / "airflow").iterdir() if file.is_file())
    plans = made.plans(variables)
    assert [plan.name for plan in plans] == [
        f"airflow-{name}" for name in ("api-server", "dag-processor", "triggerer", "scheduler")
    ]
    shown = repr(plans) + " ".join(word for plan in plans for word in plan.command)
    secret = [variables["AIRFLOW__API_AUTH__JWT_SECRET"], variables["AIRFLOW__CORE__FERNET_KEY"], password]
    assert not [each for each in secret if each in shown]


def test_the_options_we_set_are_airflows(tmp_path):
    known = yaml.safe_load((Path(find_spec("airflow").origin).parent / "config_templates" / "config.yml").read_text())
    made = airflow(tmp_path)
    for variable in made.environment(DSN, {}):
        if variable.startswith("AIRFLOW__"):
            _, section, option = variable.lower().split("__")
            assert option in known[section]["options"], variable


def test_the_kafka_connections_lose_no_message_and_have_a_group_each():
    made = {name: json.loads(value)["extra"] for name, value in kafka_connections("k:1").items()}
    assert {extra["auto.offset.reset"] for extra in made.values()} == {"earliest"}
    assert {extra["enable.auto.commit"] for extra in made.values()} == {"false"}
    assert len({extra["group.id"] for extra in made.values()}) == 2


def test_a_module_that_is_not_there_is_named(tmp_path):
    with pytest.raises(StackError, match=r"no module nowhere_at\.all") as raised:
        Platform(tmp_path, definitions="nowhere_at.all")
    assert "--definitions" in raised.value.next_step
    assert list(tmp_path.iterdir()) == []


def test_airflow_runs_a_folder_of_ones_own(tmp_path, monkeypatch):
    folder = tmp_path / "mine" / "shop"
    folder.mkdir(parents=True)
    (folder / "first.py").write_text("from airflow.sdk import dag\n")
    monkeypatch.chdir(tmp_path)
    made = Airflow(tmp_path / "state", dags=Path("mine"))
    monkeypatch.chdir("/")
    made.prepare()
    assert made.environment(DSN, {})["AIRFLOW__CORE__DAGS_FOLDER"] == str(tmp_path / "mine")


@pytest.mark.parametrize("given", ["missing", "file.py", "empty", "other"])
def test_a_folder_of_dags_has_to_be_one(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("empty", "other"):
        (tmp_path / folder).mkdir()
    (tmp_path / "file.py").write_text("from airflow.sdk import dag\n")
    (tmp_path / "other" / "notes.py").write_text("import airflow\n")
    with pytest.raises(StackError, match=str(tmp_path / given)) as raised:
        Platform(tmp_path / "state", dags=Path(given))
    assert "--dags" in raised.value.next_step
    assert not (tmp_path / "state").exists()


def test_dags_that_run_already_are_not_taken_for_others(tmp_path):
    mine = {"dsn": "", "bootstrap_servers": "", "servers": (), "pid": os.getpid()}
    mine["started"] = process_started(os.getpid())

    def up_with(**notes):
        Description(**mine, notes=notes).save(tmp_path)

    def asked(dags, *, observe=False):
        return up(tmp_path, **SERVERS, definitions="json", dags=dags, observe=observe)

    def refused(dags, *, observe=False):
        with pytest.raises(StackError) as raised:
            asked(dags, observe=observe)
        assert "harvest down" in raised.value.next_step
        return raised.value.cause

    for dags in ("/mine", ""):
        up_with(**{LOGIN: "admin"} | ({DAGS: dags} if dags else {}))
        found, already = asked(dags)
        assert (already, found.notes.get(DAGS, "")) == (True, dags)
        assert supervisor.up(tmp_path, SERVERS)[1], "Postgres and Kafka are all that was asked for"
    assert "our DAGs" in refused("/mine")
    assert "without Prometheus" in refused("", observe=True)
    up_with(**{LOGIN: "admin", DAGS: "/yours"})
    assert "/yours" in refused("/mine")
    assert "/yours" in refused("")
    up_with()
    assert "without Dagster and Airflow" in refused("")


def test_the_services_keep_connections_and_variables_of_ones_own(tmp_path, monkeypatch):
    made = Platform(tmp_path, definitions="json", parts=default_state())
    made._dagster.prepare()
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", "dagster://h")
    monkeypatch.setenv("AIRFLOW_VAR_SHOP", "v")
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", "/elsewhere")
    variables = made._environment(DSN, "k:1")
    assert (variables["AIRFLOW_CONN_SHOP"], variables["AIRFLOW_VAR_SHOP"]) == ("dagster://h", "v")
    assert "AIRFLOW__CORE__DAGS_FOLDER" not in variables
    fields = SimpleNamespace(login=None, password=None, extra=None, **dagster_fields(variables))
    assert from_connection("dagster_default", fields).url == variables["DAGSTER_URL"]


def dagster_fields(variables):
    reported = json.loads(variables["AIRFLOW_CONN_DAGSTER_DEFAULT"])
    assert reported.pop("conn_type") == "dagster"
    return reported


def test_a_secret_is_made_once(tmp_path):
    assert kept_secret(tmp_path / "one") == kept_secret(tmp_path / "one") != kept_secret(tmp_path / "two")
    assert (tmp_path / "one").stat().st_mode & 0o777 == 0o600


def test_a_connection_string_becomes_sqlalchemys():
    url = sqlalchemy_url("host=h port=1 user=u password='a/b' dbname=d sslmode=disable", "postgresql+psycopg")
    assert url == "postgresql+psycopg://u:a%2Fb@h:1/d?sslmode=disable"


def service(folder, command, serves=lambda _: True):
    plan = ServicePlan(name="some", version="1", command=tuple(command), environment=os.environ, serves=serves)
    return Service(plan, logs=folder)


def spawned(folder, script):
    """Start a service that runs a script, which prints the id of a process that it starts; return both."""
    made = service(folder, [sys.executable, "-c", script])
    made.spawn()
    log = folder / "some.log"
    return made, int(eventually(lambda: log.exists() and log.read_text().strip()))


@LINUX
def test_a_service_ends_with_all_it_started_whatever_group_it_is_in(tmp_path):
    # A task of Airflow has a process group of its own, and its parent may be gone before it.
    script = (
        "import os, subprocess, sys, time\n"
        "one = subprocess.Popen(['sleep', '600'], process_group=0)\n"
        "print(one.pid, flush=True); time.sleep(600)"
    )
    made, child = spawned(tmp_path, script)
    os.kill(made.pid, signal.SIGKILL)
    eventually(lambda: made.pid is None)
    assert psutil.pid_exists(child)
    made.stop()
    eventually(lambda: not psutil.pid_exists(child))
    made.stop()


@LINUX
def test_a_command_in_a_session_of_its_own_ends_with_its_service(tmp_path):
    script = (
        "import subprocess, time\n"
        "print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid, flush=True); time.sleep(600)"
    )
    made, child = spawned(tmp_path, script)
    made.begin_stop()
    eventually(lambda: made.pid is None)
    made.stop()
    assert sessions.members([child]) == []


@LINUX
def test_what_ignores_the_end_is_ended_by_force(tmp_path):
    with subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 600"], start_new_session=True) as process:
        eventually(lambda: len(sessions.members([process.pid])) == 2)
        sessions.end([process.pid], seconds=0.1)
        assert sessions.members([process.pid]) == []


@LINUX
def test_the_guard_ends_what_it_was_told_of_once_nobody_tells_it_more():
    started = [subprocess.Popen(["sleep", "600"], start_new_session=True) for _ in range(2)]
    ended, kept = started
    guard = subprocess.Popen([sys.executable, "-m", "infra.platform.guard"], stdin=subprocess.PIPE, text=True)
    guard.stdin.write(f"{ended.pid}\n{kept.pid}\n-{kept.pid}\n")
    guard.stdin.flush()

    assert ended.poll() is None
    guard.communicate(timeout=60)
    assert ended.wait(60) == -signal.SIGTERM
    assert kept.poll() is None
    kept.kill()
    kept.wait()


def test_a_service_that_ends_names_its_log(tmp_path):
    made = service(tmp_path, [sys.executable, "-c", "raise SystemExit('no port')"], serves=lambda _: False)
    made.spawn()
    with pytest.raises(StackError, match="no port") as raised:
        made.await_ready()
    assert str(tmp_path / "some.log") in raised.value.next_step
    made.stop()


def test_a_service_is_asked_about_the_time_since_its_start(tmp_path):
    asked = []
    made = service(tmp_path, ["sleep", "600"], serves=lambda since: asked.append(since) or True)
    before = time.time()
    made.spawn()
    made.await_ready()
    made.stop()
    assert before <= asked[0] <= time.time()


def test_an_address_where_nothing_answers_says_nothing():
    assert ask("http://127.0.0.1:1/server_info") is None
