"""The operators on an outbox: what they append, send again, maintain, audit and replay.

Run by `dag.test()` with Postgres and Kafka, in one process; the tests look at what came of it.
"""

import json
import os
import uuid
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from support.airflow_process import outbox_connection, run_airflow
from support.outbox import read_topic
from support.spark import jars_named, java_named

from harvest_lib.outbox import NativeTable, OutboxTable
from infra.platform.airflow import Airflow
from infra.platform.databases import own_database

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
FILL = """
INSERT INTO outbox (kafka_topic, kafka_key, kafka_value)
SELECT %(topic)s, 'k' || n %% 10, repeat('v', %(size)s) FROM generate_series(1, %(count)s) AS n
"""
DAGS = """
import json
from datetime import datetime, timedelta
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from airflow.sdk import Asset, dag, task
from airflow.sdk.exceptions import AirflowException
from harvest_lib.airflow.hooks.outbox import HarvestHook
from harvest_lib.airflow.operators.append import OutboxAppendOperator
from harvest_lib.airflow.operators.audit import OutboxAuditOperator
from harvest_lib.airflow.operators.outbox import HarvestDrainOperator
from harvest_lib.airflow.operators.parked import ParkRetryOperator
from harvest_lib.airflow.operators.replay import ReplayOperator
from harvest_lib.airflow.operators.segments import SegmentsOperator
from harvest_lib.airflow.sensors.outbox import AuditPassedSensor

CONF = "{{ dag_run.conf['%s'] }}"
CONN = {"conn_id": CONF % "conn"}
TOPICS = {"topics": [CONF % "topic"]}
RECORD = {"topic": CONF % "topic", "key": "o-1", "headers": {"source": "airflow"}}

def fail_first(context, result):
    if context["ti"].try_number == 1:
        raise AirflowException("the answer is lost")

@dag(dag_id="proves")
def proves():
    appended = OutboxAppendOperator(
        task_id="append", retries=1, post_execute=fail_first, **CONN,
        rows={"orders": [{"id": 2, "note": {"gift": True}}]},
        sql=["INSERT INTO orders VALUES (1, %(total)s)", "INSERT INTO orders VALUES (3, %(total)s)",
             "CREATE SCHEMA other", "CREATE TABLE other.outbox (LIKE outbox INCLUDING ALL)", "SET search_path = other"],
        parameters={"total": 7},
        records=[RECORD | {"value": {"total": 7}}, RECORD | {"value": None}],
    )
    later = OutboxAppendOperator(
        task_id="append_json", **CONN, once=False,
        records='[{"topic": "{{ dag_run.conf.topic }}", "key": "k", "value": {{ [1, 2] | tojson | tojson }}}]',
    )
    early = OutboxAuditOperator(task_id="early", **CONN, **TOPICS, max_backlog_age=timedelta(0))
    drained = HarvestDrainOperator(task_id="drain", **CONN, trigger_rule="all_done")
    audited = OutboxAuditOperator(task_id="audit", **CONN, **TOPICS, outlets=[Asset("orders_proven")])
    passed = [
        AuditPassedSensor(task_id=kind, **CONN, **TOPICS, since="{{ dag_run.start_date }}", poke_interval=0.2,
                          deferrable=kind == "deferred", timeout=60) for kind in ("deferred", "poked")
    ]
    late = AuditPassedSensor(task_id="late", **CONN, **TOPICS, deferrable=True, poke_interval=0.2, timeout=2)
    appended >> later >> early >> drained >> audited >> [*passed, late]

@dag(dag_id="loses")
def loses():
    claimed = "SELECT id, kafka_key, kafka_topic FROM outbox UNION ALL SELECT 9000000, 'gone', '" + CONF % "topic" + "'"
    drained = HarvestDrainOperator(task_id="drain", **CONN)
    audited = OutboxAuditOperator(task_id="audit", **CONN, **TOPICS, committed=claimed, retries=1)
    passed = AuditPassedSensor(task_id="passed", **CONN, **TOPICS, since="{{ dag_run.start_date }}", deferrable=True,
                               timeout=60, retries=1, trigger_rule="all_done")
    drained >> audited >> passed

@dag(dag_id="refuses")
def refuses():
    row = {"rows": {"orders": [{"id": 3}]}, "retries": 1}
    OutboxAppendOperator(task_id="topic", **CONN, **row, records=[RECORD | {"value": "v", "topic": "no topic"}])
    OutboxAppendOperator(task_id="field", **CONN, **row, records=[RECORD | {"payload": "v"}])
    OutboxAppendOperator(task_id="table", retries=1, **CONN, records=[RECORD | {"value": "v"}],
                         sql="INSERT INTO no_such_table SELECT 1")
    OutboxAppendOperator(task_id="commits", **CONN, retries=1, records=[RECORD | {"value": "v"}],
                         sql="CREATE TABLE IF NOT EXISTS left_over (id int); COMMIT")
    OutboxAppendOperator(task_id="percent", **CONN, **row, sql="SELECT '%', %(n)s", parameters={"n": 1})
    OutboxAppendOperator(task_id="empty_row", **CONN, retries=1, rows={"orders": [{}]})
    OutboxAppendOperator(task_id="no_rows", **CONN, retries=1, rows="[1]")
    OutboxAppendOperator(task_id="no_records", **CONN, retries=1, records="null")
    dated = RECORD | {"value": {"at": datetime(2026, 1, 1)}}
    OutboxAppendOperator(task_id="no_json", **CONN, retries=1, records=[dated])
    OutboxAuditOperator(task_id="no_topics", **CONN, topics=[], retries=1)
    ParkRetryOperator(task_id="nobody", **CONN, topic="{{ '' }}", retries=1)
    ParkRetryOperator(task_id="no_ids", **CONN, ids="4711, 4712", retries=1)
    OutboxAuditOperator(task_id="nothing", **CONN, topics=["{{ dag_run.conf['empty'] }}"], retries=1)
    OutboxAuditOperator(task_id="no_topic", **CONN, topics=["no_such_topic"], retries=0)

@task
def allow(servers, topic):
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[
        ConfigEntry("max.message.bytes", "100000", incremental_operation=AlterConfigOpType.SET)])
    admin = AdminClient({"bootstrap.servers": servers})
    admin.incremental_alter_configs([resource])[resource].result(60)

@dag(dag_id="parks")
def parks():
    first = HarvestDrainOperator(task_id="first", **CONN)
    again = ParkRetryOperator(task_id="again", **CONN, topic=CONF % "topic")
    nothing = ParkRetryOperator(task_id="nothing", **CONN)
    then = HarvestDrainOperator(task_id="then", **CONN)
    audit = OutboxAuditOperator(task_id="audit", **CONN, **TOPICS)
    first >> audit
    first >> allow(CONF % "servers", CONF % "topic") >> again >> then >> nothing

@dag(dag_id="maintains")
def maintains():
    drained = HarvestDrainOperator(task_id="drain", **CONN)
    kept = SegmentsOperator(task_id="segments", ahead=6, archive=CONF % "archive", drop=True, keep=timedelta(0), **CONN)
    again = SegmentsOperator(task_id="again", ahead=6, archive=CONF % "archive", **CONN)
    drained >> kept >> again

@dag(dag_id="by_spark")
def by_spark():
    audited = OutboxAuditOperator(task_id="audit", **CONN, **TOPICS, engine="spark")
    replayed = ReplayOperator(task_id="replay", **CONN, subscription="v2", archive="",
                              topics=[CONF % "topic" + "=" + CONF % "to"])
    unknown = ReplayOperator(task_id="unknown", **CONN, subscription="v3", topics={"nothing": "nowhere"}, retries=1)
    HarvestDrainOperator(task_id="drain", **CONN) >> audited >> [replayed, unknown]

@dag(dag_id="two")
def two():
    for name in ("two", "other"):
        one = {"conn_id": CONF % name}
        record = {"topic": CONF % "topic", "key": name, "value": name}
        appended = OutboxAppendOperator(task_id=f"append_{name}", **one, records=[record])
        appended >> HarvestDrainOperator(task_id=f"drain_{name}", **one)

for each in (two, proves, loses, refuses, parks, maintains, by_spark):
    each()
"""


@pytest.fixture(scope="module")
def ran(stack, admin, tmp_path_factory):
    """Return the ends of all runs by the DAG, and where they ran."""
    home = tmp_path_factory.mktemp("airflow")
    parts = ("airflow", "proves", "loses", "refuses", "parks", "maintains", "by_spark", "two", "other")
    names = {part: f"{part}_{uuid.uuid4().hex[:8]}" for part in parts}
    dsns = {part: own_database(stack.dsn, name, password_file=home / name) for part, name in names.items()}
    topics = [NewTopic(f"{name}{more}", 2) for name in names.values() for more in ("", ".to", ".empty")]
    for made in admin.create_topics(topics).values():
        made.result(60)
    small = ConfigResource(
        ResourceType.TOPIC,
        names["parks"],
        incremental_configs=[ConfigEntry("max.message.bytes", "3000", incremental_operation=AlterConfigOpType.SET)],
    )
    admin.incremental_alter_configs([small])[small].result(60)
    for part in parts[1:]:
        with psycopg.connect(dsns[part]) as connection:
            table = NativeTable(outbox=OutboxTable.parse("outbox"), segment_size=100)
            table.create(connection)
            connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY, total int, note jsonb)")
            counts = {"loses": 10, "by_spark": 200, "maintains": 250, "parks": 5}
            values = {"topic": names[part], "count": counts.get(part, 0), "size": 5_000 if part == "parks" else 10}
            connection.execute(FILL, values)
    made = Airflow(home)
    made.prepare()
    (home / "own_dags").mkdir()
    (home / "own_dags" / "own.py").write_text(DAGS)
    with jars_named(), java_named():
        variables = made.environment(dsns["airflow"], {**os.environ, "PYTHONPATH": str(ROOT)})
    variables["AIRFLOW__CORE__DAGS_FOLDER"] = str(home / "own_dags")
    made.migrate(variables)
    servers = {"bootstrap_servers": stack.bootstrap_servers}
    connections = {part: outbox_connection(dsns[part], leader_group_id=names[part], **servers) for part in parts[1:]}
    runs = []
    for part in parts[1:-2]:
        named = {"topic": names[part], "to": f"{names[part]}.to", "empty": f"{names[part]}.empty"}
        places = {"archive": str(home / "archive"), "servers": stack.bootstrap_servers}
        runs.append({"dag_id": part, "conf": {"conn": part, **named, **places}, "variables": {}})
    runs.append({"dag_id": "two", "conf": {"two": "two", "other": "other", "topic": names["two"]}, "variables": {}})
    imported, ends = run_airflow(variables, runs, connections=connections)
    assert imported["errors"] == {}
    return SimpleNamespace(names=names, dsns=dsns, **dict(zip(parts[1:-1], ends, strict=True)))


def query(dsn, statement):
    with psycopg.connect(dsn) as connection:
        return connection.execute(statement).fetchall()


def tries(ran, dag_id):
    found = f"SELECT task_id, try_number FROM task_instance WHERE dag_id = '{dag_id}'"  # noqa: S608 - ours
    return dict(query(ran.dsns["airflow"], found))


def test_rows_and_records_are_committed_once_by_all_tries_of_a_task(ran, bootstrap_servers):
    assert ran.proves["tasks"]["append"] == "success", ran.proves["log"][-4000:]
    assert ran.proves["returned"]["append"] == {"records": 2, "rows": 1, "appended": False}  # the second try
    assert query(ran.dsns["proves"], "SELECT * FROM orders ORDER BY id") == [
        (1, 7, None),
        (2, None, {"gift": True}),
        (3, 7, None),
    ]
    found = read_topic(bootstrap_servers, ran.names["proves"], isolation="read_committed")
    assert sorted((each.key, each.value or "") for each in found) == [
        ("k", "[1, 2]"),
        ("o-1", ""),
        ("o-1", '{"total":7}'),
    ]
    assert ran.proves["returned"]["drain"]["records"] == 3


def test_an_audit_proves_the_delivery_and_tells_its_numbers(ran):
    assert ran.proves["tasks"]["audit"] == "success", ran.proves["log"][-4000:]
    numbers = ran.proves["returned"]["audit"]
    assert (numbers["committed"], numbers["records"], numbers["lost"]) == (3, 3, 0)
    ((extra,),) = query(ran.dsns["airflow"], "SELECT extra FROM asset_event")
    extra = extra if isinstance(extra, dict) else json.loads(extra)
    assert {name: extra[name] for name in ("committed", "lost", "topics")} == {
        "committed": 3,
        "lost": 0,
        "topics": [ran.names["proves"]],
    }
    assert ran.proves["tasks"]["early"] == "failed"
    assert "3 committed records are not delivered" in ran.proves["log"]
    assert (extra["proved"], extra["backlog_records"]) == (3, 0)
    assert extra["audit_id"] == f"proves/{ran.proves['run_id']}/audit"


def test_a_sensor_waits_for_an_audit_that_began_after_a_time(ran):
    for kind in ("deferred", "poked"):
        assert ran.proves["returned"][kind]["committed"] == "3"
    assert ran.proves["tasks"]["late"] == "failed", "there was no audit since the sensor began"
    assert f"no audit of {ran.names['proves']} has passed in the given time" in ran.proves["log"]


def test_an_audit_that_finds_a_record_lost_fails_at_once_and_names_the_numbers(ran):
    assert ran.loses["tasks"] == {"drain": "success", "audit": "failed", "passed": "failed"}
    assert tries(ran, "loses") == dict.fromkeys(ran.loses["tasks"], 1)
    log = ran.loses["log"]
    assert "the audit found 1 lost" in log
    place = f"harvest_audit.lost WHERE audit_id IN ('loses/{ran.loses['run_id']}/audit')"
    listed = f"SELECT * FROM {place}"  # noqa: S608 - the text of the message
    assert listed in log
    assert [str(row[0]) for row in query(ran.dsns["loses"], listed.replace("*", "record"))] == ["9000000"]


def test_what_is_refused_commits_nothing_and_is_not_tried_again(ran):
    assert set(ran.refuses["tasks"].values()) == {"failed"}
    assert tries(ran, "refuses") == dict.fromkeys(ran.refuses["tasks"], 1)
    assert query(ran.dsns["refuses"], "SELECT count(*) FROM orders") == [(0,)]
    assert query(ran.dsns["refuses"], "SELECT count(*) FROM outbox") == [(0,)]
    log = ran.refuses["log"]
    for cause in (
        "it has topic, key, headers, payload",
        'relation "no_such_table" does not exist',
        "Postgres refused a statement or a row of this task",
        "a statement of `sql` has ended the transaction",
        "with parameters a % is written %%",
        "rows are no mapping of tables to lists of rows",
        "records are no list",
        "cannot be written as JSON",
        "no topic is named",
        "topic is empty",
        "ids are no numbers: '4711, 4712'",
        "the audit found no committed record",
        "no_such_topic",
        "no topic",
    ):
        assert cause in log


def test_parked_records_are_sent_again(ran, bootstrap_servers):
    assert ran.parks["tasks"].pop("audit") == "failed"
    assert "5 committed records are parked, so they are not delivered" in ran.parks["log"]
    assert set(ran.parks["tasks"].values()) == {"success"}, ran.parks["log"][-4000:]
    first = ran.parks["returned"]["first"]
    assert (first["records"], first["parked"]) == (0, 5)
    assert "5 records are parked, so they are not delivered: " in ran.parks["log"]
    assert ran.parks["returned"]["then"]["parked"] == 0
    assert ran.parks["returned"]["again"]["parked"] == 5
    assert ran.parks["returned"]["nothing"]["parked"] == 0
    assert len(read_topic(bootstrap_servers, ran.names["parks"], isolation="read_committed")) == 5


def test_segments_are_created_archived_and_dropped(ran):
    assert ran.maintains["state"] == "success", ran.maintains["log"][-4000:]
    done = ran.maintains["returned"]["segments"]
    assert len(done["archived"]) == len(done["dropped"]) == 2
    assert query(ran.dsns["maintains"], "SELECT count(*) FROM outbox") == [(51,)]
    partitions = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox'::regclass"
    assert query(ran.dsns["maintains"], partitions) == [(6 + 1,)], "six with an end, and the tail"
    assert ran.maintains["returned"]["again"] == {"created": 0, "archived": [], "dropped": [], "kept": ""}


def test_spark_audits_and_replays(ran, bootstrap_servers):
    assert ran.by_spark["tasks"] == {
        "drain": "success",
        "audit": "success",
        "replay": "success",
        "unknown": "failed",
    }, ran.by_spark["log"]
    assert ran.by_spark["returned"]["replay"]["records"] == 200
    assert len(read_topic(bootstrap_servers, f"{ran.names['by_spark']}.to", isolation="read_committed")) == 200


def test_a_dag_may_name_two_outboxes(ran, bootstrap_servers):
    assert ran.two["state"] == "success", ran.two["log"][-4000:]
    found = read_topic(bootstrap_servers, ran.names["two"], isolation="read_committed")
    assert sorted((each.key, each.value) for each in found) == [("other", "other"), ("two", "two")]
