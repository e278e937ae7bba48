"""The DAGs for real: imported by Airflow, and run by `dag.test()` with Postgres, Kafka, and a server that is asked as
Dagster is. They run in one process, which takes its time to begin; the tests look at what came of it."""

import json
import os
import signal
import socket
import subprocess
import threading
import uuid
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import NewTopic
from support.airflow_process import airflow_started, run_airflow
from support.dagster_stub import dagster_stub
from support.outbox import read_topic
from support.spark import jars_named, java_named
from support.waiting import eventually

from harvest_lib.outbox import NativeTable, OutboxTable
from infra.platform.airflow import Airflow, kafka_connections
from infra.platform.databases import own_database

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
DAGS = {
    "harvest_after_audit",
    "harvest_audit_on_message",
    "harvest_drain_after_batch",
    "harvest_flights_day",
    "harvest_hourly_maintenance",
    "harvest_nightly_audit",
    "harvest_order",
    "harvest_replay",
    "harvest_run_dagster_job",
    "harvest_topic_smoke_test",
    "harvest_watch_orders",
}
CONFIG = {"ops": {"load": {"config": {"month": 3}}}}


@contextmanager
def webhook(posted):
    """Serve a webhook; yield its address. What is posted is added to the list."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def ran(stack, admin, tmp_path_factory):
    """Yield the results of importing the DAGs and of running each, well and badly; and the servers they ran against."""
    home = tmp_path_factory.mktemp("airflow")
    names = [f"{part}_{uuid.uuid4().hex[:8]}" for part in ("airflow", "shop", "empty")]
    metadata, shop, empty = (own_database(stack.dsn, name, password_file=home / name) for name in names)
    topic = f"smoke_{names[0]}"
    for each in admin.create_topics([NewTopic(name, 1) for name in (topic, names[1], f"{names[1]}.v2")]).values():
        each.result(60)
    with psycopg.connect(shop) as connection:
        NativeTable(outbox=OutboxTable.parse("outbox")).create(connection)
    producer = Producer({"bootstrap.servers": stack.bootstrap_servers})
    producer.produce(topic, "not ours")
    producer.flush()
    made = Airflow(home)
    made.prepare()
    places = {"HARVEST_DSN": shop, "HARVEST_BOOTSTRAP_SERVERS": stack.bootstrap_servers, "HARVEST_TOPIC": names[1]}
    with jars_named(), java_named():
        known = {**os.environ, **kafka_connections(stack.bootstrap_servers), **places, "PYTHONPATH": str(ROOT)}
    variables = made.environment(metadata, {**known, "HARVEST_LEADER_GROUP_ID": names[1]})
    made.migrate(variables)

    def asked(dag_id, conf=None, **changes):
        return {"dag_id": f"harvest_{dag_id}", "conf": conf or {}, "variables": changes}

    posted = []
    with dagster_stub() as well, dagster_stub() as badly, dagster_stub() as idle, webhook(posted) as url:
        well.next_status = idle.next_status = "SUCCESS"
        well.partitions = {"flights_job": ["2013-01-30", "2013-01-31"]}
        idle.steps = []
        badly.next_status, badly.failure = "FAILURE", "column delay is of type text"
        secret = badly.url.replace("//", "//user:canary@")
        runs = {
            "job": asked(
                "run_dagster_job",
                {"job": "flights_job", "run_config": CONFIG, "partition": "2013-01-31"},
                DAGSTER_URL=well.url,
            ),
            "failing": asked("run_dagster_job", {"job": "flights_job", "partition": ""}, DAGSTER_URL=secret),
            "unknown": asked("run_dagster_job", {"job": "no_such_job"}, DAGSTER_URL=secret),
            "idle": asked("run_dagster_job", {"job": "flights_job", "partition": ""}, DAGSTER_URL=idle.url),
            "smoke": asked("topic_smoke_test", {"topic": topic}),
            "nothing": asked("nightly_audit"),
            "batch": asked("drain_after_batch"),
            "audit": asked("nightly_audit"),
            "on_message": asked("audit_on_message"),
            "replay": asked("replay", {"subscription": "v2", "from": names[1], "to": f"{names[1]}.v2"}),
            "maintenance": asked("hourly_maintenance", ALERT_URL=url),
            "unmaintained": asked("hourly_maintenance", ALERT_URL=url, HARVEST_DSN=empty),
        }
        imported, ends = run_airflow(variables, list(runs.values()))
        yield SimpleNamespace(
            variables=variables,
            asked=asked,
            imported=imported,
            topic=topic,
            well=well,
            badly=badly,
            idle_dagster=idle,
            posted=posted,
            shop=names[1],
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
    url = f"{ran.well.url}/runs/run-1"
    assert ran.job["returned"]["dagster_job"] == {"run_id": "run-1", "url": url, "assets": []}
    (run,) = ran.well.runs.values()
    assert run["config"] == CONFIG
    assert {tag["key"]: tag["value"] for tag in run["tags"]} == {
        "airflow/task": f"harvest_run_dagster_job/{ran.job['run_id']}/dagster_job/2",
        "airflow/try": "1",
        "dagster/partition": "2013-01-31",
    }


def test_a_failed_dagster_run_is_told_in_the_tasks_log_and_each_try_starts_one(ran):
    assert ran.failing["state"] == "failed"
    assert "flights: column delay is of type text" in ran.failing["log"], ran.failing["log"][-6000:]
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


def test_a_batch_is_committed_delivered_and_audited(ran, bootstrap_servers):
    assert ran.batch["state"] == "success", ran.batch["log"][-4000:]
    assert ran.batch["returned"]["deliver"]["records"] == 1
    for run in (ran.audit, ran.on_message):
        assert run["tasks"] == {"audit": "success"}, run["log"][-4000:]
        assert run["returned"]["audit"]["committed"] == 1
    (record,) = read_topic(bootstrap_servers, ran.shop, isolation="read_committed")
    assert json.loads(record.value) == {"run": ran.batch["run_id"]}


def test_an_audit_that_compared_nothing_is_not_taken_for_a_good_one(ran):
    assert ran.nothing["tasks"] == {"audit": "failed"}
    assert "the audit found no committed record" in ran.nothing["log"]


def test_the_parameters_name_what_is_replayed(ran, bootstrap_servers):
    assert ran.replay["tasks"] == {"replay": "success"}, ran.replay["log"][-4000:]
    assert ran.replay["returned"]["replay"]["records"] == 1
    assert len(read_topic(bootstrap_servers, f"{ran.shop}.v2", isolation="read_committed")) == 1


def test_an_alert_is_posted_if_a_task_fails(ran):
    assert ran.maintenance["tasks"] == {"segments": "success"}, ran.maintenance["log"][-4000:]
    assert ran.unmaintained["tasks"] == {"segments": "failed"}
    (alert,) = ran.posted
    assert alert["text"].startswith("harvest_hourly_maintenance/segments failed: ")
    assert "next step: " in alert["text"]


def test_a_dagster_run_without_a_step_fails_the_task_and_is_not_started_again(ran):
    assert ran.idle["tasks"] == {"dagster_job": "failed"}
    assert "succeeded and ran no step" in ran.idle["log"], ran.idle["log"][-6000:]
    assert ran.idle_dagster.launched() == 1


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
            # It has asked: before that it does what can only be interrupted a second time. The connection stays open.
            with nobody.accept()[0]:
                process.send_signal(signal.SIGTERM)
                try:
                    code = process.wait(60)
                except subprocess.TimeoutExpired:
                    pytest.fail(f"it outlives SIGTERM: {log.read_text()[-2000:]}")
    assert code == 128 + signal.SIGTERM, log.read_text()[-3000:]
