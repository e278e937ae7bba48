"""The wheel in a project that has packages `spark_jobs`, `airflow_dags`, `tests` and `infra` of its own."""

import json
import os
import subprocess
import uuid

import pytest
import yaml
from support.airflow_process import run_airflow
from support.dagster_project import DEFINITIONS, PYPROJECT
from support.installed import build, find_uv, install

from harvest_lib.local_stack.jars import POSTGRES_JDBC, resolve, spark_kafka_jars
from harvest_lib.local_stack.java import find_java
from infra.platform.airflow import Airflow
from infra.platform.databases import own_database

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]  # about a minute; the first use of uv may have to download

OWN = ("spark_jobs", "airflow_dags", "tests", "infra")
DAG = """
from airflow.sdk import dag, task
from airflow_dags import NAME
from harvest_lib.airflow.operators.dagster import DagsterJobOperator


@task
def names():
    import infra, spark_jobs, tests
    from harvest_lib.audit.summary import MUST_BE_ZERO

    return [NAME, infra.NAME, spark_jobs.NAME, tests.NAME, "lost" in MUST_BE_ZERO]


@dag(dag_id="own")
def own():
    names()


@dag(dag_id="started")
def started():
    DagsterJobOperator(task_id="load", job_name="load")


own()
started()
"""


@pytest.fixture(scope="module")
def venv(parts, tmp_path_factory):
    made = tmp_path_factory.mktemp("venv")
    install(
        find_uv(parts), build(find_uv(parts), tmp_path_factory.mktemp("wheel")), made, "spark", "dagster", "airflow"
    )
    return made


@pytest.fixture
def project(tmp_path):
    for name in OWN:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"NAME = {name!r}\n")
    return tmp_path


@pytest.fixture
def environment(project, parts):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HARVEST_", "PYTHON", "AIRFLOW"))}
    java = find_java(parts)
    jars = [str(jar) for names in (POSTGRES_JDBC, spark_kafka_jars()) for jar in resolve(names, parts)]
    return kept | {"PYTHONPATH": str(project), "JAVA_HOME": str(java), "HARVEST_SPARK_JARS": ",".join(jars)}


def run(project, environment, *command):
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_audit_by_spark_runs(venv, project, environment, native):
    native.deliver(delivery="transactional")
    place = ("--dsn", native.outbox.dsn, "--bootstrap-servers", native.servers, "--topic", native.outbox.topic)
    found = json.loads(
        run(project, environment, venv / "bin/python", "-m", "harvest_lib.spark.audit", *place, "--json")
    )
    assert (found["lost"], found["ok"]) == (0, True)
    assert found["committed"] > 0


def test_a_location_of_dagster_loads(venv, project, environment):
    place = project / "warehouse" / "defs" / "shop"
    place.mkdir(parents=True)
    for module in (project / "warehouse", project / "warehouse" / "defs"):
        (module / "__init__.py").touch()
    (project / "pyproject.toml").write_text(PYPROJECT.format(package="warehouse"))
    (project / "warehouse" / "definitions.py").write_text(DEFINITIONS)
    attributes = {"name": "shop", "topics": ["orders"]}
    declared = {"type": "dagster_harvest.components.OutboxComponent", "attributes": attributes}
    (place / "defs.yaml").write_text(yaml.safe_dump(declared))
    known = environment | {"DAGSTER_HOME": str(project), "DAGSTER_DISABLE_TELEMETRY": "1"}
    command = ("definitions", "validate", "-m", "warehouse.definitions")
    run(project, known, venv / "bin/dagster", *command)


def test_a_dag_runs(venv, project, environment, stack):
    (project / "dags").mkdir()
    (project / "dags" / "own.py").write_text(DAG)
    name = f"airflow_{uuid.uuid4().hex[:8]}"
    metadata = own_database(stack.dsn, name, password_file=project / name)
    airflow = Airflow(project / "state", dags=project / "dags")
    airflow.prepare()
    variables = airflow.environment(metadata, environment)
    airflow.migrate(variables)
    asked = {"dag_id": "own", "conf": {}, "variables": {}}
    imported, (end,) = run_airflow(variables, [asked], python=str(venv / "bin/python"))
    assert imported == {"errors": {}, "dags": ["own", "started"]}
    assert end["state"] == "success", end["log"]
    assert end["returned"]["names"] == ["airflow_dags", "infra", "spark_jobs", "tests", True]


def test_the_core_loads_neither_spark_nor_airflow(venv, project, environment):
    code = "import sys, harvest_lib, harvest_lib.cli; print({'airflow', 'psycopg', 'pyspark'} & set(sys.modules))"
    assert run(project, environment, venv / "bin/python", "-c", code) == "set()\n"
