"""Events of an outbox and of topics in a running Airflow, whose triggerer and scheduler are killed: a run for each
record, none missing, none twice."""

import json
import os
import random
import shutil
import threading
import time
import uuid
from itertools import count

import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic
from psycopg.conninfo import conninfo_to_dict
from support.airflow_services import ROOT, airflow_services
from support.outbox import harvest_config
from support.waiting import eventually

from harvest_lib.harvester.harvest import Harvest
from harvest_lib.outbox import NativeTable, OutboxTable
from harvest_lib.record.header import stamp
from harvest_lib.source import Selection
from harvest_lib.subscriptions.admin import Subscriptions
from infra.platform.databases import own_database

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]

RECORDS = int(os.environ.get("AIRFLOW_EVENT_RECORDS", "5000"))
KILLS = int(os.environ.get("AIRFLOW_EVENT_KILLS", "10"))
WRITE = "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES (%s, %s, 'secret') RETURNING id"
WATCHES = """
import os
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import Asset, AssetWatcher, dag
from harvest_lib.airflow.assets import outbox_asset, topic_asset
from harvest_lib.airflow.operators.event_runs import RunPerEventOperator
from harvest_lib.airflow.triggers.outbox_events import OutboxEventTrigger
from harvest_lib.airflow.sensors.outbox import OutboxDrainedSensor
from harvest_lib.airflow.triggers.topic_events import TopicEventTrigger

topics = os.environ["EVENT_TOPICS"].split(",")

def watched(name, trigger):
    return Asset(name=name, uri=f"x-test://{name}", watchers=[AssetWatcher(name=name, trigger=trigger)])

many = watched("many", OutboxEventTrigger(name="many", topics=["many"], start="beginning", poll_seconds=0.2))
topic = topic_asset("kafka.example.com:9092", topics[0], watchers=[
    AssetWatcher(name="topic", trigger=TopicEventTrigger(topics=topics[:1], kafka_config_id="watch"))])
keys = watched("keys", TopicEventTrigger(topics=topics[:1], kafka_config_id="watch", shows_keys=True))
lossy = watched("lossy", TopicEventTrigger(topics=topics[:1], kafka_config_id="lossy"))
nowhere = watched("nowhere", OutboxEventTrigger(name="nowhere", conn_id="nowhere"))
paused = watched("paused", OutboxEventTrigger(name="paused", topics=["paused"], start="beginning", poll_seconds=0.2))
refused = watched("refused", OutboxEventTrigger(name="refused", conn_id="refused"))

@dag(dag_id="watch", schedule=[many], catchup=False, max_active_runs=1)
def watch():
    RunPerEventOperator(task_id="start", asset=many, trigger_dag_id="one", retries=20)

@dag(dag_id="one", schedule=None, max_active_runs=2000)
def one():
    EmptyOperator(task_id="end")

@dag(dag_id="others", schedule=[topic, keys, lossy, nowhere, refused], catchup=False)
def others():
    EmptyOperator(task_id="end")

@dag(dag_id="pausable", schedule=[paused], catchup=False)
def pausable():
    EmptyOperator(task_id="end")

@dag(dag_id="waits", schedule="@once", catchup=False)
def waits():
    OutboxDrainedSensor(task_id="wait", conn_id="waiting", deferrable=True, poke_interval=0.5, timeout=1000)

watch()
one()
others()
pausable()
waits()
"""


def connection(conn_type, **parts):
    return json.dumps({"conn_type": conn_type, **parts})


@pytest.fixture(scope="module")
def shop(stack, tmp_path_factory):
    """The connection string of a database with an outbox."""
    home = tmp_path_factory.mktemp("shop")
    name = f"shop_{uuid.uuid4().hex[:8]}"
    dsn = own_database(stack.dsn, name, password_file=home / name)
    with psycopg.connect(dsn, autocommit=True) as made:
        for table in ("outbox", "waiting"):
            NativeTable(outbox=OutboxTable.parse(table)).create(made)
    yield dsn
    with psycopg.connect(stack.dsn, autocommit=True) as made:
        made.execute(f"DROP DATABASE {name} WITH (FORCE)")
        made.execute(f"DROP ROLE {name}")


@pytest.fixture(scope="module")
def airflow(stack, shop, admin, tmp_path_factory):
    """A running Airflow with the DAGs above, and with the example."""
    home = tmp_path_factory.mktemp("airflow")
    dags = home / "dags"
    dags.mkdir()
    (dags / "watches.py").write_text(WATCHES)
    shutil.copy(ROOT / "airflow_dags" / "one_run_per_order.py", dags)
    topics = [f"events_{uuid.uuid4().hex[:8]}"]
    for future in admin.create_topics([NewTopic(topic, 2) for topic in (*topics, topics[0] + ".waiting")]).values():
        future.result(60)
    found = conninfo_to_dict(shop)
    server = {"host": found["host"], "port": int(found["port"]), "schema": found["dbname"]}
    login = {"login": found["user"], "password": found["password"]}
    kafka = {"bootstrap.servers": stack.bootstrap_servers, "group.id": topics[0], "enable.auto.commit": "false"}
    kafka["session.timeout.ms"] = "6000"
    with psycopg.connect(shop, autocommit=True) as database:
        for _ in range(3):
            database.execute(WRITE.replace("outbox", "waiting"), (topics[0] + ".waiting", "k"))
    with airflow_services(
        stack,
        home,
        dags,
        EVENT_TOPICS=",".join(topics),
        AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL="5",
        AIRFLOW_CONN_OUTBOX_DEFAULT=connection("outbox", **server, **login),
        AIRFLOW_CONN_NOWHERE=connection("outbox", **server, **login, extra={"outbox_table": "nowhere"}),
        AIRFLOW_CONN_WAITING=connection("outbox", **server, **login, extra={"outbox_table": "waiting"}),
        AIRFLOW_CONN_REFUSED=connection("outbox", **server, login=login["login"], password="canary-wrong"),
        AIRFLOW_CONN_WATCH=connection("kafka", extra={**kafka, "auto.offset.reset": "earliest"}),
        AIRFLOW_CONN_LOSSY=connection("kafka", extra={**kafka, "auto.offset.reset": "latest"}),
    ) as services:
        services.topic, services.bootstrap_servers = topics[0], stack.bootstrap_servers
        services.start()
        eventually(
            lambda: services.query("SELECT count(*) FROM trigger WHERE triggerer_id IS NOT NULL")[0][0] >= 8,
            "the watchers are assigned",
            seconds=120,
        )
        yield services


def written(dsn, records, topic, *, writers=4, pause_seconds=0.0):
    """Commit records by several writers, some transactions long, some rolled back. Return the threads and the ids."""
    ids, numbers = [], count()

    def write(seed):
        draw = random.Random(seed)
        with psycopg.connect(dsn) as database:
            while next(numbers) * 2 < records:
                found = [database.execute(WRITE, (topic, "k")).fetchone()[0] for _ in range(2)]
                time.sleep(pause_seconds * (10 if draw.random() < 0.1 else 1))
                if draw.random() < 0.1:
                    database.rollback()
                    database.execute(WRITE, (topic, "rolled back"))
                    database.rollback()
                    found = [database.execute(WRITE, (topic, "k")).fetchone()[0] for _ in range(2)]
                database.commit()
                ids.extend(found)

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(writers)]
    for each in threads:
        each.start()
    return threads, ids


def records_of(events):
    """Return the subscription and the record of each id of an event."""
    ids = {*events}
    found = {(subscription, int(record)) for subscription, _, record in (each.split(":") for each in ids)}
    assert len(found) == len(ids), "a record has two ids"
    return found


def complete(airflow, dag_id, ids, subscription, seconds):
    """Wait until each record has a run, and all runs have ended; return the subscription and the record of each."""
    wanted = {(subscription, each) for each in ids}
    try:
        eventually(lambda: wanted <= records_of(airflow.runs(dag_id)), "a run for each record", seconds=seconds)
        eventually(lambda: set(airflow.runs(dag_id).values()) == {"success"}, "the runs end", seconds=seconds)
    except AssertionError:
        missing = wanted - records_of(airflow.runs(dag_id))
        raise AssertionError(f"{len(missing)} missing: {sorted(missing)[:20]}") from None
    return wanted


def test_the_example_has_one_run_for_each_order_whatever_is_killed(airflow, shop):
    eventually(lambda: subscribed(shop, "airflow_orders"), "the watcher has registered its subscription", seconds=120)
    threads, ids = written(shop, 8, "orders", writers=2)
    for each in threads:
        each.join()
    eventually(lambda: airflow.payloads("postgres://%"), "an event", seconds=60)
    airflow.kill("triggerer")
    airflow.kill("scheduler")
    more, late = written(shop, 4, "orders", writers=1)
    more[0].join()
    airflow.spawn("triggerer")
    airflow.spawn("scheduler")
    wanted = complete(airflow, "harvest_order", ids + late, "airflow_orders", 180)
    assert records_of(airflow.runs("harvest_order")) == wanted
    payloads = airflow.payloads("postgres://localhost:5432/shop/public/outbox")
    assert records_of(each["id"] for each in payloads) == wanted
    assert {tuple(each) for each in payloads} == {("id", "ids", "topics")}
    assert all(each["topics"] == ["orders"] for each in payloads)
    # Every event comes again, and then a new one: it alone has another run.
    with psycopg.connect(shop, autocommit=True) as database:
        outbox = OutboxTable.parse("outbox").placed(database)
        Subscriptions(database, outbox, Selection(table=outbox.identifier)).rewind("airflow_orders", to="beginning")
    eventually(lambda: len(airflow.payloads("postgres://%")) >= len(payloads) + len(wanted), "the events come again")
    threads, last = written(shop, 2, "orders", writers=1)
    threads[0].join()
    wanted |= complete(airflow, "harvest_order", last, "airflow_orders", 180)
    assert records_of(airflow.runs("harvest_order")) == wanted


def subscribed(dsn, name):
    with psycopg.connect(dsn) as database:
        return database.execute(
            "SELECT 1 FROM outbox_subscriptions WHERE subscription = %s AND leader_id IS NOT NULL", (name,)
        ).fetchone()


def produce(airflow, ids, key=b"k", foreign=0):
    """Produce a transaction of harvested messages and of others, which come last."""
    leader = uuid.uuid4()
    producer = Producer({"bootstrap.servers": airflow.bootstrap_servers, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions()
    producer.begin_transaction()
    for each in ids:
        producer.produce(airflow.topic, b"secret", key, partition=0, headers={"harvest": stamp(leader)(each)})
    for _ in range(foreign):
        producer.produce(airflow.topic, b"foreign", partition=0)
    producer.commit_transaction()


def committed(airflow):
    """Return the offsets that the watchers' group has committed, and the ends, of both partitions."""
    settings = {"bootstrap.servers": airflow.bootstrap_servers, "group.id": airflow.topic}
    consumer = Consumer(settings)
    places = [TopicPartition(airflow.topic, partition) for partition in range(2)]
    try:
        offsets = [each.offset for each in consumer.committed(places, timeout=30)]
        return offsets, [consumer.get_watermark_offsets(each, timeout=30)[1] for each in places]
    finally:
        consumer.close()


def is_committed(airflow):
    """Return True if the group has committed all but perhaps the mark at the end of a transaction."""
    return all(offset >= end - (end > 0) for offset, end in zip(*committed(airflow), strict=True))


def test_each_harvested_message_has_an_event_also_those_that_came_while_no_triggerer_ran(airflow, admin):
    eventually(lambda: min(committed(airflow)[0]) >= 0, "the group has begun", seconds=120)
    produce(airflow, [1, 2, 3], foreign=2)
    eventually(lambda: len(airflow.payloads("x-test://keys")) >= 3, "the events", seconds=120)
    eventually(lambda: is_committed(airflow), "the foreign messages hold up no commit", seconds=120)
    ((_, group),) = admin.describe_consumer_groups([airflow.topic]).items()
    assert len(group.result(30).members) == 1, "the watchers share a consumer"
    airflow.kill("triggerer")
    produce(airflow, [4, 5], foreign=1)
    airflow.spawn("triggerer")
    wanted = [f"{airflow.topic}:{each}" for each in (1, 2, 3, 4, 5)]
    for asset in ("x-test://keys", f"kafka://kafka.example.com:9092/{airflow.topic}"):
        eventually(lambda asset=asset: len(airflow.payloads(asset)) >= 5, f"the events of {asset}", seconds=120)
        assert [each["id"] for each in airflow.payloads(asset)] == wanted
    eventually(lambda: is_committed(airflow), "all is committed", seconds=120)
    first = airflow.payloads("x-test://keys")[0]
    assert (first["topic"], first["partition"], first["outbox_id"], first["key"]) == (airflow.topic, 0, 1, "k")
    assert "key" not in airflow.payloads("kafka://%")[0]
    assert airflow.query("SELECT count(*) FROM asset_event WHERE extra::text LIKE '%secret%'") == [(0,)]


def test_errors_of_watchers_are_told_with_the_next_step_and_end_no_watcher(airflow):
    steps = {
        "nowhere": "harvest init",
        "refused": "check user and password",
        "lossy": '"auto.offset.reset": "earliest"',
    }
    for name, step in steps.items():
        eventually(lambda step=step: step in airflow.said("triggerer"), f"{name} is told: {step}", seconds=60)
    assert "canary" not in airflow.said("triggerer")
    assert "exited with error" not in airflow.said("triggerer"), "Airflow would start a watcher that ends at once"


def test_a_sensor_that_waits_holds_no_worker_and_needs_the_triggerer_only_to_go_on(airflow, shop):
    def state():
        ((found,),) = airflow.query("SELECT state FROM task_instance WHERE dag_id = 'waits'")
        return found

    eventually(lambda: state() == "deferred", "the sensor waits", seconds=120)
    assert not [each for each in airflow.tasks() if "waits" in each], "no process of a task"
    airflow.kill("triggerer")
    config = harvest_config(
        shop, airflow.bootstrap_servers, airflow.topic, outbox_table="waiting", delivery="sequenced"
    )
    assert Harvest(config).drain(60).records == 3
    assert state() == "deferred"
    airflow.spawn("triggerer")
    eventually(lambda: state() == "success", "the sensor goes on", seconds=120)


def test_a_dag_that_is_paused_while_events_are_stored_loses_none(airflow, shop):
    def watchers():
        return airflow.query(
            "SELECT 1 FROM asset_watcher t JOIN asset a ON a.id = t.asset_id WHERE a.uri = 'x-test://paused'"
        )

    eventually(watchers, "the watcher is there", seconds=120)
    threads, ids = written(shop, 600, "paused", pause_seconds=0.1)
    for _ in range(3):
        eventually(lambda: len(airflow.payloads("x-test://paused")) > 0, "events come", seconds=60)
        for is_paused in (True, False):
            airflow.query("UPDATE dag SET is_paused = %s WHERE dag_id = 'pausable' RETURNING dag_id", is_paused)
            eventually(
                lambda wanted=not is_paused: bool(watchers()) is wanted, "the watcher goes or comes", seconds=120
            )
    for each in threads:
        each.join()
    wanted = {("paused", each) for each in ids}

    def missing():
        return wanted - records_of(each["id"] for each in airflow.payloads("x-test://paused"))

    eventually(lambda: not missing(), "an event for each record", seconds=120)


@pytest.mark.long
@pytest.mark.timeout(5400)
def test_thousands_of_records_have_one_run_each_while_triggerer_and_scheduler_are_killed(
    airflow, shop, record_property
):
    began = time.monotonic()
    threads, ids = written(shop, RECORDS, "many", pause_seconds=0.02)
    draw = random.Random(7)
    for _ in range(KILLS):
        for name in ("triggerer", "scheduler"):
            time.sleep(draw.uniform(4, 14))
            airflow.kill(name)
            airflow.spawn(name)
    for each in threads:
        each.join()
    assert len(ids) >= RECORDS
    wanted = complete(airflow, "one", ids, "many", 3000)
    assert records_of(airflow.runs("one")) == wanted, "none twice: the ids of runs are those of records"
    payloads = airflow.payloads("x-test://many")
    assert records_of(each["id"] for each in payloads) == wanted
    for name, value in {
        "records": len(ids),
        "events": len(payloads),
        "watch_runs": len(airflow.runs("watch")),
        "seconds": round(time.monotonic() - began),
    }.items():
        record_property(name, value)
