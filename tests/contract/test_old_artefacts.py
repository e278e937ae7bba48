"""Artefacts of an earlier version load, and are gone on from: checkpoints, parked rows, logs, state files.

The files in `golden/` were written by the code itself, before a restructuring, by the functions that are beside each
test here. They are not to be written again when the code changes: that is their purpose. A new format gets a file of
its own, by `RECORD_ARTEFACTS=1 python -m pytest tests/contract/test_old_artefacts.py`, which leaves what is there.
"""

import base64
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicCollection
from support.from_outside import BAD_TOPIC, FILL, read_all, run
from support.outbox import harvest_config
from support.written_history import Pen

# All that is imported from inside the packages, so that it can follow when modules move.
from dagster_harvest.heartbeat import HeartbeatTable, Place
from harvest_lib import Harvest
from harvest_lib.checkpoints.record import Checkpoint as OutboxCheckpoint
from harvest_lib.checkpoints.record import read_checkpoint
from harvest_lib.checkpoints.topic import ensure_checkpoint_topic
from harvest_lib.consume import (
    Checkpoint,
    Flag,
    Intent,
    KeyValueStore,
    PostgresStore,
    ProducerState,
    ShardId,
    SqliteStore,
    create_key_values,
    create_recovery_log,
    create_tables,
    pack,
    unpack,
)
from harvest_lib.errors import LifecycleError
from harvest_lib.local_stack.description import Description, Server, process_started, running
from harvest_lib.local_stack.ports import keep_ports
from harvest_lib.outbox import OutboxTable
from harvest_lib.pipeline.offset_log import OffsetLog
from harvest_lib.record.header import stamp
from harvest_lib.record.header import unpack as unpack_header
from infra.chaos.history.events import Fault
from infra.chaos.history.lines import from_line, to_line

pytestmark = pytest.mark.gate

GOLDEN = Path(__file__).parent / "golden"
RECORD = os.environ.get("RECORD_ARTEFACTS") == "1"
ROWS = "SELECT to_jsonb(t) FROM {} AS t ORDER BY to_jsonb(t)::text"
CLEAR = "DELETE FROM {}"
RESTORE = "INSERT INTO {0} SELECT * FROM jsonb_populate_record(NULL::{0}, %s)"
COMPACT = "cleanup.policy"


def golden(name, make):
    """Return what is in a golden file; one that is not there is made, if it is to be recorded."""
    file = GOLDEN / name
    if RECORD and not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(make(), indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    return json.loads(file.read_text(encoding="utf-8"))


def rows(connection, table):
    return [row for (row,) in connection.execute(ROWS.format(table))]


def restore(connection, table, found):
    """Put rows back as pg_restore does, which makes triggers behind the rows."""
    connection.execute("SET session_replication_role = replica")
    for row in found:
        connection.execute(RESTORE.format(table), (json.dumps(row),))
    connection.execute("RESET session_replication_role")


# -- checkpoints


WAYS = [
    ("snapshot", "barrier"),
    ("snapshot", "sequenced"),
    ("snapshot", "transactional"),
    ("transaction_id", "pipelined"),
    ("transaction_id", "transactional"),
]


@pytest.mark.parametrize(("source", "delivery"), WAYS)
def test_a_checkpoint_is_gone_on_from(
    source, delivery, dsn, connection, configured, make_topic, bootstrap_servers, group_id, admin
):
    """Records delivered before are not delivered again, and later ones are."""
    topic = make_topic(1)
    config = harvest_config(dsn, bootstrap_servers, group_id, source=source, delivery=delivery, subscription="lake")
    checkpoint_topic = f"{group_id}.lake.checkpoint"
    run("init", "-f", configured(), "--native", "--no-checks")
    ((first,),) = connection.execute(FILL + " RETURNING pg_current_xact_id()::text", (topic, 1))

    def make():
        Harvest(config).drain(60)
        found = read_all(bootstrap_servers, checkpoint_topic) if delivery == "transactional" else []
        kept = [[each.key().decode(), each.value().decode()] for each in found]
        return {"rows": rows(connection, "outbox_subscriptions"), "records": kept[-1:]}

    old = golden(f"checkpoints/{source}.{delivery}.json", make)
    connection.execute("DELETE FROM outbox_subscriptions")
    ensure_checkpoint_topic({"bootstrap.servers": bootstrap_servers}, checkpoint_topic, 1)
    here = of_this_server(connection, dsn, admin, group_id, checkpoint_topic, first)
    restore(connection, "outbox_subscriptions", [transplanted(row, here) for row in old["rows"]])
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for key, value in old["records"]:
        producer.produce(checkpoint_topic, json.dumps(transplanted(json.loads(value), here)).encode(), key)
    assert producer.flush(60) == 0
    (reported,) = json.loads(
        run("subscriptions", "list", "-f", configured(source=source, subscription="lake"), "--json")
    )
    assert (reported["name"], reported["source"], reported["shard"], reported["epoch"]) == (
        "lake",
        source,
        0,
        old["rows"][0]["epoch"],
    )
    before = {each.offset() for each in read_all(bootstrap_servers, topic)}
    connection.execute(FILL, (topic, 2))
    Harvest(config).drain(60)
    found = [each for each in read_all(bootstrap_servers, topic) if each.offset() not in before and each.key()]
    assert [unpack_header(dict(each.headers())["harvest"])[1] for each in found] == [2, 3], "1 was delivered before"
    (after,) = rows(connection, "outbox_subscriptions")
    assert after["epoch"] > old["rows"][0]["epoch"]
    assert after["checkpoint"]["delivered"] == old["rows"][0]["checkpoint"]["delivered"] + 2


WHOLE = OutboxCheckpoint(
    generation=1795386471,
    number=9,
    position={"source": "snapshot", "cur": "780:790:781", "prev": "761:761:", "after": 5, "deferred": [7]},
    delivered=12,
    kept_in="kafka",
    intents=[["orders", 2, "f5f3a126e6c311f18002151b975c7b7f"]],
    origin={
        "identity": "7711126149928025223/16384/16386",
        "was": ["7711126149928025223/16384/16001"],
        "subscription": "lake",
        "shard": 3,
        "leader_id": "332a20ea-56e9-46af-8356-cb37b8c62bdd",
        "epoch": 4,
        "leaders": {"4": "332a20ea-56e9-46af-8356-cb37b8c62bdd"},
        "timeline": "00000001",
        "kafka": {"group": "pool", "topic": "pool.lake.checkpoint", "topic_id": "oOvpmU7kRg+MbrIlqbN7Lg"},
        "placed": True,
    },
)
"""With everything that one may have; few have all of it."""


def test_a_checkpoint_with_everything_in_it():
    old = golden("checkpoints/whole.json", lambda: json.loads(json.dumps(WHOLE.as_json())))
    found = read_checkpoint(old, "default", 0)
    assert found == WHOLE
    assert found.origin == WHOLE.origin
    assert found.as_json() == old


def of_this_server(connection, dsn, admin, group_id, checkpoint_topic, first):
    """Return what of a checkpoint is of the server it was written on, as it is here."""
    ((identity, system, lsn, snapshot),) = connection.execute(
        "SELECT concat_ws('/', system_identifier, (SELECT oid FROM pg_database WHERE datname = current_database()), "
        "'outbox'::regclass::oid), system_identifier::text, pg_current_wal_lsn()::text, pg_current_snapshot()::text "
        "FROM pg_control_system()"
    )
    described = admin.describe_topics(TopicCollection([checkpoint_topic]))[checkpoint_topic].result(60)
    ((database,),) = connection.execute("SELECT current_database()")
    return {
        "identity": identity,
        "system": system,
        "lsn": lsn,
        "prev": snapshot,
        "seen": snapshot,
        "transaction_id": first,
        "group": group_id,
        "topic": checkpoint_topic,
        "topic_id": str(described.topic_id),
        "outbox": f'{database}/"outbox"',
        "leader": None,
    }


def transplanted(value, here):
    """Return an old checkpoint as the same code would have written it here. Names and structure stay."""
    if isinstance(value, dict):
        return {
            name: here[name] if name in here and name in value else transplanted(each, here)
            for name, each in value.items()
        }
    return value


# -- parked records


@pytest.mark.parametrize("source", ["mark", "snapshot"])
def test_parked_records_are_found_and_retried(
    source, dsn, connection, configured, make_topic, bootstrap_servers, group_id
):
    topic = make_topic(1)
    path = configured(source=source, leadership="solo")
    run("init", "-f", path, "--native", "--no-checks")

    def make():
        for to in (BAD_TOPIC, topic, BAD_TOPIC):
            connection.execute(FILL, (to, 1))
        Harvest(harvest_config(dsn, bootstrap_servers, group_id, source=source, leadership="solo")).drain(60)
        names = ("outbox", "outbox_parked", "outbox_set_aside")
        found = {name: [row for row in rows(connection, name) if row["kafka_topic"] == BAD_TOPIC] for name in names}
        for name in names:
            connection.execute(CLEAR.format(name))
        connection.execute("DELETE FROM outbox_subscriptions")
        return found

    old = golden(f"parked/{source}.json", make)
    for name, found in old.items():
        restore(connection, name, found)
    reported = json.loads(run("park", "list", "-f", path, "--json"))
    assert [(each["id"], each["topic"], each["key"], each["held"]) for each in reported] == [
        (1, BAD_TOPIC, "key", False),
        (3, BAD_TOPIC, "key", True),
    ]
    whole = json.loads(run("park", "show", 1, "-f", path, "--value", "--json"))
    assert (whole["row"]["kafka_value"], whole["row"]["kafka_header_keys"]) == ("value", ["Seq"])
    done = json.loads(run("park", "retry", "--all", "-f", path, "--json"))
    assert (done["parked"], done["held"]) == (1, 1)
    if source == "mark":
        assert [each["id"] for each in rows(connection, "outbox")] == [1, 3]
    else:
        assert all(each["retry"] for each in rows(connection, "outbox_set_aside"))


# -- consumers


SHARD = ShardId("counts", "orders", 3)
KEPT = Checkpoint(
    shard=SHARD,
    topic_id="x1hTF8ZRQ5q4Ej2Fnna1qA",
    offset=4711,
    producers=[ProducerState(producer=0x0151B975C7B7F, acknowledged=2**63 + 5, begin=4700, newest=2**63 + 9, ack=17)],
    intents=[Intent(topic="totals", partition=1, id=pack(0x0151B975C7B7F, 2**60 + 3, Flag.ACK_TXN))],
)


def test_a_consumer_goes_on(dsn, connection):
    create_tables(dsn)
    create_key_values(dsn)

    def make():
        store = KeyValueStore(dsn, SHARD)
        store.restore()
        values = store.begin()
        values.put("blue", {"n": 3})
        store.commit(KEPT)
        store.close()
        found = {name: rows(connection, name) for name in ("consumers", "consumers_state")}
        for name in found:
            connection.execute(CLEAR.format(name))
        return found

    for name, found in golden("consumer.json", make).items():
        restore(connection, name, found)
    store = KeyValueStore(dsn, SHARD)
    restored = store.restore()
    assert (restored.offset, restored.topic_id) == (KEPT.offset, KEPT.topic_id)
    assert list(restored.producers) == list(KEPT.producers)
    assert list(restored.intents) == list(KEPT.intents)
    assert store.begin().get("blue") == {"n": 3}
    store.rollback()
    store.close()
    plain = PostgresStore(dsn, SHARD)
    assert plain.restore() == restored
    plain.close()


def test_a_recovery_log_is_played_back(tmp_path, bootstrap_servers, make_topic, unique):
    settings = {"bootstrap.servers": bootstrap_servers}
    shard = SHARD._replace(partition=0)

    def make():
        log = unique("log")
        create_recovery_log(settings, log, partitions=1)
        store = SqliteStore(tmp_path, settings, shard, log=log)
        store.restore()
        store.begin().execute("CREATE TABLE seen (key TEXT PRIMARY KEY, n INT)").execute(
            "INSERT INTO seen VALUES ('a', 7)"
        )
        store.commit(Checkpoint(shard=shard, topic_id=KEPT.topic_id, offset=12))
        store.close()
        return [
            [each.key().decode(), base64.b64encode(each.value() or b"").decode()]
            for each in read_all(bootstrap_servers, log)
        ]

    old = golden("recovery_log.json", make)
    log = make_topic(1, **{COMPACT: "compact"})
    producer = Producer(settings)
    for key, value in old:
        producer.produce(log, base64.b64decode(value), key)
    assert producer.flush(60) == 0
    store = SqliteStore(tmp_path, settings, shard, log=log)
    assert store.restore() == Checkpoint(shard=shard, topic_id=KEPT.topic_id, offset=12)
    assert store.begin().execute("SELECT * FROM seen").fetchall() == [("a", 7)]
    store.rollback()
    store.close()


HEADERS = {
    "harvest": ("01332a20ea56e946af8356cb37b8c62bdd000000000000000e", ("332a20ea-56e9-46af-8356-cb37b8c62bdd", 14)),
    "message-id": ("f5f3a126e6c311f18002151b975c7b7f", (0x151B975C7B7F, 2242348683913466464, 2)),
}
"""As they stood in Kafka, and what they say."""


def test_headers_of_records():
    value, (leader, outbox_id) = HEADERS["harvest"]
    found = unpack_header(bytes.fromhex(value))
    assert (str(found[0]), found[1]) == (leader, outbox_id)
    assert stamp(found[0])(outbox_id).hex() == value
    value, said = HEADERS["message-id"]
    assert unpack(bytes.fromhex(value)) == said
    assert pack(said[0], said[1], Flag(said[2])).hex() == value


# -- pipelines


DECLARED = """\
folder: folder
commit_log: {segment_size: 4096B, compact_every: 0s}
reader: {adaptor: file, path: in.jsonl, content: data, namespace: flights}
writers:
  plain: {adaptor: file, path: plain.jsonl}
  checked:
    adaptor: file
    path: checked.jsonl
    transforms: [{call: "old_artefacts_check:whole"}]
    on_transform_error: park
"""
CHECK = """
def whole(message):
    if message.data.get("dest") is None and message.op.value == 0:
        raise ValueError("it goes nowhere")
    return message
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a pipeline in it, which is the present one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "old_artefacts_check.py").write_text(CHECK)
    (tmp_path / "flights.yaml").write_text(DECLARED)
    return tmp_path


def write_rows(place, numbers):
    with (place / "in.jsonl").open("a") as lines:
        lines.writelines(json.dumps({"id": each, "dest": None if each == 3 else "IAH"}) + "\n" for each in numbers)


def ids(path):
    return [json.loads(line)["data"]["id"] for line in path.read_text().splitlines()]


def test_a_pipeline_goes_on(place):
    """Its reader from where it was, each writer from its offset; parked messages are there."""
    folder = GOLDEN / "pipeline"
    if RECORD and not folder.exists():
        write_rows(place, range(6))
        run("pipeline", "run", "-f", "flights.yaml")
        shutil.copytree(place, folder, ignore=shutil.ignore_patterns("*.py", "*.pyc", "__pycache__", "lock"))
        shutil.rmtree(place / "folder")
        for each in place.glob("*.jsonl"):
            each.unlink()
    shutil.copytree(folder, place, dirs_exist_ok=True)
    assert ids(place / "plain.jsonl") == [0, 1, 2, 3, 4, 5]
    reported = json.loads(run("pipeline", "status", "-f", "flights.yaml", "--json"))
    assert {each["writer"]: (each["next"], each["behind"]) for each in reported["writers"]} == {
        "plain": (7, 0),
        "checked": (7, 0),
    }
    (parked,) = [json.loads(each) for each in (place / "folder/parked/checked.jsonl").read_text().splitlines()]
    assert set(parked) == {"offset", "namespace", "op", "timestamp", "reason", "data"}
    shown = json.loads(run("pipeline", "show", parked["offset"], "-f", "flights.yaml", "--json"))
    assert shown["data"] == {"id": 3, "dest": None}
    write_rows(place, [6, 7])
    run("pipeline", "run", "-f", "flights.yaml")
    assert ids(place / "plain.jsonl") == list(range(8)), "nothing came twice"
    assert ids(place / "checked.jsonl") == [0, 1, 2, 4, 5, 6, 7]
    run("pipeline", "compact", "-f", "flights.yaml")


def test_offsets_of_a_writer(tmp_path):
    shutil.copytree(GOLDEN / "pipeline/folder/offsets/plain", tmp_path / "offsets")
    offsets = OffsetLog(tmp_path / "offsets")
    assert offsets.repaired == ()
    assert b"flights" in offsets.by_namespace
    assert offsets.position == max(offsets.by_namespace.values()) + 1 == 7
    offsets.close()


# -- histories


def test_a_history_is_judged(tmp_path):
    path = GOLDEN / "history.jsonl"
    if RECORD and not path.exists():
        pen = Pen().write("a1 a2 b1").write("b2").poll("a1 a2 b1 b2")
        fault = Fault(type="ok", process="chaos", time=9.0, wall=1e9, fault="kill", step="begin")
        path.write_text("".join(map(to_line, (*pen.events, fault))), encoding="utf-8")
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    assert [to_line(from_line(line)) for line in lines] == lines
    reported = json.loads(run("history", path, "--promise", "at_least_once", "--json"))
    assert reported["ok"] is True


# -- Dagster


def test_a_daemon_that_lives_is_left_alone(connection):
    place = Place(name="flights", location="dagster_harvest.definitions", slot=0)
    beats = HeartbeatTable.beside(connection, OutboxTable.parse("outbox"))
    beats.create()

    def make():
        beats.claim(place, run_id="3d0a1c52-1f0e-4d1c-9a5e-0c7d6f6f5a11", generation=4, stale_after_seconds=15)
        found = rows(connection, "harvest_daemons")
        connection.execute("DELETE FROM harvest_daemons")
        return found

    old = golden("dagster_daemon.json", make)
    restore(connection, "harvest_daemons", old)
    found = beats.read(place)
    assert (found.run_id, found.generation, found.is_stopped) == (old[0]["run_id"], 4, False)
    assert beats.renew(place, old[0]["run_id"])
    with pytest.raises(LifecycleError):
        beats.claim(place, run_id="another", generation=4, stale_after_seconds=600)
    assert beats.claim(place, run_id="another", generation=None, stale_after_seconds=-1) == 5


# -- the local stack


def test_a_stack_that_is_up_is_found(tmp_path):
    """By the file that it left; another version may have started it."""

    def make():
        description = Description(
            dsn="host=127.0.0.1 port=15432 user=postgres password=canary dbname=postgres",
            bootstrap_servers="127.0.0.1:19092",
            servers=(Server(name="postgres", version="18", pid=17, port=15432, url=""),),
            pid=1,
            started=1.0,
            airflow_login="admin",
            secure="",
        )
        description.save(tmp_path)
        keep_ports(tmp_path / "ports.json", ["postgres"])
        ports = re.sub(r"\d+", "15432", (tmp_path / "ports.json").read_text())
        return {"stack.json": json.loads((tmp_path / "stack.json").read_text()), "ports.json": json.loads(ports)}

    old = golden("local_stack.json", make)
    stack = {**old["stack.json"], "pid": os.getpid(), "started": process_started(os.getpid())}
    (tmp_path / "stack.json").write_text(json.dumps(stack))
    found = running(tmp_path)
    assert (found.bootstrap_servers, found.servers[0].port, found.airflow_login) == ("127.0.0.1:19092", 15432, "admin")
    (tmp_path / "ports.json").write_text(json.dumps(old["ports.json"]))
    assert set(keep_ports(tmp_path / "ports.json", ["postgres"])) == {"postgres"}
