"""`DagsterJobOperator` in Airflow: what it sends, what it returns, what a task links to, and how its end ends the run.

Run by `dag.test()` with a server that is asked as Dagster is; the tests look at what came of it.
"""

import json
import os
import signal
import uuid
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest
from support.airflow_process import airflow_started, run_airflow
from support.dagster_stub import dagster_stub
from support.waiting import eventually

from infra.platform.airflow import Airflow
from infra.platform.databases import own_database

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
LINK = "_link_DagsterRunLink"
PARAMS = {"seconds": 5, "code": "007", "year": "2013", "on": True, "ratio": 0.5, "none": None, "many": [1, "1"]}
DAGS = """
from datetime import timedelta
from airflow.sdk import Asset, Param, dag
from harvest_lib.airflow.operators.dagster import DagsterJobOperator

CONFIG = {
    "whole": {name: "{{ params.%s }}" % name for name in ("seconds", "code", "year", "on", "ratio", "none", "many")},
    "plain": ["2013", "007", 7, "true", "{{- params.seconds -}}"],
    "mixed": ["{{ params.seconds }} s", "{{ params.seconds }}{{ params.code }}", "{{ '}}' }}"],
    "text": "{{ macros.datetime(2013, 1, 31) }}",
    "json": "{{ params.many | tojson }}",
    "{{ params.code }}": "a key is no template",
}

def job(task_id="job", **arguments):
    return DagsterJobOperator(task_id=task_id, job_name="flights_job", **{"poll": timedelta(seconds=0.1), **arguments})

def single(dag_id, native=False, **arguments):
    @dag(dag_id=dag_id, params=PARAMS, render_template_as_native_obj=native)
    def made():
        job(**arguments)
    made()

single("typed", run_config=CONFIG)
single("text", run_config="{{ {'seconds': params.seconds, 'code': params.code} | tojson }}")
single("native", native=True, run_config={"year": "{{ params.year }}"})
single("undefined", run_config={"seconds": "{{ params.no_such }}"}, retries=0)
single("retried", retries=2)
single("restarted", retries=2, restart_canceled=True)
single("partitioned", retries=2, partition="2013-02-30")
single("outlets", outlets=[Asset("orders"), Asset("refunds")], partition="a")
single("in_worker", deferrable=False, outlets=[Asset("orders")])
single("timed_out", deferrable=False, execution_timeout=timedelta(seconds=5), retries=1)

@dag(dag_id="mapped", params=PARAMS)
def mapped():
    job("by_config", wait=timedelta(hours=1)).output
    DagsterJobOperator.partial(task_id="each", job_name="flights_job").expand(
        run_config=[{"seconds": "{{ params.seconds }}"}, {"seconds": 6}, {"seconds": "{{ params.code }}"}])
mapped()
""".replace("PARAMS", repr(PARAMS))


@pytest.fixture(scope="module")
def airflow(stack, tmp_path_factory):
    """Yield a function that runs DAGs, in order, each with the address of a stub; and Airflow's database."""
    home = tmp_path_factory.mktemp("airflow")
    name = f"airflow_{uuid.uuid4().hex[:8]}"
    metadata = own_database(stack.dsn, name, password_file=home / "password")
    made = Airflow(home)
    made.prepare()
    (home / "own_dags").mkdir()
    (home / "own_dags" / "own.py").write_text(DAGS)
    variables = made.environment(metadata, {**os.environ, "PYTHONPATH": str(ROOT)})
    variables["AIRFLOW__CORE__DAGS_FOLDER"] = str(home / "own_dags")
    made.migrate(variables)
    yield SimpleNamespace(variables=variables, dsn=metadata)
    with psycopg.connect(stack.dsn, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
        connection.execute(f"DROP ROLE {name}")


def asked(dag_id, stub):
    return {"dag_id": dag_id, "conf": {}, "variables": {"DAGSTER_URL": stub.url}}


@pytest.fixture(scope="module")
def ran(airflow):
    """The ends of the DAGs that end by themselves, with the stub of each."""
    names = (
        "typed",
        "text",
        "native",
        "undefined",
        "mapped",
        "retried",
        "restarted",
        "partitioned",
        "outlets",
        "in_worker",
    )
    with (
        dagster_stub() as good,
        dagster_stub() as canceled,
        dagster_stub() as twice,
        dagster_stub() as parts,
        dagster_stub() as goes_on,
    ):
        good.next_status = parts.next_status = "SUCCESS"
        canceled.next_status = twice.next_status = "CANCELED"
        goes_on.next_status = "STARTED"
        parts.partitions = {"flights_job": ["a", "b"]}
        parts.materialized = [["shop/orders", "flights"]]
        stubs = {"retried": canceled, "restarted": twice, "partitioned": parts, "outlets": parts, "timed_out": goes_on}
        runs = [asked(name, stubs.get(name, good)) for name in (*names, "timed_out")]
        imported, ends = run_airflow(airflow.variables, runs)
        assert imported["errors"] == {}
        yield SimpleNamespace(
            good=good,
            canceled=canceled,
            twice=twice,
            parts=parts,
            goes_on=goes_on,
            dsn=airflow.dsn,
            **dict(zip((*names, "timed_out"), ends, strict=True)),
        )


def configs(stub, task):
    """Return the configurations of a task's runs."""
    return [
        run["config"]
        for run in stub.runs.values()
        if any(tag["key"] == "airflow/task" and task in tag["value"] for tag in run["tags"])
    ]


def link(dsn, dag_id):
    """Return the links of a DAG's tasks, as Airflow's API server reads them."""
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(
            "SELECT value FROM xcom WHERE dag_id = %s AND key = %s ORDER BY map_index", [dag_id, LINK]
        ).fetchall()
    return [row[0] for row in rows]


def test_values_of_a_mapping_keep_their_types(ran):
    assert ran.typed["state"] == "success", ran.typed["log"]
    (config,) = configs(ran.good, "typed/")
    assert config == {
        "whole": PARAMS,
        "plain": ["2013", "007", 7, "true", 5],
        "mixed": ["5 s", "5007", "}}"],
        "text": "2013-01-31 00:00:00",
        "json": '[1, "1"]',
        "{{ params.code }}": "a key is no template",
    }


def test_a_configuration_as_text_is_rendered_as_before(ran):
    assert configs(ran.good, "text/") == [{"seconds": 5, "code": "007"}]


def test_a_dag_that_asks_for_native_objects_gets_them(ran):
    assert configs(ran.good, "native/") == [{"year": 2013}]


def test_a_parameter_that_is_not_there_fails_before_a_run(ran):
    assert ran.undefined["state"] == "failed"
    assert "no_such" in ran.undefined["log"]
    assert configs(ran.good, "undefined/") == []


def test_mapped_tasks_start_a_run_each_with_its_types_and_link(ran):
    assert ran.mapped["state"] == "success", ran.mapped["log"]
    assert sorted(map(json.dumps, configs(ran.good, "/each/"))) == [
        '{"seconds": "007"}',
        '{"seconds": 5}',
        '{"seconds": 6}',
    ]
    assert len(set(link(ran.dsn, "mapped"))) == 4


def test_a_run_that_was_canceled_in_dagster_is_started_again_only_if_asked(ran):
    assert (ran.retried["state"], ran.canceled.launched()) == ("failed", 1)
    assert "was canceled in Dagster" in ran.retried["log"]
    assert (ran.restarted["state"], ran.twice.launched()) == ("failed", 3)


def test_an_unknown_partition_fails_at_once(ran):
    assert ran.partitioned["state"] == "failed"
    assert "has no partition '2013-02-30'" in ran.partitioned["log"]
    assert "its last partitions: a, b" in ran.partitioned["log"]
    assert ran.parts.launched() == 1, "that of another task"


def test_the_outlets_say_what_dagster_materialized(ran):
    (run,) = ran.parts.runs.values()
    result = {
        "run_id": run["runId"],
        "url": f"{ran.parts.url}/runs/{run['runId']}",
        "assets": ["flights", "shop/orders"],
    }
    assert ran.outlets["returned"]["job"] == result
    with psycopg.connect(ran.dsn) as connection:
        events = connection.execute(
            "SELECT a.name, e.extra FROM asset_event e JOIN asset a ON a.id = e.asset_id"
            " WHERE e.source_dag_id = 'outlets' ORDER BY 1"
        ).fetchall()
    assert events == [("orders", {**result, "partition": "a"}), ("refunds", {**result, "partition": "a"})]


def test_a_worker_waits_if_it_is_told_to(ran):
    assert ran.in_worker["state"] == "success", ran.in_worker["log"]
    assert "running trigger in line" not in ran.in_worker["log"]
    assert "running trigger in line" in ran.typed["log"]
    assert ran.in_worker["returned"]["job"]["url"] == link(ran.dsn, "in_worker")[0]


def test_airflow_stores_no_link_of_its_own_over_that_of_the_trigger(ran):
    """It would read the link first, which is not there yet."""
    assert "XCom not found" not in ran.typed["log"] + ran.partitioned["log"] + ran.in_worker["log"]


def test_a_timeout_of_a_task_that_waits_itself_ends_the_run_and_the_next_try_starts_another(ran):
    assert ran.timed_out["state"] == "failed"
    assert [run["status"] for run in ran.goes_on.runs.values()] == ["CANCELED", "CANCELED"]


@pytest.mark.parametrize("dag_id", ["retried", "in_worker"])
def test_the_link_is_there_while_the_run_goes_on_and_after_it_failed(dag_id, airflow, tmp_path):
    log = tmp_path / "airflow.log"
    with psycopg.connect(airflow.dsn) as connection:
        connection.execute("DELETE FROM xcom")
    with dagster_stub() as dagster:
        with airflow_started(airflow.variables, [asked(dag_id, dagster)], log) as process:
            found = eventually(lambda: link(airflow.dsn, dag_id), "the link is stored", seconds=120)
            assert found == [f"{dagster.url}/runs/run-1"], log.read_text()[-2000:]
            assert process.poll() is None
            assert dagster.runs["run-1"]["status"] == "STARTED"
            dagster.runs["run-1"]["status"] = "CANCELED"
            assert process.wait(120) == 0
        assert link(airflow.dsn, dag_id) == found
        assert dagster.launched() == 1


def test_the_end_of_a_worker_that_waits_ends_the_run(airflow, tmp_path):
    log = tmp_path / "airflow.log"
    with dagster_stub() as dagster:
        with airflow_started(airflow.variables, [asked("in_worker", dagster)], log) as process:
            eventually(lambda: dagster.polled, "it waits", seconds=120)
            process.send_signal(signal.SIGTERM)
            process.wait(120)
        assert dagster.runs["run-1"]["status"] == "CANCELED", log.read_text()[-3000:]
        assert "Dagster ends the run" in log.read_text()
        assert dagster.launched() == 1
