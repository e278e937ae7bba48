"""Audits of real topics and tables."""

import errno
import json
import os
import socket
import subprocess
import sys
import time
import uuid
from itertools import chain

import psycopg
import pytest
import typer
from confluent_kafka import Producer, TopicPartition
from support.raw_headers import write_raw_header
from support.scraping import parsed, series
from support.subscribed import Subscribed
from support.waiting import eventually
from typer.testing import CliRunner

from harvest_lib.audit import MUST_BE_ZERO, audit, read_query, read_topics
from harvest_lib.cli.audit import audit as audit_command
from harvest_lib.errors import (
    FOUND_EXIT_CODE,
    CheckpointError,
    ConfigError,
    DatabaseAccessDenied,
    DatabaseError,
    DatabaseUnavailable,
    KafkaUnavailable,
    NothingChecked,
    TopicMissing,
    TransactionOpen,
)
from harvest_lib.outbox import NativeTable, OutboxTable
from harvest_lib.outbox.parking import ParkedRecords
from harvest_lib.record.header import HEADER_NAME, stamp

pytestmark = pytest.mark.gate

RECORDS = 50_000


@pytest.fixture
def settings(bootstrap_servers):
    return {"bootstrap.servers": bootstrap_servers}


@pytest.fixture
def producers(settings):
    """Make producers, and close them at the end: an open transaction would outlive the test."""
    made = []

    def make(**own):
        made.append(Producer({**settings, "linger.ms": 5, "enable.idempotence": True, **own}))
        return made[-1]

    yield make
    for producer in made:
        producer.close()


def closed_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def send(producer, topic, ids, *, leader=None, partition=0, key=b"k", header=None):
    stamped = stamp(leader or uuid.UUID(int=1))
    for number in ids:
        headers = [(HEADER_NAME, stamped(number))] if header is None else [(header, str(number).encode())]
        producer.produce(topic, b"value", key=key, partition=partition, headers=headers)
        producer.poll(0)


def ids_in(settings, topic, **how):
    return [record.id for record in chain.from_iterable(read_topics(settings, [topic], **how))]


def fill_outbox(dsn, topic, ids):
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "CREATE TABLE outbox (id bigserial PRIMARY KEY, create_time timestamptz NOT NULL DEFAULT now(),"
            " kafka_topic varchar(249) NOT NULL, kafka_key varchar(100) NOT NULL, kafka_value varchar(10000),"
            " kafka_header_keys text[] NOT NULL DEFAULT '{}', kafka_header_values text[] NOT NULL DEFAULT '{}',"
            " leader_id uuid)"
        )
        connection.cursor().executemany(
            "INSERT INTO outbox (id, kafka_topic, kafka_key, kafka_value) VALUES (%s, %s, 'k', 'value')",
            [(n, topic) for n in ids],
        )


@pytest.mark.quick
def test_everything_committed_is_found(dsn, settings, make_topic, producers):
    topic, leader = make_topic(partitions=4), uuid.uuid4()  # partition 3 stays empty
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "CREATE TABLE committed AS SELECT id, 'k' || id % 3 AS key FROM generate_series(1, 50000) id"
        )
    producer = producers()
    began_ms = int(time.time() * 1000)
    stamped = stamp(leader)
    for number in range(1, RECORDS + 1):
        producer.produce(
            topic, b"v" * 200, key=b"k%d" % (number % 3), partition=number % 3, headers={HEADER_NAME: stamped(number)}
        )
        producer.poll(0)
    producer.flush()
    report = audit(
        read_query(dsn, "SELECT id, key FROM committed;"),
        chain.from_iterable(read_topics(settings, [topic])),
    )
    assert report.ok
    assert report.committed == report.delivered == report.records == RECORDS
    (statistics,) = report.leaders
    assert (statistics.leader, statistics.records) == (leader, RECORDS)
    assert began_ms <= statistics.last_ms <= time.time() * 1000


def test_transactions_leave_gaps_that_end_no_reading_early_or_late(settings, make_topic, producers, monkeypatch):
    topic = make_topic(partitions=3)
    producer = producers(**{"transactional.id": topic, "transaction.timeout.ms": 60_000})
    producer.init_transactions()
    for first, finish in ((1, producer.commit_transaction), (3, producer.abort_transaction)):
        producer.begin_transaction()
        send(producer, topic, [first, first + 1])
        if first == 3:
            send(producer, topic, [5], partition=1)  # nothing but an aborted record and its marker
        producer.flush()
        finish()
    assert ids_in(settings, topic) == [1, 2]
    assert sorted(ids_in(settings, topic, isolation="read_uncommitted")) == [1, 2, 3, 4, 5]
    producer.begin_transaction()
    send(producer, topic, [6])
    send(producer, topic, [7], partition=2)
    producer.flush()
    monkeypatch.setattr("harvest_lib.audit.kafka_log._OPEN_SECONDS", 0.0)
    with pytest.raises(TransactionOpen, match=r"since offset 6: 1 offsets .* since offset 0: 1 offsets"):
        ids_in(settings, topic)
    assert sorted(ids_in(settings, topic, isolation="read_uncommitted")) == [1, 2, 3, 4, 5, 6, 7]


def test_what_an_open_transaction_hides_is_not_taken_for_lost(settings, make_topic, producers, unique, monkeypatch):
    monkeypatch.setattr("harvest_lib.audit.kafka_log._OPEN_SECONDS", 0.0)
    topic, producer = make_topic(partitions=1), producers()
    hanging = producers(**{"transactional.id": unique("hangs")})
    hanging.init_transactions(60)
    hanging.begin_transaction()
    hanging.produce(topic, b"never", partition=0)
    assert hanging.flush(60) == 0
    send(producer, topic, [1, 2])
    producer.flush()
    with pytest.raises(TransactionOpen, match="cannot be judged yet") as found:
        ids_in(settings, topic)
    assert f"partition 0 of {topic!r} since offset 0: 3 offsets behind it" in found.value.evidence
    assert f"abort --topic {topic} --partition 0 --start-offset 0" in found.value.next_step
    assert ids_in(settings, topic, isolation="read_uncommitted") == [None, 1, 2]
    hanging.abort_transaction(60)
    assert eventually(lambda: ids_in(settings, topic), "it has ended") == [1, 2]


def test_reading_begins_where_the_log_does_and_ends_where_it_ended(settings, admin, make_topic, producers):
    topic = make_topic()
    producer = producers()
    send(producer, topic, range(2_000))
    producer.flush()
    admin.delete_records([TopicPartition(topic, 0, 1_000)])[TopicPartition(topic, 0)].result(60)
    batches = read_topics(settings, [topic, topic])
    read = list(next(batches))
    send(producer, topic, range(2_000, 4_000))
    producer.flush()
    read += chain.from_iterable(batches)
    assert [record.id for record in read] == list(range(1_000, 2_000))
    assert [record.offset for record in read] == list(range(1_000, 2_000))


def test_ids_of_an_applications_own_header(settings, make_topic, producers):
    topic = make_topic()
    producer = producers()
    send(producer, topic, [1, -2], header="event-id")
    for value in (b"x", b"", None, str(2**63).encode()):
        producer.produce(topic, b"v", headers=[("event-id", value)])
    producer.produce(topic, b"v", headers=[(HEADER_NAME, b"another program's")])
    producer.produce(topic, b"v", headers=[(HEADER_NAME, None)])
    producer.produce(topic, None)
    leader = uuid.uuid4()
    producer.produce(topic, b"v", headers=[("event-id", b"3"), (HEADER_NAME, stamp(leader)(99))])
    producer.flush()
    records = list(chain.from_iterable(read_topics(settings, [topic], id_header="event-id")))
    assert [record.id for record in records] == [1, -2, *[None] * 7, 3]
    assert records[-1].leader == leader.bytes
    write_raw_header(settings["bootstrap.servers"], topic, b"\xff\xfe")
    assert ids_in(settings, topic) == [None] * 9 + [99, None]


def test_large_values_are_read_in_small_batches(settings, make_topic, producers):
    topic = make_topic()
    producer = producers(**{"compression.type": "none"})
    for _ in range(150):
        producer.produce(topic, b"x" * 900_000)
        producer.poll(0.01)
    producer.flush()
    sizes = [len(batch) for batch in read_topics(settings, [topic])]
    assert sum(sizes) == 150
    assert max(sizes) <= 10


def test_a_topic_that_is_not_there_is_not_made(settings, admin, unique):
    topic = unique("none")
    with pytest.raises(TopicMissing, match=topic):
        next(read_topics(settings, [topic]))
    assert topic not in admin.list_topics(timeout=60).topics


@pytest.mark.full
def test_kafka_that_does_not_answer():
    with pytest.raises(KafkaUnavailable, match="next step") as raised:
        next(read_topics({"bootstrap.servers": f"127.0.0.1:{closed_port()}", "sasl.password": "canary"}, ["t"]))
    assert raised.value.evidence
    assert "canary" not in str(raised.value)


def test_a_setting_that_librdkafka_does_not_know():
    with pytest.raises(ConfigError, match=r"no\.such\.setting"):
        next(read_topics({"no.such.setting": "1"}, ["t"]))


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT nothing", 'column "nothing" does not exist'),
        ("SELECT FROM", "does not select an integer id|syntax error"),
        ("DELETE FROM numbers RETURNING id", "syntax error"),
        ("SELECT nextval('numbers_id_seq')", "read-only transaction"),
        ("SELECT 'a'", "'a'"),
        ("SELECT 1.5", "fraction"),
        ("SELECT NULL", "NoneType"),
        ("SELECT 1 / (3 - id) FROM generate_series(1, 9) id", "division by zero"),
        ("", "syntax error"),
    ],
)
def test_a_query_that_postgres_refuses_is_named(dsn, query, reason):
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE numbers (id bigserial)")
    with pytest.raises(DatabaseError, match=reason) as raised:
        list(read_query(dsn, query))
    assert query in str(raised.value)
    assert raised.value.exit_code == 5


def test_what_a_query_may_give(dsn):
    query = "VALUES (1, 'a', 't'), (2, 'b', 'u'), (3, NULL, 't')"
    assert [each[:2] for each in read_query(dsn, query, topics=["t"])] == [(1, b"a"), (3, None)]
    assert [each[:2] for each in read_query(dsn, "SELECT 12::numeric, '\\x00ff'::bytea -- 100%")] == [(12, b"\x00\xff")]
    assert [each[:2] for each in read_query(dsn, "SELECT '7', 8")] == [(7, b"8")]
    assert list(read_query(dsn, "SELECT 1 WHERE false")) == []


def test_postgres_that_does_not_answer_or_refuses(dsn):
    with pytest.raises(DatabaseUnavailable) as raised:
        list(read_query(f"host=127.0.0.1 port={closed_port()} password=canary", "SELECT 1"))
    assert "canary" not in str(raised.value)
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE hidden AS SELECT 1 AS id")
        connection.execute("DROP ROLE IF EXISTS harvest_audit_nobody")
        connection.execute("CREATE ROLE harvest_audit_nobody LOGIN PASSWORD 'canary'")
    nobody = psycopg.conninfo.make_conninfo(dsn, user="harvest_audit_nobody", password="canary")
    try:
        with pytest.raises(DatabaseAccessDenied, match="hidden") as denied:
            list(read_query(nobody, "SELECT id FROM hidden"))
        assert "canary" not in str(denied.value)
    finally:
        with psycopg.connect(dsn) as connection:
            connection.execute("DROP ROLE harvest_audit_nobody")


@pytest.fixture
def harvest_audit(dsn, bootstrap_servers, tmp_path):
    """Run `harvest audit` and return its result."""
    config = tmp_path / "reaper.yaml"
    data_source = " ".join(f"{name}='{value}'" for name, value in psycopg.conninfo.conninfo_to_dict(dsn).items())
    config.write_text(
        "harvest:\n"
        f"  baseKafkaConfig:\n    bootstrap.servers: {bootstrap_servers}\n"
        f'  leaderGroupID: audited\n  dataSource: "{data_source} sslmode=disable"\n'
    )
    app = typer.Typer()
    app.command()(audit_command)

    def run(*arguments):
        return CliRunner().invoke(app, ["--config", str(config), *arguments])

    return run


@pytest.mark.quick
def test_the_command_knows_what_waits_and_what_is_lost(dsn, make_topic, producers, harvest_audit, tmp_path):
    topic = make_topic()
    producer = producers()
    first, second = uuid.UUID(int=1), uuid.UUID(int=2)
    send(producer, topic, [1, 2], leader=first)
    send(producer, topic, [2, 3, 4], leader=second)
    producer.flush()
    fill_outbox(dsn, topic, [4, 5])

    result = harvest_audit("--topic", topic, "--committed", "SELECT id, 'k' FROM generate_series(1, 5) id", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    counted = {name: report[name] for name in ("ok", "committed", "delivered", "pending", "lost", "duplicates")}
    assert counted == {"ok": True, "committed": 5, "delivered": 4, "pending": 1, "lost": 0, "duplicates": 1}
    assert report["explanations"] == [{"old_leader": str(first), "new_leader": str(second), "count": 1}]

    result = harvest_audit("-t", topic)
    assert result.exit_code == 0, result.output
    assert "no anomalies" in result.output
    for named in (topic, f"{topic},{make_topic()}", f"{topic}, {topic}"):
        assert json.loads(harvest_audit("-t", named, "--json").output)["purged"] == 3
    assert harvest_audit("-t", ",").exit_code == 2
    assert harvest_audit("-t", topic, "--committed", " ").exit_code == 2
    more = f"SELECT id, 'k', '{topic}', 'of no interest' FROM generate_series(1, 5) id"  # noqa: S608 - the name is ours
    assert harvest_audit("-t", topic, "--committed", more).exit_code == 0

    result = harvest_audit("-t", topic, "--committed", "SELECT id, 'wrong[key]' FROM generate_series(2, 6) id")
    assert result.exit_code == FOUND_EXIT_CODE
    assert "anomalies found" in result.output
    assert f"unknown: id 1 at {topic}/0@0" in result.output
    assert "lost: id 6" in result.output
    assert "wrong[key]" not in result.output

    committed = tmp_path / "committed.csv"
    committed.write_text("id,key\n1,k\n2,k\n3,k\n4,k\n5,\n")
    result = harvest_audit("-t", topic, "--committed-file", str(committed), "--show-keys")
    assert result.exit_code == FOUND_EXIT_CODE
    assert "lost: id 5" in result.output
    pending = "SELECT id FROM outbox"
    assert harvest_audit("-t", topic, "--committed-file", str(committed), "--pending", pending).exit_code == 0


@pytest.mark.quick
def test_the_command_fails_when_there_was_nothing_to_compare(dsn, make_topic, producers, harvest_audit, tmp_path):
    topic = make_topic()
    fill_outbox(dsn, topic, [])
    result = harvest_audit("--topic", topic)
    assert isinstance(result.exception, NothingChecked)
    assert "nothing was compared" in result.output
    allowed = harvest_audit("--topic", topic, "--allow-empty", "--json")
    assert allowed.exit_code == 0, allowed.output
    assert [json.loads(allowed.output)[name] for name in ("ok", "empty", "committed")] == [True, True, 0]
    producer = producers()
    producer.produce(topic, "another program's")
    producer.flush()
    foreign = harvest_audit("--topic", topic, "--json", "--metrics-file", str(tmp_path / "audit.prom"))
    assert isinstance(foreign.exception, NothingChecked)
    assert parsed((tmp_path / "audit.prom").read_text()) == {("harvest_audit_failed", (topic,)): 1}
    assert json.loads(foreign.stdout)["ok"] is False
    with psycopg.connect(dsn) as connection:
        connection.execute("INSERT INTO outbox (kafka_topic, kafka_key) VALUES (%s, 'k')", (topic,))
    assert harvest_audit("--topic", topic).exit_code == 0, "one that waits was looked at"


@pytest.mark.full
@pytest.mark.parametrize("delivery", ["barrier", "transactional"])
def test_the_command_misses_what_a_table_that_keeps_its_rows_has_and_kafka_not(
    dsn, make_topic, admin, bootstrap_servers, group_id, harvest_audit, tmp_path, delivery
):
    outbox = Subscribed(dsn, make_topic(partitions=1), bootstrap_servers, group_id)
    outbox.fill(20)
    outbox.harvest(delivery=delivery).drain(60)
    outbox.fill(3)

    def counted(*arguments):
        report = json.loads(harvest_audit("--topic", outbox.topic, "--json", *arguments).stdout)
        return {name: report[name] for name in ("ok", "committed", "delivered", "pending", "lost")}

    def found_in_metrics():
        counted("--metrics-file", str(tmp_path / "audit.prom"))
        found = series(parsed((tmp_path / "audit.prom").read_text()), "harvest_audit_findings")
        return {name: count for (name, _), count in found.items()}

    committed = ("--committed", "SELECT id, kafka_key FROM outbox")
    for arguments in ((), committed):
        assert counted(*arguments) == {"ok": True, "committed": 23, "delivered": 20, "pending": 3, "lost": 0}
    assert found_in_metrics() == dict.fromkeys(MUST_BE_ZERO, 0)
    place = TopicPartition(outbox.topic, 0, 5)
    admin.delete_records([place])[place].result(60)
    assert found_in_metrics() == {**dict.fromkeys(MUST_BE_ZERO, 0), "lost": 5}
    for arguments in ((), committed):
        assert counted(*arguments) == {"ok": False, "committed": 23, "delivered": 15, "pending": 3, "lost": 5}
    outbox.connection.execute(
        "INSERT INTO outbox_parked_ids (subscription, shard, id, kafka_topic, kafka_key, reason, held, transaction_id)"
        " SELECT 'default', 0, id, 't', 'k', 'r', false, transaction_id FROM outbox WHERE id = 1"
    )
    assert counted()["lost"] == 4, "one of them is parked"
    outbox.close()


@pytest.mark.parametrize("value_type", ["text", "bytea"])
def test_records_whose_ids_came_again_do_not_stand_for_those_that_have_them_now(
    dsn, make_topic, bootstrap_servers, group_id, harvest_audit, value_type
):
    """As after a restore: the position has passed ids that other records have now."""
    with psycopg.connect(dsn) as connection:
        NativeTable(outbox=OutboxTable.parse("outbox"), value_type=value_type).create(connection)
    outbox = Subscribed(dsn, make_topic(partitions=1), bootstrap_servers, group_id)
    insert = "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES (%s, 'k', %s)"
    for value in ("one", "two", "three", "vier ✓", "", None, "seven"):
        outbox.connection.execute(insert, (outbox.topic, value and value.encode() if value_type == "bytea" else value))
    outbox.harvest(delivery="transactional").drain(60)
    names = ("ok", "records", "committed", "delivered", "lost", "other_contents", "duplicates", "unknown")

    def counted():
        report = json.loads(harvest_audit("--topic", outbox.topic, "--json").stdout)
        return [report[name] for name in names]

    assert counted() == [True, 7, 7, 7, 0, 0, 0, 0]
    other = "other" if value_type == "text" else b"other"
    outbox.connection.execute("UPDATE outbox SET kafka_value = %s WHERE id > 4", (other,))
    assert counted() == [False, 7, 7, 4, 3, 3, 0, 0]
    outbox.subscriptions.rewind("default", to="beginning")
    outbox.harvest(delivery="transactional").drain(60)
    assert counted() == [False, 14, 7, 7, 0, 3, 4, 0], "what is in Kafka for ever is still said"
    outbox.close()


def test_an_audit_whose_output_nobody_reads_ends_as_if_it_was_read(make_topic, harvest_audit, tmp_path):
    topic, metrics, none = make_topic(), tmp_path / "audit.prom", tmp_path / "none.csv"
    none.write_text("id,key\n")
    arguments = ["--topic", topic, "--committed-file", none, "--allow-empty", "--metrics-file", metrics]
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "harvest_lib.cli", "audit", "--config", tmp_path / "reaper.yaml", *arguments]
    with os.fdopen(writer) as stdout:
        for form in ([], ["--json"]):
            done = subprocess.run([*command, *form], stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, "")
    assert parsed(metrics.read_text())["harvest_audit_failed", (topic,)] == 0


def test_an_audit_is_shown_though_its_file_of_metrics_cannot_be_written(
    dsn, make_topic, harvest_audit, tmp_path, monkeypatch
):
    def full(path, samples):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    topic = make_topic()
    fill_outbox(dsn, topic, [1])
    monkeypatch.setattr("harvest_lib.audit.textfile._write", full)
    result = harvest_audit("--topic", topic, "--metrics-file", str(tmp_path / "audit.prom"))
    assert isinstance(result.exception, ConfigError)
    assert "no anomalies" in result.output


def test_the_command_asks_for_a_subscription_that_is_there(dsn, make_topic, harvest_audit):
    topic = make_topic()
    with psycopg.connect(dsn, autocommit=True) as connection:
        NativeTable(outbox=OutboxTable.parse("outbox")).create(connection)
        connection.execute(
            "INSERT INTO outbox_subscriptions (subscription, shard, shards, source) VALUES ('other', 0, 1, 'snapshot')"
        )
    result = harvest_audit("--topic", topic)
    assert isinstance(result.exception, CheckpointError)
    assert "there are other" in result.exception.evidence


def test_the_command_counts_parked_records_as_pending(dsn, make_topic, producers, harvest_audit):
    topic = make_topic()
    producer = producers()
    send(producer, topic, [1])
    producer.flush()
    fill_outbox(dsn, topic, [2])
    with psycopg.connect(dsn, autocommit=True) as connection:
        ParkedRecords(OutboxTable.parse("outbox")).create(connection)
        connection.execute(
            "INSERT INTO outbox_parked (id, kafka_topic, kafka_key, reason, held, record)"
            " VALUES (3, %s, 'k', 'r', false, '{}')",
            (topic,),
        )
    found = harvest_audit("-t", topic, "--committed", "SELECT id, 'k' FROM generate_series(1, 4) id", "--json")
    report = json.loads(found.stdout)
    assert (report["delivered"], report["pending"], report["lost"]) == (1, 2, 1)


def test_the_command_reads_what_is_committed_meanwhile(dsn, make_topic, producers, harvest_audit, monkeypatch):
    topic = make_topic()
    producer = producers()
    send(producer, topic, [1, 2])
    producer.flush()
    fill_outbox(dsn, topic, [])
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE flights AS SELECT 1 AS id")

    def late(*arguments, **named):
        with psycopg.connect(dsn) as connection:
            connection.execute("INSERT INTO flights VALUES (2)")
        return read_topics(*arguments, **named)

    monkeypatch.setattr("harvest_lib.audit.read_topics", lambda *a, **n: (batch for batch in late(*a, **n)))
    result = harvest_audit("-t", topic, "--committed", "SELECT id FROM flights", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["committed"] == 2


def test_the_command_line_is_checked(harvest_audit, tmp_path):
    assert harvest_audit().exit_code == 2
    assert harvest_audit("-t", "t", "--committed", "SELECT 1", "--committed-file", "f").exit_code == 2
    assert harvest_audit("-t", "t", "--id-header", "event-id").exit_code == 2
    assert harvest_audit("-t", "t", "--isolation", "none").exit_code == 2
    assert harvest_audit("-t", "t", "--spill", str(tmp_path / "none")).exit_code == 2
    for arguments, exit_code in (
        (["--committed", "SELECT nothing", "--pending", "SELECT 1"], 5),
        (["--committed-file", "none.csv"], 3),
        (["--committed", "SELECT 1"], 4),  # there is no outbox table to ask what waits
        (["--committed", "SELECT 1", "--pending", "SELECT 1"], 6),
    ):
        assert harvest_audit("-t", "t-none", *arguments).exception.exit_code == exit_code
