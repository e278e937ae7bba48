"""The outbox in Airflow alone: connections of Airflow's database, tasks that harvest, and sensors that wait for it.

Run by `dag.test()` with Postgres and Kafka, in one process; the tests look at what came of it.
"""

import os
import uuid
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic, OffsetSpec
from support.airflow_process import airflow_started, outbox_connection, run_airflow
from support.dagster_stub import dagster_stub
from support.outbox import read_topic
from support.waiting import eventually
from support.walkthrough import blocks

from harvest_lib.outbox import NativeTable, OutboxTable
from infra.platform.airflow import Airflow
from infra.platform.databases import own_database

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
CANARY = "canary-5e1d"
MANY = 300_000
FILL = """
INSERT INTO outbox (kafka_topic, kafka_key, kafka_value)
SELECT %(topic)s, 'k' || n %% 100, n::text FROM generate_series(1, %(count)s) AS n
"""
DAGS = """
import time
from datetime import timedelta
from threading import Thread, Timer
from unittest import mock
from airflow.sdk import dag, task
from harvest_lib.airflow.hooks.outbox import HarvestHook
from harvest_lib.airflow.operators.dagster import DagsterJobOperator
from harvest_lib.airflow.operators.outbox import HarvestDrainOperator
from harvest_lib.airflow.sensors.outbox import OutboxDrainedSensor
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.leadership.lock_session import LockSession
from harvest_lib.outbox import OutboxTable

WAITS = {"poke_interval": 0.2, "timeout": 3, "retries": 1}

@dag(dag_id="delivers")
def delivers():
    drained = HarvestDrainOperator(task_id="drain", conn_id="{{ dag_run.conf['conn'] }}")
    waits = [
        OutboxDrainedSensor(task_id=f"{until}_{kind}", conn_id="{{ dag_run.conf['conn'] }}", until=until, **WAITS,
                            deferrable=kind == "deferred")
        for until in ("start", "empty") for kind in ("deferred", "poked")
    ]
    late = OutboxDrainedSensor(task_id="until_a_time", conn_id="{{ dag_run.conf['conn'] }}", deferrable=True,
                               until="{{ dag_run.start_date }}", **WAITS)
    drained >> waits + [late]

@dag(dag_id="waits")
def waits():
    for kind in ("deferred", "poked", "skipped"):
        OutboxDrainedSensor(task_id=kind, conn_id="{{ dag_run.conf['conn'] }}", until="start", **WAITS,
                            deferrable=kind != "poked", soft_fail=kind == "skipped")

@task
def deliver_soon(conn_id):
    config = HarvestHook(conn_id).config()
    Timer(1.0, lambda: Harvest(config).drain(60)).start()

@dag(dag_id="follows")
def follows():
    deliver_soon("{{ dag_run.conf['conn'] }}") >> [
        OutboxDrainedSensor(task_id=until, conn_id="{{ dag_run.conf['conn'] }}", until=until, deferrable=True,
                            poke_interval=0.2, timeout=60) for until in ("start", "empty")]

@task
def count(conn_id):
    return HarvestHook(conn_id).waiting().records

@dag(dag_id="counts")
def counts():
    count("{{ dag_run.conf['conn'] }}") >> HarvestDrainOperator(task_id="drain", conn_id="{{ dag_run.conf['conn'] }}")

def end_soon(context):
    def end(task=context["task"]):
        while task._harvest is None or not task._harvest.delivered_records:
            time.sleep(0.001)
        task.on_kill()
    Thread(target=end, daemon=True).start()

@dag(dag_id="ends")
def ends():
    HarvestDrainOperator(task_id="drain", conn_id="{{ dag_run.conf['conn'] }}", pre_execute=end_soon)

@dag(dag_id="ends_at_once")
def ends_at_once():
    HarvestDrainOperator(task_id="drain", conn_id="{{ dag_run.conf['conn'] }}",
                         pre_execute=lambda context: context["task"].on_kill())

leaders = []

def lead(context):
    if not leaders:
        leaders.append(Harvest(HarvestHook("led").config(elects=True)))
        leaders[0].start()
        while not leaders[0].delivered_records:
            time.sleep(0.01)

@dag(dag_id="leaves")
def leaves():
    drained = HarvestDrainOperator(task_id="drain", conn_id="{{ dag_run.conf['conn'] }}", deferrable=True,
                                   report=timedelta(seconds=0.2), pre_execute=lead)
    @task
    def end():
        leaders[0].stop()
        return leaders[0].await_stopped(60)
    drained >> end()

held = []

def hold_the_lock(context):
    if held:
        return
    config = HarvestHook("stuck").config(elects=True)
    held.append(LockSession(config.data_source.conninfo(), config.leader_group_id, idle_timeout_seconds=60,
                            outbox=str(OutboxTable.parse(config.outbox_table))))
    assert held[0].try_lock()
    Timer(4.0, held[0].close).start()

class Impatient(HarvestDrainOperator):
    def _drain(self, **arguments):
        with mock.patch("harvest_lib.airflow.operators.outbox._TRIGGER_SECONDS", 0.5):
            return super()._drain(**arguments)

@dag(dag_id="succeeds_a_leader")
def succeeds_a_leader():
    Impatient(task_id="drain", conn_id="{{ dag_run.conf['conn'] }}", deferrable=True,
              report=timedelta(seconds=0.2), pre_execute=hold_the_lock)

@dag(dag_id="starts_a_job")
def starts_a_job():
    DagsterJobOperator(task_id="job", job_name="flights_job", conn_id="{{ dag_run.conf['conn'] }}")

delivers()
waits()
follows()
counts()
ends()
ends_at_once()
leaves()
succeeds_a_leader()
starts_a_job()
"""


@pytest.fixture(scope="module")
def ran(stack, admin, tmp_path_factory):
    """Return the ends of all runs by the connection that each was given, and where they ran."""
    home = tmp_path_factory.mktemp("airflow")
    parts = ("airflow", "shop", "waiting", "later", "page", "ended", "killed", "led", "stuck", "lost", "empty")
    names = [f"{part}_{uuid.uuid4().hex[:8]}" for part in parts]
    metadata, *databases = (own_database(stack.dsn, name, password_file=home / name) for name in names)
    counts = (500, 3, 3, 10, MANY, MANY, MANY, 700, 1)
    for made in admin.create_topics([NewTopic(name, 2) for name in names[1:9]]).values():
        made.result(60)
    for dsn, name, count in zip(databases, names[1:], counts, strict=False):  # the topic of `lost` is not made
        with psycopg.connect(dsn) as connection:
            NativeTable(outbox=OutboxTable.parse("outbox")).create(connection)
            connection.execute(FILL, {"topic": name, "count": count})
    made = Airflow(home)
    made.prepare()
    (home / "own_dags").mkdir()
    (home / "own_dags" / "own.py").write_text(DAGS)
    page_dag, *_ = blocks("docs/airflow.md", under="## Airflow without Dagster")
    (home / "own_dags" / "page.py").write_text(page_dag.text)
    variables = made.environment(metadata, {**os.environ, "PYTHONPATH": str(ROOT)})
    variables["AIRFLOW__CORE__DAGS_FOLDER"] = str(home / "own_dags")
    made.migrate(variables)
    kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": stack.bootstrap_servers, "group.id": "airflow"}}
    shop, waiting, later, page, ended, killed, led, stuck, lost, empty = (
        outbox_connection(dsn, kafka_conn_id="brokers", leader_group_id=name)
        for dsn, name in zip(databases, names[1:], strict=True)
    )
    with dagster_stub() as stub:
        stub.next_status = "SUCCESS"
        host, _, port = stub.url.partition("://")[2].partition(":")
        connections = {
            "brokers": kafka,
            "shop": shop,
            "waiting": waiting,
            "shop_outbox": page,
            "ended": ended,
            "killed": killed,
            "led": led,
            "stuck": stuck,
            "lost": lost,
            "later": {
                "conn_type": "outbox",
                "extra": {**later["extra"], "postgres_conn_id": "later_postgres", "settings": {"name": "of-airflow"}},
            },
            "later_postgres": {
                **later,
                "conn_type": "postgres",
                "extra": {"sslmode": "disable", "cursor": "dictcursor"},
            },
            "no_table": empty,
            "refused": {**shop, "password": CANARY},
            "misspelled": {**shop, "extra": {"kafka_con_id": "brokers"}},
            "acme": {"conn_type": "dagster", "host": host, "port": int(port), "extra": {"token": CANARY}},
        }
        asked = {
            "shop": "delivers",
            "waiting": "waits",
            "later": "follows",
            "acme": "starts_a_job",
            "shop_outbox": "orders_batch",
            "ended": "ends",
            "killed": "ends_at_once",
            "led": "leaves",
            "stuck": "succeeds_a_leader",
            "lost": "counts",
            **dict.fromkeys(("no_table", "refused", "misspelled", "nowhere", "brokers", "outbox_default"), "waits"),
        }
        own = {"outbox_default": {"HARVEST_DSN": databases[1]}}
        runs = [
            {"dag_id": dag_id, "conf": {"conn": conn}, "variables": own.get(conn, {})} for conn, dag_id in asked.items()
        ]
        runs.append({"dag_id": "counts", "conf": {"conn": "ended"}, "variables": {}})
        imported, ends = run_airflow(variables, runs, connections=connections)
    return SimpleNamespace(
        imported=imported,
        topics=dict(zip(parts[1:], names[1:], strict=True)),
        variables=variables,
        **dict(zip([*asked, "ended_again"], ends, strict=True)),
    )


def test_a_task_delivers_the_outbox_and_sensors_find_it_delivered(ran, bootstrap_servers):
    assert ran.imported["errors"] == {}
    assert set(ran.shop["tasks"].values()) == {"success"}, ran.shop["log"]
    assert ran.shop["returned"]["drain"]["records"] == 500
    assert "harvester_stopped delivered=500" in ran.shop["log"], "the fields of the harvester's log are shown"
    assert len(read_topic(bootstrap_servers, ran.topics["shop"])) == 500
    for until in ("start", "empty"):
        for kind in ("deferred", "poked"):
            found = ran.shop["returned"][f"{until}_{kind}"]
            assert (found["waiting"], bool(found["delivered_until"])) == ("0", True)


def test_the_dag_of_the_page_delivers_and_proves_it(ran):
    assert ran.shop_outbox["tasks"] == {"deliver": "success", "delivered": "success"}, ran.shop_outbox["log"][-4000:]
    assert ran.shop_outbox["returned"]["deliver"]["records"] == 10


def test_a_task_that_is_ended_stops_in_order_and_the_next_run_goes_on(ran, bootstrap_servers):
    assert ran.ended["tasks"] == {"drain": "failed"}
    assert "the task was ended before the outbox was empty: the next run goes on" in ran.ended["log"]
    left = ran.ended_again["returned"]
    assert 0 < left["count"] == left["drain"]["records"] < MANY
    check_each_once_in_order(bootstrap_servers, ran.topics["ended"])


def test_a_task_that_is_ended_before_it_delivers_delivers_nothing(ran):
    assert ran.killed["tasks"] == {"drain": "failed"}
    assert "delivered 0 records" in ran.killed["log"]


def test_a_task_that_does_not_lead_waits_in_the_triggerer_for_the_leader(ran, bootstrap_servers):
    assert ran.led["tasks"] == {"drain": "success", "end": "success"}, ran.led["log"][-4000:]
    assert ran.led["returned"]["drain"]["records"] == 0
    assert "another process leads: this task waits in the triggerer" in ran.led["log"]
    check_each_once_in_order(bootstrap_servers, ran.topics["led"])


def test_a_task_whose_leader_delivers_nothing_leads_after_it(ran):
    assert ran.stuck["tasks"] == {"drain": "success"}, ran.stuck["log"][-4000:]
    assert ran.stuck["log"].count("another process leads: this task waits in the triggerer") >= 1
    assert ran.stuck["returned"]["drain"]["records"] == 700


@pytest.mark.long
def test_a_task_that_is_killed_ten_times_loses_and_repeats_nothing(ran, bootstrap_servers, admin, tmp_path):
    run = {"dag_id": "counts", "conf": {"conn": "killed"}, "variables": {}}
    topic = ran.topics["killed"]

    def written():
        asked = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(2)}
        return sum(each.result(60).offset for each in admin.list_offsets(asked).values())

    for number in range(10):
        before, log = written(), tmp_path / f"{number}.log"
        with airflow_started(ran.variables, [run], log):  # which kills it in the end
            eventually(lambda: written() > before, "it delivers", seconds=120)  # noqa: B023
    assert written() < MANY, "it was killed while it delivered"
    _, (end,) = run_airflow(ran.variables, [run])
    assert end["state"] == "success", end["log"][-4000:]
    check_each_once_in_order(bootstrap_servers, topic)


def check_each_once_in_order(bootstrap_servers, topic):
    """Check that readers of committed records see each of many records once, and the records of a key in order."""
    values = defaultdict(list)
    for record in read_topic(bootstrap_servers, topic, isolation="read_committed"):
        values[record.key].append(int(record.value))
    assert Counter(map(len, values.values())) == {MANY // 100: 100}
    for found in values.values():
        assert found == sorted(set(found))


def test_a_topic_that_is_missing_is_named_before_anything_is_delivered(ran):
    assert ran.lost["tasks"] == {"count": "success", "drain": "failed"}
    assert ran.lost["returned"]["count"] == 1
    assert ran.topics["lost"] in ran.lost["log"]
    assert "harvest topics create " in ran.lost["log"]


def test_a_trigger_sees_the_delivery_of_another_process(ran):
    assert set(ran.later["tasks"].values()) == {"success"}, ran.later["log"][-4000:]
    assert ran.later["returned"]["start"]["waiting"] == "0"
    assert "Pausing task as DEFERRED" in ran.later["log"]


def test_a_connection_of_airflows_database_is_found_by_a_trigger_of_dag_test(ran):
    assert ran.acme["tasks"] == {"job": "success"}, ran.acme["log"][-4000:]
    assert CANARY not in ran.acme["log"]


def test_a_sensor_that_waits_too_long_says_what_waits(ran):
    assert ran.waiting["tasks"] == {"deferred": "failed", "poked": "failed", "skipped": "skipped"}
    assert "the outbox is not delivered in the given time: 3 records wait" in ran.waiting["log"]
    assert "check with `harvest status` who leads" in ran.waiting["log"]


def test_without_the_default_connection_the_variables_are_used(ran):
    assert "the outbox is not delivered in the given time: 3 records wait" in ran.outbox_default["log"]


def test_what_no_retry_changes_fails_at_once_with_cause_and_next_step(ran):
    assert "harvest init" in ran.no_table["log"]
    assert "Postgres refused the login" in ran.refused["log"]
    assert "has the extra fields kafka_con_id" in ran.misspelled["log"]
    assert "the Airflow connection brokers is of type 'kafka', not 'outbox'" in ran.brokers["log"]
    assert "airflow connections add nowhere --conn-type outbox" in ran.nowhere["log"]
    for ended in (ran.no_table, ran.misspelled, ran.brokers, ran.refused, ran.nowhere):
        assert ended["state"] == "failed"
        assert CANARY not in ended["log"]
