"""The DAGs for real: imported by Airflow, and run by `dag.test()` with Postgres, Kafka, and a server that is asked as
Dagster is. They run in one process, which takes its time to begin; the tests look at what came of it."""

import os
import signal
import socket
import subprocess
import uuid
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import NewTopic
from support.airflow_process import airflow_started, run_airflow
from support.dagster_stub import dagster_stub
from support.waiting import eventually

from infra.platform.airflow import Airflow, kafka_connections
from infra.platform.databases import own_database

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
DAGS = {
    "harvest_audit_on_message",
    "harvest_flights_day",
    "harvest_nightly_audit",
    "harvest_run_dagster_job",
    "harvest_topic_smoke_test",
}
CONFIG = {"ops": {"load": {"config": {"month": 3}}}}
NUMBERS = """
    audit_id text, at timestamptz, records bigint, committed bigint, lost bigint, duplicates_adjacent bigint,
    duplicates_separated bigint, duplicates_cross_epoch bigint, reordered bigint, unknown bigint,
    other_contents bigint DEFAULT 0, keys bigint, keys_with_gaps bigint,
    foreign_messages bigint, delay_p50_ms double precision, delay_p95_ms double precision,
    delay_p99_ms double precision, delay_max_ms double precision, backlog_records bigint,
    backlog_age_seconds double precision
"""
# Stands for `harvest_lib.spark.audit`: it leaves the summary that its variables say, and exits as that does.
AUDIT = """
import os, sys, psycopg
_, option, audit_id, *allowed = sys.argv
assert option == "--audit-id"
assert allowed == (["--allow-empty"] if os.environ.get("HARVEST_AUDIT_ALLOW_EMPTY") else [])
with psycopg.connect(os.environ["HARVEST_DSN"]) as connection:
    connection.execute("CREATE SCHEMA IF NOT EXISTS harvest_audit")
    connection.execute('''CREATE TABLE IF NOT EXISTS harvest_audit.summary (NUMBERS)''')
    if "LOST" in os.environ:
        connection.execute(
            "INSERT INTO harvest_audit.summary (audit_id, at, records, committed, lost, duplicates_adjacent,"
            " duplicates_separated, reordered, unknown, delay_p99_ms)"
            " VALUES (%s, clock_timestamp(), 8, %s, %s, 0, 0, 0, 0, 12.5)",
            [audit_id, os.environ.get("COMMITTED", "10"), os.environ["LOST"]],
        )
sys.exit(13 if os.environ.get("LOST", "0") != "0" else 0)
"""


@pytest.fixture(scope="module")
def ran(stack, admin, tmp_path_factory):
    """Yield the results of importing the DAGs and of running each, well and badly; and the servers they ran against."""
    home = tmp_path_factory.mktemp("airflow")
    (home / "stubs").mkdir()
    (home / "stubs" / "audit.py").write_text(AUDIT.replace("NUMBERS", NUMBERS))
    (home / "sitecustomize.py").write_text(
        f"import harvest_lib.spark\nharvest_lib.spark.__path__.insert(0, {str(home / 'stubs')!r})\n"
    )
    names = [f"airflow_{uuid.uuid4().hex[:8]}", f"audited_{uuid.uuid4().hex[:8]}"]
    metadata, audited = (own_database(stack.dsn, name, password_file=home / name) for name in names)
    topic = f"smoke_{names[0]}"
    admin.create_topics([NewTopic(topic, 1)])[topic].result(60)
    producer = Producer({"bootstrap.servers": stack.bootstrap_servers})
    producer.produce(topic, "not ours")
    producer.flush()
    made = Airflow(home)
    made.prepare()
    # The stub is found before the module: a real audit would start Spark.
    reported = {**os.environ, **kafka_connections(stack.bootstrap_servers), "HARVEST_DSN": audited}
    variables = made.environment(metadata, {**reported, "PYTHONPATH": os.pathsep.join([str(home), str(ROOT)])})
    made.migrate(variables)

    def asked(dag_id, conf=None, **changes):
        return {"dag_id": f"harvest_{dag_id}", "conf": conf or {}, "variables": changes}

    with dagster_stub() as well, dagster_stub() as badly, dagster_stub() as idle:
        well.next_status = idle.next_status = "SUCCESS"
        idle.steps = []
        badly.next_status, badly.failure = "FAILURE", "column delay is of type text"
        secret = badly.url.replace("//", "//user:canary@")
        runs = {
            "job": asked(
                "run_dagster_job",
                {"job": "flights_job", "run_config": CONFIG, "partition": "2013-01-31"},
                DAGSTER_URL=well.url,
            ),
            "failing": asked("run_dagster_job", {"job": "flights_job"}, DAGSTER_URL=secret),
            "unknown": asked("run_dagster_job", {"job": "no_such_job"}, DAGSTER_URL=secret),
            "idle": asked("run_dagster_job", {"job": "flights_job"}, DAGSTER_URL=idle.url),
            "smoke": asked("topic_smoke_test", {"topic": topic}),
            "audit": asked("nightly_audit", LOST="0"),
            "on_message": asked("audit_on_message", LOST="0"),
            "lost": asked("nightly_audit", LOST="2"),
            "no_summary": asked("nightly_audit"),
            "empty": asked("nightly_audit", LOST="0", COMMITTED="0"),
            "allowed": asked("nightly_audit", LOST="0", COMMITTED="0", HARVEST_AUDIT_ALLOW_EMPTY="1"),
        }
        imported, ends = run_airflow(variables, list(runs.values()))
        yield SimpleNamespace(
            variables=variables,
            asked=asked,
            imported=imported,
            topic=topic,
            well=well,
            badly=badly,
            nothing=idle,
            **dict(zip(runs, ends, strict=True)),
        )
    with psycopg.connect(stack.dsn, autocommit=True) as connection:
        for name in names:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
            connection.execute(f"DROP ROLE {name}")


@pytest.mark.full
def test_the_dags_import_without_errors(ran):
    assert ran.imported == {"errors": {}, "dags": sorted(DAGS)}


def test_a_dagster_job_is_started_and_waited_for(ran):
    assert ran.job["tasks"] == {"dagster_job": "success"}, ran.job["log"]
    assert ran.job["returned"]["dagster_job"] == {"run_id": "run-1", "url": f"{ran.well.url}/runs/run-1"}
    (run,) = ran.well.runs.values()
    assert run["config"] == CONFIG
    assert {tag["key"]: tag["value"] for tag in run["tags"]} == {
        "airflow/task": f"harvest_run_dagster_job/{ran.job['run_id']}/dagster_job/0",
        "airflow/try": "1",
        "dagster/partition": "2013-01-31",
    }


def test_a_failed_dagster_run_is_told_in_the_tasks_log_and_each_try_starts_one(ran):
    assert ran.failing["state"] == "failed"
    assert "flights: column delay is of type text" in ran.failing["log"]
    assert f"check {ran.badly.url}/runs/run-3" in ran.failing["log"]
    tags = [{tag["key"]: tag["value"] for tag in run["tags"]} for run in ran.badly.runs.values()]
    assert [each["airflow/try"] for each in tags] == ["1", "2", "3"]
    assert len({each["airflow/task"] for each in tags}) == 1


def test_a_job_that_dagster_does_not_have_fails_at_once(ran):
    assert ran.unknown["state"] == "failed"
    assert "its jobs: flights_job" in ran.unknown["log"]
    assert ran.unknown["log"].count("no job 'no_such_job'") == ran.unknown["log"].count("its jobs: flights_job")
    assert "canary" not in ran.unknown["log"] + ran.failing["log"]


def test_a_topic_is_written_to_read_from_and_waited_on(ran, bootstrap_servers, group_id):
    assert ran.smoke["state"] == "success", ran.smoke["log"]
    assert ran.smoke["returned"]["compare"] == {"topic": ran.topic, "partition": 0, "offset": 1}
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": group_id, "auto.offset.reset": "earliest"})
    consumer.subscribe([ran.topic])
    assert consumer.consume(2, timeout=60)[1].key().decode() == ran.smoke["run_id"]
    consumer.close()


@pytest.mark.parametrize("run", ["audit", "on_message"])
def test_an_audit_that_finds_nothing_wrong_is_reported(run, ran):
    end = getattr(ran, run)
    assert end["tasks"] == {"audit": "success", "report": "success"}, end["log"]
    assert end["returned"]["report"]["committed"] == 10
    assert "delay_p99_ms" in end["log"]


def test_an_audit_that_finds_records_lost_fails_and_names_the_numbers(ran):
    assert ran.lost["tasks"] == {"audit": "success", "report": "failed"}
    assert "the audit found 2 lost" in ran.lost["log"]
    assert f"harvest_audit.lost WHERE audit_id = 'harvest_nightly_audit/{ran.lost['run_id']}'" in ran.lost["log"]


def test_an_audit_without_a_summary_is_not_taken_for_a_good_one(ran):
    assert ran.no_summary["tasks"] == {"audit": "success", "report": "failed"}  # yesterday's summary is there
    assert "the audit left no summary" in ran.no_summary["log"]


def test_an_audit_that_compared_nothing_is_not_taken_for_a_good_one_unless_that_is_allowed(ran):
    assert ran.empty["tasks"] == {"audit": "success", "report": "failed"}
    assert "no committed record" in ran.empty["log"]
    assert ran.allowed["tasks"] == {"audit": "success", "report": "success"}, ran.allowed["log"]


def test_a_dagster_run_without_a_step_fails_the_task_and_is_not_started_again(ran):
    assert ran.idle["tasks"] == {"dagster_job": "failed"}
    assert "succeeded and ran no step" in ran.idle["log"]
    assert ran.nothing.launched() == 1


def test_a_dag_that_is_tried_out_ends_on_sigterm_while_dagster_does_not_answer(ran, tmp_path):
    """`dag.test()` runs the trigger in its own process, where Airflow's handler of the signal only calls `on_kill`."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        nobody.listen()
        nobody.settimeout(120)
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        run = ran.asked("run_dagster_job", {"job": "flights_job"}, DAGSTER_URL=url)
        log = tmp_path / "airflow.log"
        with airflow_started(ran.variables, [run], log) as process:
            eventually(lambda: "running trigger in line" in log.read_text(), "it waits for Dagster", seconds=120)
            nobody.accept()  # it has asked: before that it does what can only be interrupted a second time
            process.send_signal(signal.SIGTERM)
            try:
                code = process.wait(60)
            except subprocess.TimeoutExpired:
                pytest.fail(f"it outlives SIGTERM: {log.read_text()[-2000:]}")
    assert code == 128 + signal.SIGTERM
