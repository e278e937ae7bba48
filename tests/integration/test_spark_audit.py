"""The audit by Spark on real topics and tables: each anomaly is made by hand, and exactly its number changes."""

import json
import random
import socket
import uuid
from collections import Counter
from dataclasses import asdict
from itertools import count

import psycopg
import pytest
from confluent_kafka import Producer, TopicPartition
from psycopg.conninfo import make_conninfo
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from support.outbox import Outbox, harvest_config, read_topic
from support.spark import session_with_kafka
from support.subscribed import Subscribed

from harvest_lib.audit import CommittedRecord, ObservedRecord
from harvest_lib.audit import audit as audit_in_one_process
from harvest_lib.errors import (
    CheckpointError,
    ConfigError,
    DatabaseAccessDenied,
    DatabaseUnavailable,
    KafkaAccessDenied,
    KafkaUnavailable,
    OutboxTableError,
    TopicMissing,
)
from harvest_lib.harvester import Harvest
from harvest_lib.outbox import append
from harvest_lib.provenance import HEADER_NAME, stamp
from harvest_lib.record import OutboxRecord
from spark_jobs.audit import Business, audit, comparison, kafka_side
from spark_jobs.audit.__main__ import main
from spark_jobs.contracts import AUDIT_SUMMARY
from spark_jobs.expectations import Limits, expect_audit, read_audit

pytestmark = pytest.mark.spark

KEYS, RECORDS = 3, 30

BUSINESS = """
CREATE TABLE flights (flight_id bigserial PRIMARY KEY, tail_number text, batch text NOT NULL);
CREATE TABLE flights_batches (
    batch text PRIMARY KEY, rows bigint, promoted_at timestamptz DEFAULT clock_timestamp());
"""
PROMOTE = """
WITH inserted AS (
    INSERT INTO flights (tail_number, batch) SELECT 'N' || g %% 3, %(batch)s FROM generate_series(1, %(rows)s) g
    RETURNING flight_id, tail_number)
INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
SELECT clock_timestamp(), %(topic)s, tail_number, '{}', ARRAY['batch', 'event-id'], ARRAY[%(batch)s, flight_id::text]
FROM inserted ORDER BY flight_id
"""


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    with session_with_kafka(tmp_path_factory.mktemp("spark")) as session:
        yield session


class Audited:
    """An outbox that is audited again and again; each audit tells which numbers have changed since the last."""

    def __init__(self, outbox, servers, **how):
        self.outbox, self.servers, self.how = outbox, servers, how
        self.numbers = Counter()
        self.producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})

    def audit(self, **how):
        how = {"dsn": self.outbox.dsn, "kafka": {"bootstrap.servers": self.servers}, **self.how, **how}
        return audit(topics=[self.outbox.topic], **how)

    def changed(self):
        found = {
            name: value
            for name, value in asdict(self.audit()).items()
            if isinstance(value, int) and not name.startswith("delay")
        }
        changed = {name: value - self.numbers[name] for name, value in found.items() if value != self.numbers[name]}
        self.numbers = Counter(found)
        return changed

    def log(self):
        return read_topic(self.servers, self.outbox.topic, isolation="read_committed")

    def produce(self, like, *, outbox_id=None, leader=None, headers=None, header=True):
        """Send a record to where one like it is; by its leader, unless another is named."""
        outbox_id = like.outbox_id if outbox_id is None else outbox_id
        own = [(HEADER_NAME, stamp(leader or like.leader_id)(outbox_id))] if header is True else header
        self.producer.produce(
            self.outbox.topic,
            "by hand",
            like.key,
            like.partition,
            headers=[*(like.headers if headers is None else headers), *own],
        )
        self.producer.flush()

    def findings(self, table):
        return self.outbox.connection.execute(f"SELECT * FROM harvest_audit.{table}").fetchall()  # noqa: S608


@pytest.fixture
def native(spark, dsn, make_topic, bootstrap_servers, group_id):
    outbox = Subscribed(dsn, make_topic(partitions=4), bootstrap_servers, group_id)
    yield Audited(outbox, bootstrap_servers)
    outbox.close()


@pytest.fixture
def purged(spark, dsn, make_topic, bootstrap_servers, group_id):
    outbox = Outbox(dsn, make_topic(partitions=4))
    outbox.connection.execute(BUSINESS)
    audited = Audited(outbox, bootstrap_servers)
    batches = count(1)

    def promote(rows):
        values = {"batch": f"b{next(batches)}", "rows": rows, "topic": outbox.topic}
        with outbox.connection.transaction():
            outbox.connection.execute(PROMOTE, values)
            outbox.connection.execute(
                "INSERT INTO flights_batches (batch, rows) VALUES (%s, %s)", (values["batch"], rows)
            )

    audited.promote = promote
    audited.harvest = lambda: Harvest(
        harvest_config(dsn, bootstrap_servers, group_id, leadership="solo", source="mark")
    ).drain(60)
    yield audited
    outbox.close()


def write(outbox, *keys):
    append(outbox.connection, [OutboxRecord(topic=outbox.topic, key=key, value="v") for key in keys])


def closed_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def of_one_key(log):
    """The records of the key that has most of them, in order."""
    ((key, _),) = Counter(record.key for record in log).most_common(1)
    return [record for record in log if record.key == key]


def test_anomalies_of_all_kinds_are_told_apart(native):
    outbox = native.outbox
    outbox.fill(RECORDS, keys=KEYS)
    outbox.harvest(delivery="transactional").drain(60)
    first, *_, last = of_one_key(native.log())
    for _ in range(2):
        native.produce(last)
    native.produce(first)
    native.produce(last, leader=uuid.uuid4())
    for outbox_id in (10**9 + 1, 10**9):
        native.produce(last, outbox_id=outbox_id)
    native.produce(last, header=[(HEADER_NAME, b"another program's")])
    write(outbox, last.key)
    assert native.changed() == {
        "records": RECORDS + 7,
        "committed": RECORDS + 1,
        "duplicates_adjacent": 2,
        "duplicates_separated": 1,
        "duplicates_cross_epoch": 1,
        "reordered": 1,
        "unknown": 2,
        "foreign_messages": 1,
        "backlog_records": 1,
    }


@pytest.mark.long
def test_each_anomaly_changes_its_number_and_no_other(native, admin):
    outbox = native.outbox
    outbox.fill(RECORDS, keys=KEYS)
    outbox.harvest(delivery="transactional").drain(60)
    assert native.changed() == {"records": RECORDS, "committed": RECORDS}
    first, second, *_, last = of_one_key(native.log())

    native.produce(last)
    assert native.changed() == {"records": 1, "duplicates_adjacent": 1}
    native.produce(second)
    assert native.changed() == {"records": 1, "duplicates_separated": 1}
    native.produce(last, leader=uuid.uuid4())
    assert native.changed() == {"records": 1, "duplicates_cross_epoch": 1}
    assert sorted(kind for _, kind, *_ in native.findings("duplicates")[-3:]) == [
        "adjacent",
        "cross_epoch",
        "separated",
    ]

    write(outbox, last.key, last.key)
    assert native.changed() == {"committed": 2, "backlog_records": 2}
    outbox.connection.execute("UPDATE outbox_subscriptions SET seen = pg_current_snapshot()")
    assert native.changed() == {"lost": 2, "backlog_records": -2}
    assert [record for _, record, _ in native.findings("lost")[-2:]] == [str(RECORDS + 1), str(RECORDS + 2)]
    for outbox_id in (RECORDS + 2, RECORDS + 1):
        native.produce(last, outbox_id=outbox_id)
    assert native.changed() == {"records": 2, "lost": -2, "reordered": 1}
    ((_, record, *ids, topic, partition, _),) = native.findings("reorderings")
    assert (record, ids) == (str(RECORDS + 1), [RECORDS + 1, RECORDS + 2])
    assert (topic, partition) == (outbox.topic, last.partition)

    native.produce(last, outbox_id=10**9)
    assert native.changed() == {"records": 1, "unknown": 1}
    assert [row[1:3] for row in native.findings("unknown")] == [(str(10**9), 10**9)]
    log = native.log()
    for header in ([], [(HEADER_NAME, b"another program's")], [(HEADER_NAME, None)], [(HEADER_NAME, b"\x02" * 25)]):
        native.produce(last, header=header)
    assert native.changed() == {"records": 4, "foreign_messages": 4}

    place = TopicPartition(outbox.topic, first.partition, first.offset + 1)
    gone = [record for record in log if record.partition == first.partition and record.offset <= first.offset]
    admin.delete_records([place])[place].result(30)
    assert native.changed() == {"records": -len(gone), "lost": len(gone)}


def test_where_rows_are_purged_the_ledger_says_what_was_committed(purged):
    purged.promote(RECORDS)
    purged.harvest()
    purged.promote(1)
    assert purged.outbox.count() == 1
    assert purged.changed() == {"records": RECORDS, "committed": RECORDS + 1, "backlog_records": 1}


@pytest.mark.long
def test_each_anomaly_of_a_purged_outbox_changes_its_number_and_no_other(purged):
    purged.promote(RECORDS)
    assert purged.changed() == {"committed": RECORDS, "backlog_records": RECORDS}
    purged.harvest()
    assert purged.outbox.count() == 0
    assert purged.changed() == {"records": RECORDS, "backlog_records": -RECORDS}
    *_, last = of_one_key(purged.log())
    purged.produce(last)
    assert purged.changed() == {"records": 1, "duplicates_adjacent": 1}
    # The same flight from another outbox row: promoted twice.
    purged.produce(last, outbox_id=last.outbox_id + 1_000)
    assert purged.changed() == {"records": 1, "duplicates_adjacent": 1}
    purged.produce(last, outbox_id=5_000, headers=[("event-id", "5000")])
    purged.produce(last, outbox_id=5_001, headers=[("event-id", b"\x00\xff")])
    purged.produce(last, outbox_id=5_002, headers=[])
    assert purged.changed() == {"records": 3, "unknown": 3}
    assert [row[1] for row in purged.findings("unknown")[-3:]] == ["5000", "outbox id 5001", "outbox id 5002"]

    purged.promote(4)
    outbox = purged.outbox.connection
    (lost, parked, *_) = [each for (each,) in outbox.execute("SELECT id FROM outbox ORDER BY id")]
    outbox.execute("DELETE FROM outbox WHERE id = %s", (lost,))
    outbox.execute(
        "WITH moved AS (DELETE FROM outbox WHERE id = %s RETURNING *) INSERT INTO outbox_parked"
        " SELECT id, kafka_topic, kafka_key, 'too large', false, now(), to_jsonb(moved) FROM moved",
        (parked,),
    )
    assert purged.changed() == {"committed": 4, "lost": 1, "backlog_records": 2}
    assert [record for _, record, _ in purged.findings("lost")] == [str(RECORDS + 1)]


def test_what_comes_while_it_reads_is_neither_lost_nor_unknown(native, monkeypatch):
    write(native.outbox, "early")
    native.outbox.harvest(delivery="pipelined").drain(60)
    real, looks = kafka_side.Topics.logs, count()

    def logs(topics):
        if next(looks) == 0:
            found = real(topics)
            write(native.outbox, "between the first look and the snapshot")
            native.outbox.harvest(delivery="pipelined").drain(60)
            return found
        write(native.outbox, "after the snapshot")
        native.outbox.harvest(delivery="pipelined").drain(60)
        return real(topics)

    monkeypatch.setattr(kafka_side.Topics, "logs", logs)
    assert native.changed() == {"records": 3, "committed": 2}


def test_delays_and_backlog(native):
    outbox = native.outbox
    empty = native.audit()
    assert (empty.records, empty.committed, empty.delay_p50_ms, empty.backlog_age_seconds) == (0, 0, None, 0.0)
    outbox.fill(2, keys=1)
    outbox.connection.execute("UPDATE outbox SET create_time = create_time - interval '1 hour' WHERE id = 1")
    outbox.harvest(delivery="pipelined").drain(60)
    write(outbox, "waits")
    outbox.connection.execute("UPDATE outbox SET create_time = now() - interval '90 seconds' WHERE id = 3")
    found = native.audit()
    assert found.delay_p50_ms < 30_000
    assert 3_600_000 <= found.delay_p99_ms == found.delay_max_ms < 3_630_000
    assert found.backlog_records == 1
    assert 90 <= found.backlog_age_seconds < 120


def test_filters_shards_and_what_is_set_aside(native):
    outbox = native.outbox
    outbox.subscriptions.add("eu", topics=[outbox.topic], keys="^eu%-")
    outbox.subscriptions.add("two", shards=2)
    write(outbox, "eu%-1", "us-1", "eu%-2")
    outbox.harvest(subscription="eu", delivery="pipelined").drain(60)
    assert asdict(native.audit(subscription="eu")).items() >= {"records": 2, "committed": 2, "lost": 0}.items()
    found = native.audit(subscription="two")
    assert (found.committed, found.lost, found.backlog_records) == (3, 0, 1)
    outbox.connection.execute("UPDATE outbox_subscriptions SET seen = pg_current_snapshot() WHERE subscription = 'two'")
    assert native.audit(subscription="two").lost == 1
    outbox.connection.execute("UPDATE outbox_subscriptions SET holds = 2 WHERE subscription = 'two'")
    assert native.audit(subscription="two").backlog_records == 1
    outbox.connection.execute(
        "UPDATE outbox_subscriptions SET holds = NULL WHERE subscription = 'two';"
        "INSERT INTO outbox_set_aside (subscription, shard, id, kafka_topic, kafka_key, reason, held)"
        " VALUES ('two', 0, 2, 't', 'us-1', 'too large', false)"
    )
    found = native.audit(subscription="two")
    assert (found.lost, found.backlog_records) == (0, 0)
    with pytest.raises(CheckpointError, match="eu, two"):
        native.audit(subscription="none")


def test_an_audit_of_the_same_id_replaces_the_first(native):
    outbox = native.outbox
    outbox.fill(RECORDS, keys=KEYS)
    outbox.harvest(delivery="pipelined").drain(60)
    log = native.log()
    native.produce(log[0], outbox_id=10**9)
    first = native.audit(audit_id="nightly")
    native.produce(log[0], outbox_id=10**9 + 1)
    second = native.audit(audit_id="nightly")
    assert (first.unknown, second.unknown) == (1, 2)
    assert [row[0] for row in native.findings("unknown")] == ["nightly"] * 2
    assert read_audit(outbox.dsn).to_dict("records") == read_audit(outbox.dsn, "nightly").to_dict("records")
    (row,) = AUDIT_SUMMARY.enforce(read_audit(outbox.dsn)).to_dict("records")
    assert row.pop("at").timestamp() == pytest.approx(second.at.timestamp(), abs=1e-3)
    assert row == {name: value for name, value in asdict(second).items() if name != "at"}
    assert native.findings("staging") == []


def test_findings_are_kept_up_to_a_limit_and_all_are_counted(native, monkeypatch):
    monkeypatch.setattr("spark_jobs.audit.run.MOST_FINDINGS", 5)
    native.outbox.fill(RECORDS, keys=KEYS)
    native.outbox.subscriptions.add("default")
    native.outbox.connection.execute("UPDATE outbox_subscriptions SET seen = pg_current_snapshot()")
    assert native.audit().lost == RECORDS
    assert len(native.findings("lost")) == 5


def test_the_command_prints_and_exits_by_what_it_found(native, capsys):
    native.outbox.fill(RECORDS, keys=KEYS)
    native.outbox.harvest(delivery="pipelined").drain(60)
    arguments = ["--dsn", native.outbox.dsn, "--bootstrap-servers", native.servers, "--topic", native.outbox.topic]
    assert main([*arguments, "--audit-id", "nightly"]) == 0
    assert "audit nightly: all is well" in capsys.readouterr().out
    native.produce(native.log()[0], outbox_id=10**9)
    assert main([*arguments, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["unknown"] == 1


def test_credentials_of_kafka_reach_spark_and_wrong_ones_are_told(native, stack):
    if stack.kafka is None:
        pytest.skip("an outside Kafka has no SASL listener of ours")
    native.outbox.fill(RECORDS, keys=KEYS)
    native.outbox.harvest(delivery="pipelined").drain(60)
    assert native.audit(kafka=stack.kafka.sasl_settings).records == RECORDS
    with pytest.raises(KafkaAccessDenied) as caught:
        native.audit(kafka={**stack.kafka.sasl_settings, "sasl.password": "canary"})
    assert "canary" not in str(caught.value)


def test_what_is_not_there_is_told_before_spark_starts(native, monkeypatch):
    monkeypatch.setattr("spark_jobs.audit.run.spark_session", None)
    dsn = native.outbox.dsn
    with pytest.raises(TopicMissing, match="nowhere"):
        audit(dsn=dsn, kafka={"bootstrap.servers": native.servers}, topics=["nowhere"])
    with pytest.raises(KafkaUnavailable):
        native.audit(kafka={"bootstrap.servers": f"127.0.0.1:{closed_port()}"})
    with pytest.raises(DatabaseUnavailable):
        native.audit(
            dsn=make_conninfo(dsn, host="127.0.0.1", hostaddr="127.0.0.1", port=closed_port(), password="canary")
        )
    with pytest.raises(DatabaseAccessDenied) as caught:
        native.audit(dsn=make_conninfo(dsn, user="nobody_at_all", password="canary"))
    assert "canary" not in str(caught.value)
    with pytest.raises(OutboxTableError, match="nowhere"):
        native.audit(outbox="nowhere")
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE other AS SELECT 1 AS id")
    with pytest.raises(OutboxTableError, match="not an outbox"):
        native.audit(outbox="other")


def test_a_native_table_that_is_marked_is_compared_with_the_ledger_when_that_is_said(native):
    outbox = native.outbox
    outbox.connection.execute(BUSINESS)
    with outbox.connection.transaction():
        outbox.connection.execute(PROMOTE, {"batch": "b", "rows": 5, "topic": outbox.topic})
        outbox.connection.execute("INSERT INTO flights_batches (batch, rows) VALUES ('b', 5)")
    outbox.harvest(source="mark").drain(60)
    assert outbox.count() == 0
    found = native.audit(committed="ledger")
    assert (found.records, found.committed, found.ok) == (5, 5, True)
    assert native.audit().unknown == 5


def test_a_business_table_that_does_not_fit_is_named(purged, monkeypatch):
    monkeypatch.setattr("spark_jobs.audit.run.spark_session", None)
    with pytest.raises(OutboxTableError, match="bookings"):
        purged.audit(business=Business(table="bookings"))
    with pytest.raises(ConfigError, match="'tail_number'"):
        purged.audit(business=Business(id_column="tail_number"))
    with pytest.raises(ConfigError, match="'none'"):
        purged.audit(business=Business(id_column="none"))
    purged.outbox.connection.execute("ALTER TABLE flights_batches DROP COLUMN promoted_at")
    with pytest.raises(ConfigError, match="not a ledger"):
        purged.audit()


def test_a_table_without_the_privilege_to_read_it(native, monkeypatch):
    monkeypatch.setattr("spark_jobs.audit.run.spark_session", None)
    outbox, name = native.outbox, f"reader_{uuid.uuid4().hex[:8]}"
    outbox.connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'canary'")
    try:
        with pytest.raises(DatabaseAccessDenied) as caught:
            native.audit(dsn=make_conninfo(outbox.dsn, user=name, password="canary"))
        assert "canary" not in str(caught.value)
    finally:
        outbox.connection.execute(f"DROP ROLE {name}")


def test_expectations_and_their_pages(native, tmp_path, monkeypatch):
    native.outbox.fill(RECORDS, keys=KEYS)
    native.outbox.harvest(delivery="pipelined").drain(60)
    native.audit(audit_id="good")
    called = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *where, **_: called.append(where) or [])
    good = expect_audit(read_audit(native.outbox.dsn, "good"), docs=tmp_path / "good")
    assert good.ok
    assert good.index.is_file()
    log = native.log()
    native.produce(log[0], outbox_id=10**9)
    native.produce(log[0], leader=uuid.uuid4())
    monkeypatch.undo()
    summary = native.audit(audit_id="bad")
    bad = expect_audit(summary, docs=tmp_path / "bad", limits=Limits(duplicates_cross_epoch=0, foreign_messages=0))
    assert [failed.column for failed in bad.failed] == ["unknown", "duplicates_cross_epoch"]
    assert "seen 1" in str(bad.failed[0])
    assert bad.url == (tmp_path / "bad" / "index.html").as_uri()
    (page,) = (tmp_path / "bad" / "validations").rglob("*.html")
    assert "unknown" in page.read_text()
    assert called == [], "nothing is looked up: nobody is called"


# -- the comparison against that of a single process

CASES, IDS = 300, 9


def random_case(dice):
    committed = dice.sample(range(IDS), dice.randrange(IDS))
    log = [
        (
            dice.choice("tu"),
            dice.randrange(2),
            dice.choice([b"a", b"a", b"b", b""]),
            dice.randrange(IDS),
            dice.choice("XYZ"),
        )
        for _ in range(dice.randrange(25))
    ]
    return committed, log


def test_the_comparison_counts_as_that_of_one_process_does(spark):
    dice = random.Random(1)
    cases = [random_case(dice) for _ in range(CASES)]
    observed, committed = [], []
    for number, (ids, log) in enumerate(cases):
        committed += [(number * IDS + each, comparison.MUST_COME) for each in ids]
        for offset, (topic, partition, key, record, leader) in enumerate(log):
            place = (f"{topic}{number}", partition, offset, bytearray(key))
            observed.append((number * IDS + record, number * IDS + record, bytearray(leader.encode() * 16), *place))
    columns = "record bigint, outbox_id bigint, leader binary, topic string, partition int, offset bigint, key binary"
    compared = comparison.compare(
        spark.createDataFrame(observed, columns)
        .withColumn("at", F.current_timestamp())
        .withColumn("is_judged", F.lit(True)),  # noqa: FBT003
        spark.createDataFrame(committed, "record bigint, state string").withColumn("since", F.current_timestamp()),
    )
    case = F.floor(F.col("record") / IDS).alias("case")
    found = {row["case"]: row for row in compared.groupBy(case).agg(*comparison.numbers()).collect()}
    for number, (ids, log) in enumerate(cases):
        if not ids and not log:
            continue
        report = audit_in_one_process(
            [CommittedRecord(each) for each in ids],
            [
                ObservedRecord(topic, partition, offset, 0, key, record, leader.encode() * 16)
                for offset, (topic, partition, key, record, leader) in enumerate(log)
            ],
        )
        row = found[number].asDict()
        for name in ("committed", "lost", "unknown", "reordered"):
            assert row[name] == getattr(report, name), (number, name)
        assert row["ours"] == report.records
        assert row["duplicates_cross_epoch"] == report.explained_duplicates
        assert row["duplicates_adjacent"] + row["duplicates_separated"] == report.unexplained_duplicates
