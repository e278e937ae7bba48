"""The page for those who come from Debezium's outbox event router, typed beside the real connector."""

import json
from dataclasses import replace

import psycopg
import pytest
from confluent_kafka.admin import NewTopic
from support.outbox import read_topic
from support.waiting import eventually
from support.walkthrough import Block, Walkthrough, blocks, tools

from harvest_lib.local_stack.state import default_state
from tests.benchmarks.backlog import Servers
from tests.benchmarks.compare.debezium import Debezium
from tests.benchmarks.compare.peer import Place

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

PAGE = "docs/from-debezium.md"
TABLE = """
CREATE TABLE outboxevent (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL,
  type varchar(255) NOT NULL, payload jsonb)
"""
WRITE = """
INSERT INTO outboxevent SELECT gen_random_uuid(), 'order', 'o-' || n %% 7, 'made', jsonb_build_object('n', n)
FROM generate_series(%s::int, %s::int) n
"""
ROUTER = {
    "message.prefix.exclude.list": "harvest",
    "table.include.list": "public.outboxevent",
    "transforms.outbox.route.topic.replacement": "outbox.event.${routedByValue}",
    "transforms.outbox.table.fields.additional.placement": "type:header:eventType",
}
REWIND = "subscriptions rewind default --to now --yes -f harvest.yaml"
TOPIC = "outbox.event.order"


def contents(bootstrap_servers, topic):
    """Return key, value and event of each record, in the order of each key."""
    found = {}
    for record in read_topic(bootstrap_servers, topic, isolation="read_committed"):
        headers = {name: value for name, value in record.headers if name in ("id", "eventType")}
        found.setdefault(record.key, []).append((json.loads(record.value), headers))
    return found


def test_the_page_brings_the_same_records_in_the_same_order(dsn, bootstrap_servers, admin, tmp_path, group_id):
    admin.create_topics([NewTopic(TOPIC, 3)])[TOPIC].result(60)
    columns, switch = (each for each in blocks(PAGE) if each.language == "sql")
    (written,) = (each for each in blocks(PAGE) if each.language == "yaml")
    commands, comparison = blocks(PAGE, under="## Shadow run")
    addresses = {
        "host=db.example.com dbname=shop user=harvester": dsn,
        "kafka.example.com:9092": bootstrap_servers,
        "shop-outbox": group_id,
        "--partitions 6": "--partitions 3",
    }
    reader = Walkthrough(tmp_path, addresses, tools(tmp_path / "bin"))
    servers = Servers(dsn=dsn, bootstrap_servers=bootstrap_servers, topic=f"connect-{group_id}")
    debezium = Debezium(connector={**Debezium().connector, **ROUTER})
    debezium.build(default_state())
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(TABLE)
        connection.execute("CREATE TABLE debezium_outbox (id int)")  # dropped by nobody; the harness looks for it
        with debezium.run(Place(servers=servers, folder=tmp_path, pids=()), members=1):
            connection.execute(WRITE, (1, 50))
            connection.execute(columns.text)
            connection.execute(WRITE, (51, 100))
            reader.type(replace(written, file="harvest.yaml"))
            reader.type(commands)
            connection.execute("SELECT pg_logical_emit_message(true, 'harvest', '')")  # as a harvester does
            eventually(lambda: len(read_topic(bootstrap_servers, TOPIC)) == 100, "Debezium delivers", seconds=120)
            reader.type(comparison)
            assert "7 keys, 0 of them different" in reader.said[-1]
            assert contents(bootstrap_servers, TOPIC) == contents(bootstrap_servers, f"shadow.{TOPIC}")
            connection.execute(WRITE, (101, 120))
            with connection.transaction():
                connection.execute("LOCK TABLE outboxevent IN EXCLUSIVE MODE")
                eventually(lambda: len(read_topic(bootstrap_servers, TOPIC)) == 120, "Debezium ends", seconds=120)
                reader.type(Block("sh", f"harvest {REWIND}", ""))
                connection.execute(switch.text)
        connection.execute(WRITE, (121, 150))
    reader.type(Block("sh", "harvest run -f harvest.yaml --drain", ""))
    found = contents(bootstrap_servers, TOPIC)
    for key, records in found.items():
        numbers = [value["n"] for value, _ in records]
        assert numbers == [n for n in range(1, 151) if f"o-{n % 7}" == key]
