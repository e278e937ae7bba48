"""The audit in a single process that is stored: outboxes of each kind, refusals, and the rows that it leaves."""

import socket
from dataclasses import asdict

import pytest
from confluent_kafka import Producer
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row
from support.outbox import harvest_config, read_topic
from support.subscribed import Subscribed

from harvest_lib.audit import stored
from harvest_lib.audit.stored import stored_audit
from harvest_lib.config import ColumnMapping
from harvest_lib.errors import ConfigError, DatabaseAccessDenied, KafkaUnavailable, OutboxTableError, TopicMissing
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.record.header import HEADER_NAME, stamp

pytestmark = pytest.mark.gate

RECORDS = 30

MAPPED = """
CREATE TABLE sales (
  position bigserial PRIMARY KEY, channel text NOT NULL, customer text NOT NULL, data text NOT NULL,
  scheduled timestamptz NOT NULL DEFAULT now(), transaction_id xid8 NOT NULL DEFAULT pg_current_xact_id());
CREATE INDEX ON sales (transaction_id, position);
"""
HELD = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND backend_xmin IS NOT NULL AND pid <> pg_backend_pid()
"""
COLUMNS = {
    "id": "position",
    "kafka_topic": "channel",
    "kafka_key": "customer",
    "kafka_value": "data",
    "create_time": "scheduled",
}


@pytest.fixture
def outbox(dsn, make_topic, bootstrap_servers, group_id):
    found = Subscribed(dsn, make_topic(partitions=2), bootstrap_servers, group_id)
    yield found
    found.close()


@pytest.fixture
def audit(outbox):
    def run(audit_id="nightly", *, committed=None, **settings):
        place = {"dsn": outbox.dsn, "bootstrap_servers": outbox.servers, "group": outbox.group}
        config = harvest_config(**{**place, **settings})
        return stored_audit(config, [outbox.topic], audit_id=audit_id, committed=committed)

    return run


def findings(outbox, table):
    return outbox.connection.execute(sql.SQL("SELECT * FROM harvest_audit.{}").format(sql.Identifier(table))).fetchall()


def test_the_time_of_an_audit_is_before_the_read_of_the_committed_records(outbox, audit):
    outbox.fill(RECORDS)
    outbox.harvest().drain(60)
    slow = "SELECT id, kafka_key, kafka_topic FROM outbox, (SELECT pg_sleep(2) OFFSET 0) AS late"
    summary = audit(committed=slow)
    (after,) = outbox.connection.execute("SELECT clock_timestamp() - interval '2 s'").fetchone()
    assert summary.committed == RECORDS
    assert summary.at < after, "records that were committed while the query ran are not in it"


def test_the_row_that_is_stored_is_the_summary(outbox, audit):
    outbox.fill(RECORDS)
    outbox.harvest().drain(60)
    summary = audit()
    assert (summary.ok, summary.committed, summary.records) == (True, RECORDS, RECORDS)
    with outbox.connection.cursor(row_factory=dict_row) as cursor:
        (row,) = cursor.execute("SELECT * FROM harvest_audit.summary").fetchall()
    assert row.pop("at").timestamp() == pytest.approx(summary.at.timestamp(), abs=1e-3)
    assert row == {name: value for name, value in asdict(summary).items() if name != "at"}
    assert findings(outbox, "audited") == [("nightly", '"public"."outbox"', outbox.topic)]


def test_an_audit_of_the_same_id_replaces_the_first(outbox, audit):
    outbox.fill(RECORDS)
    outbox.subscriptions.add("default")
    outbox.connection.execute("UPDATE outbox_subscriptions SET low_watermark = pg_current_snapshot()")
    assert audit().lost == RECORDS
    assert len(findings(outbox, "lost")) == RECORDS
    outbox.connection.execute("DELETE FROM outbox WHERE id > 1")
    assert audit().lost == 1
    assert [row[:2] for row in findings(outbox, "lost")] == [("nightly", "1")]
    assert findings(outbox, "staging") == []


def test_an_audit_during_writing_takes_later_records_for_neither_lost_nor_unknown(outbox, audit, monkeypatch):
    """Records that are written and delivered between the snapshot of Postgres and the reading of Kafka."""
    outbox.fill(RECORDS)
    outbox.harvest().drain(60)
    read = stored.read_topics

    def later(*arguments):
        outbox.fill(5)
        outbox.harvest().drain(60)
        return read(*arguments)

    monkeypatch.setattr(stored, "read_topics", later)
    during = audit()
    assert (during.ok, during.committed, during.records) == (True, RECORDS, RECORDS + 5)


def test_an_outbox_with_other_columns_is_audited(outbox, audit):
    outbox.connection.execute(MAPPED)
    for number in range(RECORDS):
        values = (outbox.topic, f"c{number % 3}", "{}")
        outbox.connection.execute("INSERT INTO sales (channel, customer, data) VALUES (%s, %s, %s)", values)
    mapped = {"outbox_table": "sales", "columns": ColumnMapping(**COLUMNS), "source": "snapshot"}
    Harvest(harvest_config(outbox.dsn, outbox.servers, outbox.group, **mapped)).drain(60)
    found = audit(**mapped)
    assert (found.ok, found.committed, found.keys) == (True, RECORDS, 3)
    outbox.connection.execute("UPDATE sales SET data = 'later'")
    assert audit(**mapped).ok, "rows of such a table may change after their delivery"


def test_where_rows_are_deleted_a_query_says_what_was_committed(outbox, audit):
    outbox.connection.execute("CREATE TABLE kept (outbox_id bigint, customer text, topic text)")
    outbox.fill(RECORDS, keys=3)
    outbox.connection.execute("INSERT INTO kept SELECT id, kafka_key, kafka_topic FROM outbox")
    outbox.connection.execute("INSERT INTO kept VALUES (10000, 'k', 'another topic')")
    marks = {"source": "mark", "committed": "SELECT outbox_id, customer, topic FROM kept"}
    assert (found := audit(**marks)).ok
    assert (found.committed, found.backlog_records, found.records) == (RECORDS, RECORDS, 0)
    Harvest(harvest_config(outbox.dsn, outbox.servers, outbox.group, source="mark")).drain(60)
    assert outbox.count() == 0
    assert (found := audit(**marks)).ok
    assert (found.committed, found.backlog_records, found.keys) == (RECORDS, 0, 3)
    outbox.connection.execute("INSERT INTO kept VALUES (10001, 'customer', %s)", (outbox.topic,))
    outbox.connection.execute("DELETE FROM kept WHERE outbox_id = 1")
    found = audit(**marks)
    assert (found.lost, found.unknown, found.keys_with_gaps) == (1, 1, 2)
    assert [row[1] for row in findings(outbox, "lost")] == ["10001"]


def test_where_rows_are_deleted_and_nothing_says_what_was_committed_the_audit_is_refused(outbox, audit):
    outbox.fill(1)
    with pytest.raises(ConfigError, match="deleted on delivery") as error:
        audit(source="mark")
    assert "--committed" in error.value.next_step
    assert findings(outbox, "summary") == []


@pytest.fixture
def reader(outbox, unique):
    """The DSN of a role that may read the outbox, and write results into tables that exist."""
    name = sql.Identifier(unique("reader")[:63])
    outbox.connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'granted'").format(name))
    for statement in (
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO {}",
        "GRANT USAGE ON SCHEMA harvest_audit TO {}",
        "GRANT SELECT, INSERT, DELETE ON ALL TABLES IN SCHEMA harvest_audit TO {}",
    ):
        outbox.connection.execute(sql.SQL(statement).format(name))
    yield make_conninfo(outbox.dsn, user=name.as_string(None).strip('"'), password="granted")
    outbox.connection.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(name))
    outbox.connection.execute(sql.SQL("DROP ROLE {}").format(name))


@pytest.fixture
def audited(outbox, audit):
    """An outbox of a single record, after its first audit."""
    outbox.fill(1)
    audit()


def test_a_role_without_the_right_to_create_tables_audits_where_they_exist(audited, audit, reader):
    assert audit(dsn=reader).committed == 1


def test_rows_that_are_hidden_refuse_the_audit(audited, outbox, audit, reader):
    outbox.connection.execute("ALTER TABLE outbox ENABLE ROW LEVEL SECURITY")
    with pytest.raises(DatabaseAccessDenied, match="row-level security hides rows from the audit"):
        audit(dsn=reader)


def test_what_is_missing_is_named_and_leaves_the_result_as_it_was(audited, outbox, audit, monkeypatch):
    with pytest.raises(OutboxTableError):
        audit("again", outbox_table="nowhere")
    monkeypatch.setattr(outbox, "topic", "no-such-topic")
    with pytest.raises(TopicMissing, match="no-such-topic"):
        audit("again")
    assert [row[0] for row in findings(outbox, "summary")] == ["nightly"]


@pytest.mark.full
def test_kafka_that_does_not_answer_is_named(audit):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # it does not listen
        with pytest.raises(KafkaUnavailable, match="next step"):
            audit(bootstrap_servers=f"127.0.0.1:{held.getsockname()[1]}")


def test_a_record_that_nobody_committed_is_unknown(outbox, audit):
    outbox.fill(RECORDS)
    outbox.harvest().drain(60)
    known = read_topic(outbox.servers, outbox.topic)[0]
    producer = Producer({"bootstrap.servers": outbox.servers})
    header = (HEADER_NAME, stamp(known.leader_id)(10**9))
    producer.produce(outbox.topic, known.value, known.key, known.partition, headers=[header])
    producer.flush()
    assert (audit().unknown, [row[1] for row in findings(outbox, "unknown")]) == (1, [str(10**9)])


def test_while_kafka_is_read_no_snapshot_of_postgres_is_held(outbox, audit, monkeypatch):
    """So that vacuum is not held back."""
    outbox.fill(1)
    outbox.harvest().drain(60)
    read, held = stored.read_topics, []

    def watched(*arguments):
        held.append(outbox.connection.execute(HELD).fetchone()[0])
        return read(*arguments)

    monkeypatch.setattr(stored, "read_topics", watched)
    assert audit().ok
    assert held == [0]
