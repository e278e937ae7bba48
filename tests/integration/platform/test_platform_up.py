"""`harvest platform` for real: each service is asked, a DAG run starts a Dagster run, and nothing of it stays."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from psycopg.conninfo import conninfo_to_dict
from support.platform_api import AirflowApi
from support.waiting import eventually

from harvest_lib.local_stack.description import running
from harvest_lib.local_stack.jars import kafka_jars, resolve
from infra.platform import sessions
from infra.platform.service import ask

pytestmark = [pytest.mark.full, pytest.mark.long, pytest.mark.timeout(900)]

HARVEST = Path(sys.executable).parent / "harvest"
SERVICES = {
    *("dagster-code", "dagster-webserver", "dagster-daemon"),
    *("airflow-api-server", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer"),
}
DEFINITIONS = """
import os, time
from pathlib import Path
import dagster as dg

@dg.op(config_schema={"file": str})
def write(context):
    Path(context.op_config["file"]).write_text(os.environ["HARVEST_BOOTSTRAP_SERVERS"])

@dg.op
def stay(context):
    context.log.info("here to stay")
    time.sleep(600)

@dg.job(executor_def=dg.in_process_executor)
def small_job():
    write()

@dg.job(executor_def=dg.in_process_executor)
def long_job():
    stay()

defs = dg.Definitions(jobs=[small_job, long_job])
"""
STARTED = '{ runsOrError(filter: {pipelineName: "long_job"}) { ... on Runs { results { status } } } }'
LAUNCH = """mutation { launchRun(executionParams: {selector: {repositoryName: "__repository__",
 repositoryLocationName: "harvest", jobName: "long_job"}}) { __typename } }"""


@pytest.fixture
def home(tmp_path, parts, monkeypatch):
    """A state folder that shares the jars, and a module of definitions; nothing is left running in it."""
    resolve(kafka_jars("4.3.1"), parts)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "small_definitions.py").write_text(DEFINITIONS)
    monkeypatch.setenv("HARVEST_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "code"), str(Path(__file__).parents[3])]))
    monkeypatch.delenv("HARVEST_DSN", raising=False)
    monkeypatch.delenv("HARVEST_BOOTSTRAP_SERVERS", raising=False)
    yield tmp_path
    if found := running(tmp_path):
        os.kill(found.pid, signal.SIGKILL)


def harvest(*arguments):
    return subprocess.run([HARVEST, *arguments], capture_output=True, text=True, timeout=600, check=False)


def everything(found):
    """Return the ids of all that belongs to a stack: its supervisor, servers, services and what those started."""
    family = psutil.Process(found.pid).children(recursive=True)
    services = [server.pid for server in found.servers if server.name in SERVICES]
    return {found.pid, *(process.pid for process in family), *sessions.members(services)}


def alive(pids):
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


def test_everything_starts_serves_works_together_and_ends(home):
    up = harvest("platform", "--definitions", "small_definitions")
    assert up.returncode == 0, up.stderr
    found = running(home)
    assert {server.name for server in found.servers} == {"postgres", "kafka-1", *SERVICES}
    url = {server.name: server.url for server in found.servers}
    assert ask(f"{url['dagster-webserver']}/server_info")["dagster_version"]
    health = ask(f"{url['airflow-api-server']}/api/v2/monitor/health")
    assert {part["status"] for part in health.values()} == {"healthy"}

    password = json.loads((home / "airflow" / "passwords.json").read_text())["admin"]
    superuser = str(conninfo_to_dict(found.dsn)["password"])
    shown = up.stdout + harvest("ps").stdout
    assert url["dagster-webserver"] in shown
    assert str(home / "airflow" / "passwords.json") in shown
    assert not [secret for secret in (password, superuser) if secret in shown]
    assert (home / "airflow" / "passwords.json").stat().st_mode & 0o077 == 0

    airflow = AirflowApi(url["airflow-api-server"], password)
    eventually(lambda: "harvest_run_dagster_job" in airflow.dags(), "the DAGs are there", seconds=120)
    written = home / "written"
    conf = {"job": "small_job", "run_config": {"ops": {"write": {"config": {"file": str(written)}}}}}
    run = airflow.start("harvest_run_dagster_job", conf)
    eventually(lambda: airflow.state("harvest_run_dagster_job", run) == "success", "the DAG run succeeds", seconds=300)
    assert written.read_text() == found.bootstrap_servers

    # A run goes on without the webserver, which comes back.
    assert ask(f"{url['dagster-webserver']}/graphql", {"query": LAUNCH})["data"]["launchRun"]["__typename"]

    def status():
        answer = ask(f"{url['dagster-webserver']}/graphql", {"query": STARTED})
        return answer and [run["status"] for run in answer["data"]["runsOrError"]["results"]]

    eventually(lambda: status() == ["STARTED"], "the long run goes on", seconds=90)
    before = next(server.pid for server in found.servers if server.name == "dagster-webserver")
    os.kill(before, signal.SIGKILL)
    eventually(lambda: before not in {server.pid for server in running(home).servers}, "it is started again")
    eventually(lambda: status() == ["STARTED"], "it answers, and the run still goes on", seconds=90)

    family = everything(running(home))
    assert len(family) > 12
    down = harvest("down")
    assert (down.returncode, down.stdout.strip()) == (0, "down")
    assert alive(family) == []


def test_nothing_outlives_a_supervisor_that_is_killed_and_what_was_kept_is_there_again(home):
    assert harvest("platform", "--definitions", "small_definitions").returncode == 0
    found = running(home)
    family = everything(found)
    os.kill(found.pid, signal.SIGKILL)
    eventually(lambda: not alive(family), "everything ends with the supervisor")

    again = harvest("platform", "--definitions", "small_definitions")
    assert again.returncode == 0, again.stderr
    second = running(home)
    assert {s.name: s.port for s in second.servers} == {s.name: s.port for s in found.servers}
    family = everything(second)
    assert harvest("down").returncode == 0
    assert alive(family) == []
