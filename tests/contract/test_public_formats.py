"""Public names on the servers do not change: tables, checkpoints, headers, topics, groups, JSON of the commands.

As `test_public_names.py`, for what shows only once the harvester has run. Everything is checked from outside: the
catalogue of Postgres, the records in Kafka, the output of commands. `public_formats.json` is the list.
"""

import json
import re
from pathlib import Path

import pytest
from psycopg.rows import dict_row
from support.from_outside import BAD_TOPIC, FILL, read_all, run
from support.outbox import harvest_config
from support.public_list import check, shape
from support.waiting import eventually

# All that is imported from inside the packages, so that it can follow when modules move.
from dagster_harvest.heartbeat import HeartbeatTable
from harvest_lib import Harvest, LeaderAcquired
from harvest_lib.consume import ShardId, SqliteStore, create_key_values, create_recovery_log, create_tables
from harvest_lib.outbox import OutboxTable

pytestmark = pytest.mark.gate

LIST = Path(__file__).parent / "public_formats.json"

COLUMNS = """
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace AND n.nspname = 'public'
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef AS d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
WHERE c.relkind IN ('r', 'p') ORDER BY c.relname, a.attnum
"""
CONSTRAINTS = """
SELECT conrelid::regclass::text || ': ' || conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint
WHERE connamespace = 'public'::regnamespace AND conrelid <> 0 AND contype <> 'n' ORDER BY 1
"""
INDEXES = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1"
PARTITIONS = """
SELECT relname || ' ' || pg_get_expr(relpartbound, oid) FROM pg_class
WHERE relispartition AND relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY 1
"""

SHOWN = """
SELECT application_name FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
ROWS = "SELECT to_jsonb(t) AS row FROM {} AS t ORDER BY 1"


def catalogue(connection):
    reported = {}
    for table, column, kind, required, filled in connection.execute(COLUMNS):
        reported.setdefault(table, []).append(
            f"{column} {kind}{' not null' if required else ''}{f' default {filled}' if filled else ''}"
        )
    return {
        "columns": reported,
        "constraints": [each for (each,) in connection.execute(CONSTRAINTS)],
        "indexes": [each for (each,) in connection.execute(INDEXES)],
        "partitions": [each for (each,) in connection.execute(PARTITIONS)],
    }


@pytest.mark.parametrize("layout", ["native", "goharvest"])
def test_tables(dsn, connection, configured, layout):
    run("init", "-f", configured(), f"--{layout}", "--checks")
    create_tables(dsn)
    create_key_values(dsn)
    HeartbeatTable.beside(connection, OutboxTable.parse("outbox")).create()
    check(LIST, f"tables, {layout}", catalogue(connection))


def test_what_a_moved_outbox_keeps(connection, configured):
    """Tables that only some commands make."""
    run("init", "-f", configured(), "--native", "--no-checks")
    sql = run("subscriptions", "sql", "-f", configured())
    statement = sql[sql.index("CREATE TABLE") : sql.index(";", sql.index("CREATE TABLE"))]
    connection.execute(statement)
    check(LIST, "table of subscribers", catalogue(connection)["columns"]["subscribers"])


def told_of(message):
    """Return how a record is made up: its headers by name and length, whether it has key and value."""
    headers = sorted(f"{name} of {len(content)} bytes" for name, content in message.headers() or [])
    return f"key {message.key() is not None}, value {message.value() is not None}, headers {', '.join(headers)}"


@pytest.mark.parametrize(
    ("source", "delivery"),
    [
        ("mark", "barrier"),
        ("mark", "sequenced"),
        ("mark", "transactional"),
        ("snapshot", "barrier"),
        ("snapshot", "sequenced"),
        ("snapshot", "transactional"),
        ("transaction_id", "pipelined"),
    ],
)
def test_a_harvest(source, delivery, dsn, connection, configured, make_topic, bootstrap_servers, group_id, admin):
    """The traces of a harvester in Postgres and Kafka, and its names there while it runs."""
    topic, names = make_topic(1), {}

    def bare(text):
        for value, name in sorted(names.items(), reverse=True):
            text = text.replace(value, name)
        return text

    run("init", "-f", configured(), "--native", "--no-checks")
    connection.execute(FILL, (topic, 3))
    connection.execute(FILL, (BAD_TOPIC, 1))
    connection.execute(FILL, (topic, 2))
    connection.execute(FILL, (BAD_TOPIC, 1))
    patient = {"session_timeout_seconds": 40, "limits": {"heartbeat_timeout_seconds": 30}}  # one term alone is listed
    config = harvest_config(
        dsn,
        bootstrap_servers,
        group_id,
        source=source,
        delivery=delivery,
        subscription="lake",
        leadership="neli",
        **patient,
    )
    before = set(admin.list_topics(timeout=60).topics)
    names |= {topic: "TOPIC", group_id: "GROUP"}
    events = []
    harvest = Harvest(config)
    harvest.set_event_handler(events.append)
    harvest.start()
    try:
        eventually(lambda: harvest.delivered_records >= 5, "all of it is delivered")
        eventually(lambda: any(isinstance(each, LeaderAcquired) for each in events), "it says that it leads")
        names[str(harvest.leader_id)] = "LEADER"
        shown = {bare(name) for (name,) in connection.execute(SHOWN)}
        groups = {each.group_id for each in admin.list_consumer_groups().result().valid}
    finally:
        harvest.stop()
        harvest.await_stopped(60)
    file = configured(source=source, delivery=delivery, leadership="neli", subscription="lake")
    status = json.loads(run("status", "-f", file, "--json"))
    reported = {
        "application names": sorted(shown),
        "consumer groups": sorted(bare(each) for each in groups if group_id in each),
        "transactional ids": sorted(bare(each) for each in transactional_ids(bootstrap_servers, admin, group_id)),
        "topics made": sorted(
            bare(each) for each in set(admin.list_topics(timeout=60).topics) - before if group_id in each
        ),
        "records": sorted({told_of(each) for each in read_all(bootstrap_servers, topic)}),
        "status": shape(status),
    }
    checkpoint_topic = f"{group_id}.lake.checkpoint"
    if checkpoint_topic in admin.list_topics(timeout=60).topics:
        found = read_all(bootstrap_servers, checkpoint_topic)
        reported["checkpoint records"] = sorted({bare(each.key().decode()) for each in found})
        reported["checkpoint record"] = shape(json.loads(found[-1].value()))
    cursor = connection.cursor(row_factory=dict_row)
    for table in ("outbox_subscriptions", "outbox_set_aside", "outbox_parked"):
        rows = [shape(each["row"]) for each in cursor.execute(ROWS.format(table))]
        reported[table] = [
            json.loads(each) for each in sorted({json.dumps(bare_keys(row), sort_keys=True) for row in rows})
        ]
    check(LIST, f"a harvest, {source} and {delivery}", reported)


def transactional_ids(bootstrap_servers, admin, group_id):
    """Return those that Kafka's own topic has written down."""
    internal = "__transaction_state"
    partitions = admin.list_topics(timeout=60).topics
    if internal not in partitions:
        return set()
    keys = [each.key() or b"" for each in read_all(bootstrap_servers, internal, len(partitions[internal].partitions))]
    return {found.decode() for key in keys for found in re.findall(re.escape(group_id).encode() + rb"[ -~]*", key)}


def bare_keys(row):
    """Leaders are listed by epoch, and topics by their names: neither is a name of ours."""
    leader = row.get("leader")
    if isinstance(leader, dict) and "topics" in leader:
        leader["topics"] = dict.fromkeys(["TOPIC"], next(iter(leader["topics"].values()), None))
    checkpoint = row.get("checkpoint")
    if isinstance(checkpoint, dict) and "leaders" in checkpoint:
        checkpoint["leaders"] = dict.fromkeys(["EPOCH"], "text")
    return row


@pytest.mark.parametrize("source", ["mark", "snapshot"])
def test_json_of_the_commands(source, dsn, connection, configured, make_topic, bootstrap_servers, group_id):
    """Scripts take the commands' JSON apart by name."""
    topic = make_topic(1)
    file = configured(source=source, leadership="solo", delivery="barrier")
    run("init", "-f", file, "--native", "--no-checks")
    for to in (topic, BAD_TOPIC, BAD_TOPIC, BAD_TOPIC):
        connection.execute(FILL, (to, 1))
    harvest = Harvest(harvest_config(dsn, bootstrap_servers, group_id, source=source, leadership="solo"))
    harvest.drain(60)
    parked = json.loads(run("park", "list", "-f", file, "--json"))
    reported = {
        "park list": parked,
        "park show": json.loads(run("park", "show", parked[0]["id"], "-f", file, "--value", "--json")),
        "park drop": json.loads(run("park", "drop", "--all", "-f", file, "--yes", "--json")),
        "park retry": json.loads(run("park", "retry", "--all", "-f", file, "--json")),
        "segments list": json.loads(run("segments", "list", "-f", file, "--json")),
        "subscriptions list": json.loads(run("subscriptions", "list", "-f", file, "--json")),
        "audit": json.loads(run("audit", "-f", file, "-t", topic, "--allow-empty", "--json")),
    }
    check(LIST, f"JSON of the commands, {source}", shape(reported))


def test_json_of_a_pipeline(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reader = {"adaptor": "file", "path": "in.jsonl", "content": "data", "namespace": "flights"}
    writers = {"plain": {"adaptor": "file", "path": "out.jsonl"}}
    (tmp_path / "flights.yaml").write_text(json.dumps({"folder": "folder", "reader": reader, "writers": writers}))
    (tmp_path / "in.jsonl").write_text('{"id": 1}\n')
    run("pipeline", "run", "-f", "flights.yaml")
    reported = {
        "pipeline status": json.loads(run("pipeline", "status", "-f", "flights.yaml", "--json")),
        "pipeline show": json.loads(run("pipeline", "show", 0, "-f", "flights.yaml", "--json")),
    }
    line = json.loads((tmp_path / "out.jsonl").read_text())
    files = sorted(str(each.relative_to(tmp_path)) for each in (tmp_path / "folder").rglob("*"))
    check(LIST, "a pipeline", {**shape(reported), "a message as JSON": shape(line), "files": files})


def test_state_in_a_recovery_log(tmp_path, bootstrap_servers, unique):
    """Tables of a `SqliteStore`, and what its log is made of."""
    log = unique("log")
    settings = {"bootstrap.servers": bootstrap_servers}
    create_recovery_log(settings, log, partitions=1)
    store = SqliteStore(tmp_path, settings, ShardId("counts", "orders", 0), log=log)
    kept = store.restore()
    schema = sorted(sql for (sql,) in store.begin().execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"))
    store.rollback()
    store.close()
    found = {each.key().decode(): each.value() for each in read_all(bootstrap_servers, log)}
    reported = {
        "tables": [" ".join(each.split()) for each in schema],
        "keys": sorted(name for name in found if not name.isdigit()),
        "head": shape(json.loads(found["head"])),
        "checkpoint": shape(kept.to_json()),
    }
    check(LIST, "a recovery log", reported)
