"""The DAGs for real: imported by Airflow, and run by `dag.test()` with Postgres, Kafka, and a server that is asked as
Dagster is."""

import json
import os
import uuid
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Consumer, Producer
from support.airflow_process import run_airflow
from support.dagster_stub import dagster_stub

from infra.local.airflow import Airflow, kafka_connections
from infra.local.databases import own_database

ROOT = Path(__file__).parents[2]
DAGS = {
    "harvest_audit_on_message",
    "harvest_nightly_audit",
    "harvest_run_dagster_job",
    "harvest_topic_smoke_test",
}
NUMBERS = """
    audit_id text, at timestamptz, records bigint, committed bigint, lost bigint, duplicates_adjacent bigint,
    duplicates_separated bigint, duplicates_cross_epoch bigint, reordered bigint, unknown bigint,
    foreign_messages bigint, delay_p50_ms double precision, delay_p95_ms double precision,
    delay_p99_ms double precision, delay_max_ms double precision, backlog_records bigint,
    backlog_age_seconds double precision
"""
# Stands for `spark_jobs.audit`: it leaves the summary that its variables say, and exits as that does.
AUDIT = """
import os, sys, psycopg
_, option, audit_id = sys.argv
assert option == "--audit-id"
with psycopg.connect(os.environ["HARVEST_DSN"]) as connection:
    connection.execute("CREATE SCHEMA IF NOT EXISTS harvest_audit")
    connection.execute('''CREATE TABLE IF NOT EXISTS harvest_audit.summary (NUMBERS)''')
    if "LOST" in os.environ:
        connection.execute(
            "INSERT INTO harvest_audit.summary (audit_id, at, records, committed, lost, reordered, unknown,"
            " delay_p99_ms) VALUES (%s, clock_timestamp(), 8, 10, %s, 0, 0, 12.5)", [audit_id, os.environ["LOST"]]
        )
sys.exit(os.environ.get("LOST", "0") != "0")
"""


@pytest.fixture(scope="module")
def airflow(stack, tmp_path_factory):
    """Variables for an Airflow with a database of its own."""
    home = tmp_path_factory.mktemp("airflow")
    made = Airflow(home)
    made.prepare()
    name = f"airflow_{uuid.uuid4().hex[:8]}"
    variables = made.environment(
        own_database(stack.dsn, name, password_file=home / "password"),
        {**os.environ, **kafka_connections(stack.bootstrap_servers), "PYTHONPATH": str(ROOT)},
    )
    made.migrate(variables)
    yield variables
    with psycopg.connect(stack.dsn, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
        connection.execute(f"DROP ROLE {name}")


@pytest.fixture
def dagster():
    with dagster_stub() as stub:
        yield stub


@pytest.fixture
def audited(tmp_path, dsn):
    """Variables with which an audit of ours runs: that of the test."""
    package = tmp_path / "spark_jobs"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "audit.py").write_text(AUDIT.replace("NUMBERS", NUMBERS))
    return {"HARVEST_DSN": dsn, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}


def test_the_dags_import_without_errors(airflow):
    answer, _ = run_airflow(airflow, "import")
    assert answer["errors"] == {}
    assert set(answer["dags"]) == DAGS


def test_a_dagster_job_is_started_and_waited_for(airflow, dagster):
    dagster.next_status = "SUCCESS"
    conf = {"job": "flights_job", "run_config": {"ops": {"load": {"config": {"month": 3}}}}}
    answer, _ = run_airflow({**airflow, "DAGSTER_URL": dagster.url}, "harvest_run_dagster_job", json.dumps(conf))
    assert answer["tasks"] == {"dagster_job": "success"}
    assert answer["returned"]["dagster_job"] == {"run_id": "run-1", "url": f"{dagster.url}/runs/run-1"}
    (run,) = dagster.runs.values()
    assert run["config"] == conf["run_config"]
    tags = {tag["key"]: tag["value"] for tag in run["tags"]}
    assert tags == {
        "airflow/task": f"harvest_run_dagster_job/{answer['run_id']}/dagster_job/0",
        "airflow/try": "1",
    }


@pytest.mark.parametrize(
    ("job", "said"), [("flights_job", "column delay is of type text"), ("no_such_job", "its jobs: flights_job")]
)
def test_what_went_wrong_in_dagster_is_in_the_tasks_log(job, said, airflow, dagster):
    dagster.next_status, dagster.failure = "FAILURE", "column delay is of type text"
    answer, log = run_airflow(
        {**airflow, "DAGSTER_URL": dagster.url.replace("//", "//user:canary@")},
        "harvest_run_dagster_job",
        json.dumps({"job": job}),
    )
    assert answer["state"] == ("failed" if job == "no_such_job" else answer["state"])
    assert said in log
    assert "next step" in log
    assert "canary" not in log


def test_a_topic_is_written_to_read_from_and_waited_on(airflow, make_topic, bootstrap_servers, group_id):
    topic = make_topic()
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    producer.produce(topic, "not ours")
    producer.flush()
    answer, log = run_airflow(airflow, "harvest_topic_smoke_test", json.dumps({"topic": topic}))
    assert answer["state"] == "success", log[-4000:]
    assert answer["returned"]["compare"] == {"topic": topic, "partition": 0, "offset": 1}
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": group_id, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    assert consumer.consume(2, timeout=20)[1].key().decode() == answer["run_id"]
    consumer.close()


@pytest.mark.long
def test_a_topic_that_is_not_there_is_named(airflow, unique):
    topic = unique("missing")
    answer, log = run_airflow(airflow, "harvest_topic_smoke_test", json.dumps({"topic": topic}))
    assert answer["tasks"]["produce"] == "failed"
    assert f"topic {topic} did not take the message" in log


@pytest.mark.parametrize("dag_id", ["harvest_nightly_audit", "harvest_audit_on_message"])
def test_an_audit_that_finds_nothing_wrong_is_reported(dag_id, airflow, audited):
    answer, log = run_airflow({**airflow, **audited, "LOST": "0"}, dag_id, "{}")
    assert answer["tasks"] == dict.fromkeys(("audit", "report"), "success"), log[-4000:]
    assert answer["returned"]["report"]["committed"] == 10
    assert "delay_p99_ms" in log


def test_an_audit_that_finds_records_lost_fails_and_names_the_numbers(airflow, audited):
    answer, log = run_airflow({**airflow, **audited, "LOST": "2"}, "harvest_nightly_audit", "{}")
    assert answer["tasks"] == {"audit": "success", "report": "failed"}
    assert "the audit found 2 lost" in log
    assert f"harvest_audit.lost WHERE audit_id = 'harvest_nightly_audit/{answer['run_id']}'" in log


def test_an_audit_without_a_summary_is_not_taken_for_a_good_one(airflow, audited):
    run_airflow({**airflow, **audited, "LOST": "0"}, "harvest_nightly_audit", "{}")
    answer, log = run_airflow({**airflow, **audited}, "harvest_nightly_audit", "{}")  # yesterday's is there
    assert answer["tasks"]["report"] == "failed"
    assert "the audit left no summary" in log


def test_an_audit_that_fails_is_not_reported(airflow, audited):
    nowhere = {"HARVEST_DSN": "host=127.0.0.1 port=1 user=u password=canary dbname=d"}
    answer, log = run_airflow({**airflow, **audited, **nowhere, "LOST": "0"}, "harvest_nightly_audit", "{}")
    assert "success" not in answer["tasks"].values()
    assert "canary" not in log
