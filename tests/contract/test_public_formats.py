"""Formats that outlive the process that wrote them, each pinned once: any 0.x reads what 0.1.0 wrote.

Bytes stand here. What a harvester shows in Postgres and Kafka, and the JSON of the commands, are compared with a list,
`public_formats.txt`: which names there are, and of which type.
"""

import json
import re
from pathlib import Path
from uuid import UUID

import pytest
from support.from_outside import BAD_TOPIC, FILL, read_all, run
from support.outbox import harvest_config
from support.public_list import check_lines, shape
from support.waiting import eventually

# All that is imported from inside the packages, so that it can follow when modules move.
from dagster_harvest.heartbeat import HeartbeatTable
from harvest_lib import Harvest
from harvest_lib.archive.files import ArchivedFile, ArchiveFiles, Manifest
from harvest_lib.archive.records import names_and_types, schema_of
from harvest_lib.checkpoints.record import compact, read_checkpoint
from harvest_lib.consume import (
    Checkpoint,
    Flag,
    Intent,
    ProducerState,
    ShardId,
    SqliteStore,
    create_key_values,
    create_recovery_log,
    create_tables,
    pack,
    unpack,
)
from harvest_lib.leadership.group_members import spoken
from harvest_lib.leadership.lock_session import lock_keys
from harvest_lib.leadership.pool import Pool
from harvest_lib.outbox import OutboxTable
from harvest_lib.pipeline import offset_log
from harvest_lib.pipeline.commit_log.log import CommitLog
from harvest_lib.record.checkpoint import OutboxCheckpoint
from harvest_lib.record.header import stamp
from harvest_lib.record.header import unpack as unpack_header
from harvest_lib.record.last_read import LastRead

LIST = Path(__file__).parent / "public_formats.txt"
LEADER = UUID("332a20ea-56e9-46af-8356-cb37b8c62bdd")
SHARD = ShardId("counts", "orders", 3)


def shown(value):
    return json.dumps(shape(value), sort_keys=True)


# -- bytes


@pytest.mark.quick
def test_headers_of_records():
    value = "01332a20ea56e946af8356cb37b8c62bdd000000000000000e"
    assert stamp(LEADER)(14).hex() == value
    assert unpack_header(bytes.fromhex(value)) == (LEADER, 14)
    value, parts = "f5f3a126e6c311f18002151b975c7b7f", (0x151B975C7B7F, 2242348683913466464, Flag(2))
    assert pack(*parts).hex() == value
    assert unpack(bytes.fromhex(value)) == parts


@pytest.mark.quick
def test_a_checkpoint_with_everything_in_it():
    written = (
        '{"generation":3,"number":9,"position":{"source":"snapshot","cur":"780:790:781","prev":"761:761:","after":5,'
        '"deferred":[7],"retried":[2]},"delivered":12,"kept_in":"kafka",'
        '"intents":[["orders",2,"f5f3a126e6c311f18002151b975c7b7f"]],"identity":"7711/16384/16386",'
        '"was":["7711/16384/16001"],"subscription":"lake","shard":3,"leader_id":"332a20ea","epoch":4,'
        '"leaders":{"4":"332a20ea"},"timeline":"00000001",'
        '"kafka":{"group":"pool","topic":"pool.lake.checkpoint","topic_id":"oOvpmU7kRg"},"placed":true,"witness":17}'
    )
    found = read_checkpoint(json.loads(written), "lake", 3)
    assert isinstance(found, OutboxCheckpoint)
    assert compact(found.as_json()) == written


@pytest.mark.quick
def test_a_checkpoint_of_a_consumer():
    kept = Checkpoint(
        shard=SHARD,
        topic_id="x1hTF8ZRQ5q4Ej2Fnna1qA",
        offset=4711,
        producers=(
            ProducerState(producer=0x151B975C7B7F, acknowledged=2**63 + 5, begin=4700, newest=2**63 + 9, ack=17),
        ),
        intents=(Intent(topic="totals", partition=1, id=pack(0x151B975C7B7F, 2**60 + 3, Flag.ACK_TXN)),),
        last=LastRead(4710, 1_795_387_321_644, "d1"),
    )
    written = (
        '{"shard":["counts","orders",3],"topic_id":"x1hTF8ZRQ5q4Ej2Fnna1qA","offset":4711,'
        '"producers":[["151b975c7b7f","9223372036854775813",4700,"9223372036854775817","17"]],'
        '"intents":[["totals",1,"00000000000011008c02151b975c7b7f"]],"last":[4710,1795387321644,"d1"]}'
    )
    assert compact(kept.to_json()) == written
    assert Checkpoint.of_json(json.loads(written)) == kept


@pytest.mark.quick
def test_logs_of_a_pipeline(tmp_path, monkeypatch):
    monkeypatch.setattr(offset_log, "unix_ms", lambda: 1_795_387_321_648)
    with CommitLog(tmp_path / "commit") as log:
        log.append([(1_795_387_321_644, 1, b"flights", b'{"id":0}')])
    offsets = offset_log.OffsetLog(tmp_path / "offsets")
    offsets.acknowledge(b"flights", 5)
    offsets.flush()
    offsets.close()
    head = "0000000000000000{length}000001a2056c6d{time}{mode}00000007" + b"flights".hex() + "00000008"
    for name, value, parts in (
        ("commit", b'{"id":0}'.hex(), {"length": "00000017", "time": "2c", "mode": "01"}),
        ("offsets", "0000000000000005", {"length": "00000017", "time": "30", "mode": "00"}),
    ):
        folder = tmp_path / name
        assert (folder / "00000000000000000000.0.log").read_bytes().hex() == head.format(**parts) + value
        manifest = {"version": 1, "closed": [], "active": 0, "checksum": 3793359143}
        assert json.loads((folder / "log.json").read_bytes()) == manifest


@pytest.mark.quick
def test_an_archive(tmp_path):
    file = ArchivedFile(
        path="records/a.parquet", topic="t", day="2026-11-23", records=2, first_id=1, last_id=2, bytes=9, sha256="ab"
    )
    columns = names_and_types(schema_of(is_binary=False))
    manifest = Manifest(
        segment="outbox_from_0", lower=None, upper=10, records=2, last_transaction=7, columns=columns, files=[file]
    )
    files = ArchiveFiles(str(tmp_path))
    files.claim("7711/16384/16386", "public.outbox")
    files.publish(manifest)
    about, written = (
        json.loads((tmp_path / name).read_bytes()) for name in ("outbox.json", "segments/outbox_from_0.json")
    )
    assert about == {"version": 1, "outbox": "public.outbox", "identity": "7711/16384/16386"}
    check_lines(LIST, "archive", [json.dumps(written)])


@pytest.mark.quick
def test_what_processes_of_one_pool_know_each_other_by():
    assert lock_keys("shop", 16400) == {
        "lead": -7_020_476_232_657_442_808,
        "left": 2_344_068_003_729_103_724,
        "stand": 8_504_360_027_684_548_607,
        "group": -1_918_473_214_584_245_595,
    }
    pool = Pool(leadership="neli", group="shop", table="public.outbox")
    check_lines(LIST, "member", [spoken(pool, "member-1", "no topic")])


# -- tables


COLUMNS = """
SELECT c.oid::regclass::text, string_agg(
  concat_ws(' ', a.attname, format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN 'not null' END,
            'default ' || pg_get_expr(d.adbin, d.adrelid)), ', ' ORDER BY a.attnum)
FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef AS d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relnamespace = 'public'::regnamespace GROUP BY c.oid
"""
CONSTRAINTS = """
SELECT conrelid::regclass::text, conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint
WHERE connamespace = 'public'::regnamespace AND contype <> 'n' AND conparentid = 0 AND coninhcount = 0 AND conrelid <> 0
"""
INDEXES = """
SELECT i.indrelid::regclass::text, pg_get_indexdef(i.indexrelid)
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indrelid
WHERE c.relnamespace = 'public'::regnamespace AND NOT c.relispartition AND NOT i.indisprimary
"""
PARTITIONS = """
SELECT inhrelid::regclass::text, pg_get_expr(relpartbound, oid) FROM pg_inherits JOIN pg_class ON oid = inhrelid
WHERE relkind = 'r'
"""


@pytest.mark.gate
def test_tables(dsn, connection, configured):
    run("init", "-f", configured(), "--native", "--checks")
    run("init", "-f", configured(), "--goharvest", "--no-checks", "--table", "plain")
    create_tables(dsn)
    create_key_values(dsn)
    HeartbeatTable.beside(connection, OutboxTable.parse("outbox")).create()
    statements = run("subscriptions", "sql", "-f", configured())
    connection.execute(statements[statements.index("CREATE TABLE") :].split(";")[0])
    queries = {"columns": COLUMNS, "constraint": CONSTRAINTS, "index": INDEXES, "partition": PARTITIONS}
    for kind, query in queries.items():
        check_lines(LIST, kind, [f"{table}: {' '.join(found.split())}" for table, found in connection.execute(query)])


# -- a harvester at work


SHOWN = """
SELECT application_name FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
ROWS = "SELECT to_jsonb(t) FROM {} AS t"


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize(
    ("source", "delivery"), [("mark", "transactional"), ("snapshot", "transactional"), ("transaction_id", "sequenced")]
)
def test_a_harvest(source, delivery, dsn, connection, configured, make_topic, bootstrap_servers, group_id, admin):
    """The traces of a harvester in Postgres and Kafka, and its names there while it runs."""
    topic = make_topic(1)
    run("init", "-f", configured(), "--native", "--no-checks")
    for to in (topic, BAD_TOPIC, BAD_TOPIC):
        connection.execute(FILL, (to, 1))
    patient = {"session_timeout_seconds": 40, "limits": {"heartbeat_timeout_seconds": 30}}  # one term alone is listed
    names = {"source": source, "delivery": delivery, "subscription": "lake", "leadership": "neli"}
    before = set(admin.list_topics(timeout=60).topics)
    with Harvest(harvest_config(dsn, bootstrap_servers, group_id, **names, **patient)) as harvest:
        eventually(lambda: harvest.delivered_records >= 1 and harvest.leader_id, "it leads and delivers")
        leader = str(harvest.leader_id)
        found = [f"session {name}" for (name,) in connection.execute(SHOWN)]
        group = [each.group_id for each in admin.list_consumer_groups().result().valid if group_id in each.group_id]
    found += [f"group {each}" for each in group]
    made = {each for each in set(admin.list_topics(timeout=60).topics) - before if group_id in each}
    found += [f"topic {each}" for each in made]
    found += [f"transactional id {each}" for each in transactional_ids(bootstrap_servers, admin, group_id)]
    for each in made:
        if each.endswith(".checkpoint"):
            record = read_all(bootstrap_servers, each)[-1]
            found.append(f"checkpoint {record.key().decode()} {shown(json.loads(record.value()))}")
    for record in read_all(bootstrap_servers, topic):
        sizes = ", ".join(f"{name} of {len(content)} bytes" for name, content in sorted(record.headers() or []))
        found.append(f"record with key {record.key() is not None}, headers {sizes}")
    for table in ("outbox_subscriptions", "outbox_parked_ids", "outbox_parked"):
        found += [f"{table} {shown(bare(row))}" for (row,) in connection.execute(ROWS.format(table))]
    # A term that is interrupted goes on under a new id.
    named = {re.sub(r"(?<=harvest leader )[0-9a-f-]{36}", "LEADER", each).replace(leader, "LEADER") for each in found}
    lines = {each.replace(topic, "TOPIC").replace(group_id, "GROUP") for each in named}
    check_lines(LIST, f"{source}-{delivery}", lines)


def transactional_ids(bootstrap_servers, admin, group_id):
    """Return those that Kafka's own topic has written down."""
    internal = admin.list_topics(timeout=60).topics.get("__transaction_state")
    records = read_all(bootstrap_servers, internal.topic, len(internal.partitions)) if internal else ()
    keys = [record.key() or b"" for record in records]
    return {found.decode() for key in keys for found in re.findall(re.escape(group_id).encode() + rb"[ -~]*", key)}


def bare(row):
    """Leaders are listed by epoch, and topics by their names: neither is a name of ours."""
    for names in ((row.get("leader") or {}).get("topics"), (row.get("checkpoint") or {}).get("leaders")):
        for name in list(names or ()):
            names["NAME"] = names.pop(name)
    return row


@pytest.mark.gate
def test_json_of_the_commands(dsn, connection, configured, make_topic, bootstrap_servers, group_id):
    """Scripts take the commands' JSON apart by name."""
    topic, file = make_topic(1), configured(source="snapshot", leadership="solo", delivery="barrier")
    run("init", "-f", file, "--native", "--no-checks")
    for to in (topic, BAD_TOPIC, BAD_TOPIC, BAD_TOPIC):
        connection.execute(FILL, (to, 1))
    Harvest(harvest_config(dsn, bootstrap_servers, group_id, source="snapshot", leadership="solo")).drain(60)
    for command in (
        "status",
        "park list",
        "park show 2 --value",
        "park drop --all --yes",
        "park retry --all",
        "segments list",
        "subscriptions list",
        f"audit --allow-empty -t {topic}",
    ):
        reported = json.loads(run(*command.split(), "-f", file, "--json"))
        if command == "status":
            assert all(isinstance(each, str) for each in reported["notes"])
            reported["notes"] = ["text"]  # none, or why no process leads, as the leader's end is noticed
        check_lines(LIST, f"harvest {command.split(' -')[0]}:", [shown(reported)])


# -- pipelines and consumers


CHECK = "def whole(message):\n    1 / message.data['id']\n    return message\n"


@pytest.mark.gate
def test_a_pipeline(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "formats_check.py").write_text(CHECK)
    reader = {"adaptor": "file", "path": "in.jsonl", "content": "data", "namespace": "flights"}
    writer = {"adaptor": "file", "path": "out.jsonl", "transforms": [{"call": "formats_check:whole"}]}
    writers = {"plain": {**writer, "on_transform_error": "park"}}
    (tmp_path / "flights.yaml").write_text(json.dumps({"folder": "folder", "reader": reader, "writers": writers}))
    (tmp_path / "in.jsonl").write_text('{"id": 1}\n{"id": 0}\n')
    run("pipeline", "run", "-f", "flights.yaml")
    documents = {
        "status": run("pipeline", "status", "-f", "flights.yaml", "--json"),
        "show": run("pipeline", "show", 0, "-f", "flights.yaml", "--json"),
        "message": (tmp_path / "out.jsonl").read_text(),
        "parked": (tmp_path / "folder/parked/plain.jsonl").read_text(),
    }
    found = [f"{name} {shown(json.loads(text))}" for name, text in documents.items()]
    found += [f"file {each.relative_to(tmp_path)}" for each in (tmp_path / "folder").rglob("*")]
    check_lines(LIST, "pipeline", found)


@pytest.mark.gate
def test_state_in_a_recovery_log(tmp_path, bootstrap_servers, unique):
    """Tables of a `SqliteStore`, and the records of its log: a page of the file each, by its number."""
    log, settings = unique("log"), {"bootstrap.servers": bootstrap_servers}
    create_recovery_log(settings, log, partitions=4)
    store = SqliteStore(tmp_path, settings, SHARD, log=log)
    store.restore()
    schema = store.begin().execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    store.rollback()
    store.close()
    found = [f"table {' '.join(sql.split())}" for (sql,) in schema]
    for record in read_all(bootstrap_servers, log, partitions=4):
        key, value = record.key().decode(), record.value()
        found.append(f"page {len(value)}" if key.isdigit() else f"{key} {shown(json.loads(value))}")
    check_lines(LIST, "recovery-log", found)
