"""The DAGs as Airflow imports them, without a database: no error, and each that the documentation names."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.airflow_process import run_airflow

pytestmark = pytest.mark.quick

DAGS = Path(__file__).parents[3] / "airflow_dags"

MINE = """
from airflow.sdk import dag
from harvest_lib.airflow.assets import outbox_asset, topic_asset
from harvest_lib.airflow.operators.event_runs import RunPerEventOperator
from harvest_lib.airflow.triggers.outbox_events import OutboxEventTrigger
from harvest_lib.airflow.triggers.topic_events import TopicEventTrigger
from harvest_lib.errors import ConfigError

def refused(make, *values):
    try:
        make(*values)
    except ConfigError:
        return True

assert topic_asset("kafka.example.com:9092,b:9092", "orders").uri == "kafka://kafka.example.com:9092/orders"
assert outbox_asset("db.example.com", "shop").uri == "postgres://db.example.com:5432/shop/public/outbox"
assert outbox_asset("db", "shop", table="sales.events", port=5433).uri == "postgres://db:5433/shop/sales/events"
assert refused(topic_asset, "", "orders") and refused(topic_asset, "kafka:9092", "no topic")
assert refused(outbox_asset, "", "shop")
assert refused(outbox_asset, "db:5433", "shop")
assert refused(lambda: OutboxEventTrigger(name="orders", most_records=0))
assert OutboxEventTrigger(name="orders", topics="orders").topics == ["orders"]
assert TopicEventTrigger(topics="orders").topics == ["orders"]
outbox = OutboxEventTrigger(name="orders", topics=("b", "a"))
for made in (outbox, TopicEventTrigger(topics=["orders"], start="beginning")):
    path, arguments = made.serialize()
    again = type(made)(**arguments)
    assert path.endswith(type(made).__name__) and again.serialize() == made.serialize()
    assert again.shared_stream_key() == made.shared_stream_key()
assert OutboxEventTrigger(name="a").shared_stream_key() != OutboxEventTrigger(name="b").shared_stream_key()

@dag(dag_id="mine")
def mine():
    RunPerEventOperator(task_id="start", asset=outbox_asset("db", "shop"), trigger_dag_id="other")

mine()
"""


WITHOUT_KAFKA = """
import sys
from importlib import import_module
from pkgutil import walk_packages
for part in ("hooks", "operators", "sensors", "triggers"):  # Airflow itself loads the description
    sys.modules[f"airflow.providers.apache.kafka.{part}"] = None
import harvest_lib.airflow

refused = []
for each in walk_packages(harvest_lib.airflow.__path__, "harvest_lib.airflow."):
    try:
        import_module(each.name)
    except ImportError as error:
        refused.append((each.name, str(error)))
((name, said),) = refused
assert name == "harvest_lib.airflow.triggers.topic_events" and "airflow.providers.apache.kafka" in said, refused
"""


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


def test_without_the_kafka_provider_only_the_watcher_of_topics_is_refused(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_KAFKA],
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_what_is_imported_from_the_package_registers_no_dag(tmp_path):
    folder = tmp_path / "dags"
    folder.mkdir()
    (folder / "mine.py").write_text(MINE)
    imported, _ = run_airflow(variables(tmp_path, folder), [])
    assert imported == {"errors": {}, "dags": ["mine"]}
