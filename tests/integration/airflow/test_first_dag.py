"""A new user's way to a green DAG, typed as the page has it: from the file to a task in the triggerer."""

import json
import os
import shlex
import signal
import sys
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from support.platform_api import AirflowApi
from support.waiting import eventually
from support.walkthrough import Walkthrough, blocks

from harvest_lib.local_stack.description import running
from harvest_lib.local_stack.jars import POSTGRES_JDBC, kafka_jars, resolve, spark_kafka_jars
from harvest_lib.local_stack.java import find_java
from infra.platform.airflow import Airflow
from infra.platform.platform import DAGS

pytestmark = [pytest.mark.full, pytest.mark.long, pytest.mark.timeout(1500)]

CANARY = "canary-7d9e"
VENV = Path(sys.executable).parent


@pytest.fixture
def home(tmp_path, parts):
    """A state folder that shares what is downloaded once; nothing is left running in it."""
    find_java(parts)
    for jars in (kafka_jars("4.3.1"), POSTGRES_JDBC, spark_kafka_jars()):
        resolve(jars, parts)
    folder = tmp_path / "home"
    folder.mkdir()
    yield folder
    if found := running(folder):
        os.kill(found.pid, signal.SIGKILL)


@pytest.fixture
def newcomer(home, tmp_path):
    """Somebody with the environment of a clone, in an empty folder."""
    programs, folder = tmp_path / "programs", tmp_path / "folder"
    programs.mkdir()
    folder.mkdir()
    made = Walkthrough(folder, {}, f"{programs}:{VENV}", HARVEST_HOME=str(home), PYTHONPATH="")
    made.seconds = 900
    return made


def airflow_of_the_platform(home, programs):
    """Put Airflow's command, with the environment of the platform's services, into a folder."""
    made = Airflow(home)
    made.prepare()
    found = running(home)
    password = (home / "passwords" / "airflow").read_text().strip()
    dsn = make_conninfo(found.dsn, user="harvest_airflow", password=password, dbname="harvest_airflow")
    lines = [f"export {name}={shlex.quote(value)}" for name, value in made.environment(dsn, {}).items()]
    (programs / "airflow").write_text(
        "\n".join(["#!/bin/sh", *lines, f'exec {shlex.quote(str(VENV / "airflow"))} "$@"'])
    )
    (programs / "airflow").chmod(0o700)
    return dsn


def task_log(home, dag_id):
    return "".join(file.read_text() for file in (home / "airflow" / "logs" / f"dag_id={dag_id}").rglob("*.log*"))[
        -5000:
    ]


def tables_that_hold(dsn, text):
    with psycopg.connect(dsn) as connection:
        names = [row[0] for row in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")]
        query = sql.SQL("SELECT count(*) FROM {} AS every WHERE every::text LIKE %s")
        counted = {
            name: connection.execute(query.format(sql.Identifier(name)), [f"%{text}%"]).fetchone()[0] for name in names
        }
    assert len(names) > 20
    return {name for name, count in counted.items() if count}


def test_the_first_dag_of_a_new_user(home, newcomer, tmp_path):
    dag, up, *_ = blocks("docs/airflow-dagster.md", under="# Airflow with Dagster")
    newcomer.type(dag)
    newcomer.type(up)
    found = running(home)
    assert found.notes[DAGS] == str(newcomer.folder / "dags")
    url = {server.name: server.url for server in found.servers}
    password = json.loads((home / "airflow" / "passwords.json").read_text())["admin"]
    airflow = AirflowApi(url["airflow-api-server"], password)

    def ended(dag_id):
        states = [run["state"] for run in airflow.runs(dag_id)] if dag_id in airflow.dags() else []
        return states if states and states[0] in {"success", "failed"} else None

    assert eventually(lambda: ended("first"), "the DAG runs", seconds=600) == ["success"], task_log(home, "first")
    assert airflow.dags() == {"first"}, "ours do not run"

    # A connection of one's own, with a secret, and the same DAG by it.
    dsn = airflow_of_the_platform(home, tmp_path / "programs")
    port = url["dagster-webserver"].rpartition(":")[2]
    newcomer._addresses["dagster.example.com --conn-port 3000"] = f"127.0.0.1 --conn-port {port}"
    (typed,) = blocks("docs/airflow-dagster.md", under="## The connection to Dagster")
    newcomer.type(typed)
    assert "Connection success" in newcomer.said[-1]
    airflow.connect("secret_dagster", host="127.0.0.1", port=int(port), extra=json.dumps({"token": CANARY}))
    text = dag.text.replace("dagster_default", "secret_dagster").replace('dag_id="first"', 'dag_id="second"')
    (newcomer.folder / "dags" / "second.py").write_text(text)
    assert eventually(lambda: ended("second"), "the second runs", seconds=600) == ["success"], task_log(home, "second")
    assert tables_that_hold(dsn, "secret_dagster"), "it is found where it is"
    assert tables_that_hold(dsn, CANARY) == set()
    logs = [file for folder in (home / "airflow" / "logs", home / "logs") for file in folder.rglob("*.log")]
    assert any("started the Dagster run" in file.read_text() for file in logs)
    assert [file for file in logs if CANARY in file.read_text()] == []

    newcomer._run(["harvest", "down"])
    assert running(home) is None
