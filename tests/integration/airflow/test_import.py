"""The DAGs as Airflow imports them, without a database: no error, and each that the documentation names."""

import os
import shutil
from pathlib import Path

import pytest
from support.airflow_process import run_airflow

pytestmark = pytest.mark.quick

DAGS = Path(__file__).parents[3] / "airflow_dags"


def variables(home, folder):
    core = {"AIRFLOW__CORE__DAGS_FOLDER": str(folder), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    return {**os.environ, **core, "AIRFLOW_HOME": str(home)}


def test_each_dag_is_imported_and_a_broken_one_is_not(tmp_path):
    folder = tmp_path / "dags"
    folder.mkdir()
    for file in DAGS.glob("*.py"):
        shutil.copy(file, folder)
    (folder / "broken.py").write_text("from airflow.sdk import DAG\nraise ValueError('no such dag')\n")
    imported, ends = run_airflow(variables(tmp_path, folder), [])
    assert ends == []
    assert {Path(name).name for name in imported["errors"]} == {"broken.py"}
    assert {"harvest_flights_day", "harvest_nightly_audit", "harvest_run_dagster_job"} <= set(imported["dags"])
