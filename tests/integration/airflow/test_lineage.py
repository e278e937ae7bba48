"""What tasks read and wrote, as Airflow's OpenLineage provider sends it, in an environment of its own."""

import json
import os
import subprocess
import uuid

import psycopg
import pytest
from confluent_kafka.admin import NewTopic
from psycopg.conninfo import conninfo_to_dict
from support.airflow_process import outbox_connection, run_airflow
from support.installed import build, find_uv, install

from harvest_lib.outbox import NativeTable, OutboxTable
from infra.platform.airflow import Airflow
from infra.platform.databases import own_database

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

DAG = """
from airflow.sdk import dag
from harvest_lib.airflow.operators.append import OutboxAppendOperator
from harvest_lib.airflow.operators.audit import OutboxAuditOperator
from harvest_lib.airflow.operators.outbox import HarvestDrainOperator

@dag(dag_id="shop")
def shop():
    topic = "{{ dag_run.conf['topic'] }}"
    appended = OutboxAppendOperator(task_id="append", conn_id="shop", rows={"orders": [{"id": 1}]},
                                    records=[{"topic": topic, "key": "k", "value": "v"}])
    drained = HarvestDrainOperator(task_id="drain", conn_id="shop")
    audited = OutboxAuditOperator(task_id="audit", conn_id="shop", topics=[topic])
    appended >> drained >> audited

shop()
"""


def test_the_outbox_joins_its_tables_and_topics(stack, admin, parts, tmp_path):
    uv = find_uv(parts)
    programs = install(uv, build(uv, tmp_path / "wheel"), tmp_path / "venv", "airflow")
    provider = ["--python", programs / "python", "apache-airflow-providers-openlineage", "apache-airflow==3.3.*"]
    subprocess.run([uv, "pip", "install", "--quiet", *provider], check=True)
    name = f"lineage_{uuid.uuid4().hex[:8]}"
    metadata, shop = (own_database(stack.dsn, each, password_file=tmp_path / each) for each in (f"{name}_of", name))
    admin.create_topics([NewTopic(name, 1)])[name].result(60)
    with psycopg.connect(shop) as connection:
        NativeTable(outbox=OutboxTable.parse("outbox")).create(connection)
        connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY)")
    made = Airflow(tmp_path)
    made.prepare()
    (tmp_path / "own_dags").mkdir()
    (tmp_path / "own_dags" / "own.py").write_text(DAG)
    variables = made.environment(metadata, {**os.environ})
    variables["AIRFLOW__CORE__DAGS_FOLDER"] = str(tmp_path / "own_dags")
    sent = tmp_path / "events.jsonl"
    transport = {"type": "file", "log_file_path": str(sent), "append": True}
    variables |= {"AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport), "AIRFLOW__OPENLINEAGE__NAMESPACE": "shop"}
    made.migrate(variables)
    connections = {"shop": outbox_connection(shop, leader_group_id=name, bootstrap_servers=stack.bootstrap_servers)}
    run = {"dag_id": "shop", "conf": {"topic": name}, "variables": {}}
    _, (end,) = run_airflow(variables, [run], python=programs / "python", connections=connections)
    assert end["state"] == "success", end["log"][-4000:]
    found = {}
    for event in map(json.loads, sent.read_text().splitlines()):
        if event["eventType"] == "COMPLETE" and "." in event["job"]["name"]:
            found[event["job"]["name"]] = tuple(
                sorted((each["namespace"], each["name"]) for each in event[side]) for side in ("inputs", "outputs")
            )
    place = conninfo_to_dict(shop)
    database = f"postgres://{place['host']}:{place['port']}"
    outbox, orders = ((database, f"{name}.public.{table}") for table in ("outbox", "orders"))
    topic = (f"kafka://{stack.bootstrap_servers}", name)
    assert found == {
        "shop.append": ([], [orders, outbox]),
        "shop.drain": ([outbox], [topic]),
        "shop.audit": ([topic, outbox], []),
    }
