"""`DagsterJobOperator` in an Airflow of services: API server, DAG processor, scheduler, and a triggerer that is killed.

A server stands in for Dagster. The tests stand in order: each begins with what the ones before left.
"""

import json
import os
import signal
import uuid
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest
from support.dagster_stub import dagster_stub
from support.platform_api import AirflowApi
from support.waiting import eventually

from infra.platform.airflow import Airflow
from infra.platform.databases import own_database
from infra.platform.service import Service

pytestmark = [pytest.mark.full, pytest.mark.long, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]
NAME = "Dagster run"
DAGS = """
from datetime import timedelta
from airflow.sdk import dag
from harvest_lib.airflow.operators.dagster import DagsterJobOperator

@dag(dag_id="services", is_paused_upon_creation=False)
def services():
    soon = timedelta(seconds=0.2)
    DagsterJobOperator(task_id="one", job_name="flights_job", poll=soon)
    DagsterJobOperator(task_id="worker", job_name="flights_job", poll=soon, deferrable=False)
    DagsterJobOperator.partial(task_id="each", job_name="flights_job", poll=soon).expand(
        run_config=[{"ops": {"number": number}} for number in range(2)])

services()
"""


@pytest.fixture(scope="module")
def dagster():
    with dagster_stub() as stub:
        yield stub


@pytest.fixture(scope="module")
def airflow(stack, dagster, tmp_path_factory):
    """Yield the API of an Airflow, the id of a run of the DAG, and a function that kills the triggerer and starts it
    again."""
    home = tmp_path_factory.mktemp("airflow")
    name = f"airflow_{uuid.uuid4().hex[:8]}"
    metadata = own_database(stack.dsn, name, password_file=home / "password")
    (home / "dags").mkdir()
    (home / "dags" / "own.py").write_text(DAGS)
    made = Airflow(home, dags=home / "dags")
    made.prepare()
    variables = made.environment(metadata, {**os.environ, "PYTHONPATH": str(ROOT), "DAGSTER_URL": dagster.url})
    made.migrate(variables)
    services = {plan.name: Service(plan, logs=home / "logs") for plan in made.plans(variables)}

    def kill_triggerer():
        triggerer = services["airflow-triggerer"]
        os.killpg(triggerer.pid, signal.SIGKILL)
        triggerer.stop()
        triggerer.spawn()
        triggerer.await_ready()

    try:
        for service in services.values():
            service.spawn()
            service.await_ready()
        api = AirflowApi(made.url, json.loads(made.password_file.read_text())["admin"])
        eventually(lambda: "services" in api.dags(), "the DAG is there", seconds=120)
        run = api.start("services", {})
        yield SimpleNamespace(api=api, run=run, kill_triggerer=kill_triggerer, logs=home / "airflow" / "logs")
    finally:
        for service in services.values():
            service.begin_stop()
        for service in services.values():
            service.stop()
        with psycopg.connect(stack.dsn, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
            connection.execute(f"DROP ROLE {name}")


def runs(dagster, task):
    """Return the runs of a task, by its index and by how often it was cleared."""
    found = [
        (tag["value"], run) for run in dagster.runs.values() for tag in run["tags"] if tag["key"] == "airflow/task"
    ]
    return {value.split(f"/{task}/")[1]: run for value, run in found if f"/{task}/" in value}


def linked(airflow, task, index=-1):
    return airflow.api.link("services", airflow.run, task, NAME, index)


def test_the_tasks_link_to_their_runs_while_they_go_on(airflow, dagster):
    tasks = [("one", -1, "0"), ("worker", -1, "0"), ("each", 0, "0/0"), ("each", 1, "1/0")]
    for task, index, key in tasks:
        found = eventually(lambda task=task, index=index: linked(airflow, task, index), "it links", seconds=180)
        assert found == f"{dagster.url}/runs/{runs(dagster, task)[key]['runId']}"
    assert dagster.launched() == 4
    assert {run["status"] for run in dagster.runs.values()} == {"STARTED"}


def test_a_killed_triggerer_starts_no_second_run(airflow, dagster):
    airflow.kill_triggerer()
    polled = len(dagster.asked)
    eventually(lambda: "HarvestRuns" in dagster.asked[polled:], "it is followed again", seconds=120)
    for index in ("0/0", "1/0"):
        runs(dagster, "each")[index]["status"] = "SUCCESS"
    eventually(lambda: airflow.api.states("services", airflow.run, "each") == {"success"}, "they end", seconds=120)
    assert dagster.launched() == 4


@pytest.mark.parametrize("task", ["one", "worker"])
def test_a_task_that_is_marked_failed_ends_its_run_and_still_links_to_it(task, airflow, dagster):
    before = linked(airflow, task)
    airflow.api.mark("services", airflow.run, task, "failed")
    (run,) = runs(dagster, task).values()
    eventually(lambda: run["status"] == "CANCELED", "the run is ended", seconds=120)
    assert linked(airflow, task) == before
    assert dagster.launched() == 4


def test_a_cleared_task_starts_another_run_and_links_to_it(airflow, dagster):
    before = linked(airflow, "one")
    airflow.api.clear("services", airflow.run, "one")
    eventually(lambda: linked(airflow, "one") not in {before, None}, "it links to another", seconds=120)
    assert sorted(runs(dagster, "one")) == ["0", "1"]
    runs(dagster, "one")["1"]["status"] = "FAILURE"
    eventually(lambda: airflow.api.states("services", airflow.run, "one") == {"failed"}, "it fails", seconds=120)
    assert linked(airflow, "one") == f"{dagster.url}/runs/{runs(dagster, 'one')['1']['runId']}"
    assert dagster.launched() == 5
