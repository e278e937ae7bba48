"""The audit by Spark on real topics and tables: each anomaly is made by hand, and exactly its number changes."""

import uuid
from dataclasses import asdict

import pytest
from confluent_kafka import Producer, TopicPartition
from support.audited import BUSINESS, KEYS, PROMOTE, RECORDS, of_one_key, write
from support.waiting import eventually

from harvest_lib.errors import CheckpointError
from harvest_lib.record.header import HEADER_NAME
from harvest_lib.spark.audit import audit
from harvest_lib.spark.data_source.harvested import harvested

pytestmark = [pytest.mark.full, pytest.mark.spark]


@pytest.mark.full
def test_anomalies_of_all_kinds_are_told_apart(native):
    outbox = native.outbox
    native.deliver(delivery="transactional")
    first, *_, last = of_one_key(native.log())
    for _ in range(2):
        native.produce(last)
    native.produce(first)
    native.produce(last, leader=uuid.uuid4())
    for outbox_id in (10**9 + 1, 10**9):
        native.produce(last, outbox_id=outbox_id)
    native.produce(last, header=[(HEADER_NAME, b"another program's")])
    for value in (b"put back", b""):
        native.produce(last, value=value)
    outbox.connection.execute("UPDATE outbox SET kafka_value = 'changed' WHERE id = %s", (first.outbox_id,))
    write(outbox, last.key)
    assert native.changed() == {
        "records": RECORDS + 9,
        "committed": RECORDS + 1,
        "duplicates_adjacent": 2,
        "duplicates_cross_epoch": 1,
        "reordered": 1,
        "lost": 1,
        "unknown": 2,
        "other_contents": 4,
        "foreign_messages": 1,
        "backlog_records": 1,
        "keys": KEYS,
        "keys_with_gaps": 1,
    }


def test_markers_and_logs_without_records_are_passed(native, spark, make_topic, admin, tmp_path, unique):
    """Partitions that end with an aborted transaction, of which a marker is left, and of which nothing is."""
    native.deliver(delivery="transactional")
    emptied, marked = make_topic(), make_topic()
    producer = Producer({"bootstrap.servers": native.servers, "transactional.id": unique("sender")})
    producer.init_transactions(60)
    for is_committed, topic in ((True, emptied), (True, marked), (False, native.outbox.topic), (False, marked)):
        producer.begin_transaction()
        producer.produce(topic, b"another's", partition=0)
        producer.flush(60)  # an abort takes back what was not sent
        producer.commit_transaction(60) if is_committed else producer.abort_transaction(60)
    for topic, offset in ((emptied, 2), (marked, 3)):
        place = TopicPartition(topic, 0, offset)
        # A transaction has ended before its markers are in the logs.
        eventually(lambda: not admin.delete_records([place])[place].exception(60), "the marker is there")  # noqa: B023
    topics, kafka = [native.outbox.topic, emptied, marked], {"bootstrap.servers": native.servers}
    for _ in range(2):
        found = audit(dsn=native.outbox.dsn, kafka=kafka, topics=topics, state=tmp_path / "state")
        assert (found.records, found.committed, found.lost, found.ok) == (RECORDS, RECORDS, 0, True)
    assert harvested(spark, topics, kafka=kafka).count() == RECORDS


def test_keys_with_gaps_are_counted_once_each_and_no_other(native):
    """One that has lost a record, all of them, has an unknown one, has one out of order; and two that are whole."""
    outbox = native.outbox
    write(outbox, *(["whole", "lost", "strange", "turned", "copied"] * 4))
    outbox.harvest(delivery="transactional").drain(60)
    assert native.changed() == {"records": 20, "committed": 20, "keys": 5}
    by_key = {record.key: record for record in native.log()}
    native.produce(by_key["strange"], outbox_id=10**9)
    native.produce(by_key["strange"], outbox_id=10**9 + 1)
    native.produce(by_key["copied"])
    write(outbox, "lost", "lost", "höchst lost", "turned", "turned", "whole")
    outbox.connection.execute("UPDATE outbox_subscriptions SET low_watermark = pg_current_snapshot()")
    for record_id in (25, 24):
        native.produce(by_key["turned"], outbox_id=record_id)  # `write` gives all records one value
    native.produce(by_key["whole"], outbox_id=26)
    found = native.changed()
    assert (found["lost"], found["unknown"], found["reordered"]) == (3, 2, 1)
    assert (found["keys"], found["keys_with_gaps"]) == (1, 4)
    write(outbox, "waits")
    assert native.changed() == {"committed": 1, "backlog_records": 1}


@pytest.mark.long
def test_each_anomaly_changes_its_number_and_no_other(native, admin):
    outbox = native.outbox
    native.deliver(delivery="transactional")
    assert native.changed() == {"records": RECORDS, "committed": RECORDS, "keys": KEYS}
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
    outbox.connection.execute("UPDATE outbox_subscriptions SET low_watermark = pg_current_snapshot()")
    assert native.changed() == {"lost": 2, "backlog_records": -2, "keys_with_gaps": 1}
    assert [record for _, record, _ in native.findings("lost")[-2:]] == [str(RECORDS + 1), str(RECORDS + 2)]
    for outbox_id in (RECORDS + 2, RECORDS + 1):
        native.produce(last, outbox_id=outbox_id, value=b"v")
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
    admin.delete_records([place])[place].result(60)
    others = {"keys_with_gaps": count} if (count := len({record.key for record in gone} - {last.key})) else {}
    assert native.changed() == {"records": -len(gone), "lost": len(gone), **others}


def test_where_rows_are_purged_the_ledger_says_what_was_committed(purged):
    purged.promote(RECORDS)
    purged.harvest()
    purged.promote(1)
    assert purged.outbox.count() == 1
    assert purged.changed() == {"records": RECORDS, "committed": RECORDS + 1, "backlog_records": 1, "keys": KEYS}
    purged.outbox.connection.execute("DELETE FROM outbox")
    found = purged.audit()
    assert (found.lost, found.keys, found.keys_with_gaps) == (1, None, None), "nobody knows the key of what is lost"


@pytest.mark.long
def test_each_anomaly_of_a_purged_outbox_changes_its_number_and_no_other(purged):
    purged.promote(RECORDS)
    assert purged.changed() == {"committed": RECORDS, "backlog_records": RECORDS}
    purged.harvest()
    assert purged.outbox.count() == 0
    assert purged.changed() == {"records": RECORDS, "backlog_records": -RECORDS, "keys": KEYS}
    *_, last = of_one_key(purged.log())
    purged.produce(last)
    assert purged.changed() == {"records": 1, "duplicates_adjacent": 1}
    # The same flight from another outbox row: promoted twice.
    purged.produce(last, outbox_id=last.outbox_id + 1_000)
    assert purged.changed() == {"records": 1, "duplicates_adjacent": 1}
    purged.produce(last, outbox_id=5_000, headers=[("event-id", "5000")])
    purged.produce(last, outbox_id=5_001, headers=[("event-id", b"\x00\xff")])
    purged.produce(last, outbox_id=5_002, headers=[])
    assert purged.changed() == {"records": 3, "unknown": 3, "keys_with_gaps": 1}
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
    assert found.delay_p50_ms < 1_800_000
    assert 3_600_000 <= found.delay_p99_ms == found.delay_max_ms < 2 * 3_600_000
    assert found.backlog_records == 1
    assert 90 <= found.backlog_age_seconds < 3_600


def test_filters_shards_and_what_is_parked(native):
    outbox = native.outbox
    outbox.subscriptions.add("eu", topics=[outbox.topic], keys="^eu%-")
    outbox.subscriptions.add("two", shards=2)
    write(outbox, "eu%-1", "us-1", "eu%-2")
    outbox.harvest(subscription="eu", delivery="pipelined").drain(60)
    assert asdict(native.audit(subscription="eu")).items() >= {"records": 2, "committed": 2, "lost": 0}.items()
    found = native.audit(subscription="two")
    assert (found.committed, found.lost, found.backlog_records) == (3, 0, 1)
    outbox.connection.execute(
        "UPDATE outbox_subscriptions SET low_watermark = pg_current_snapshot() WHERE subscription = 'two'"
    )
    assert native.audit(subscription="two").lost == 1
    outbox.connection.execute("UPDATE outbox_subscriptions SET retention_hold = 2 WHERE subscription = 'two'")
    assert native.audit(subscription="two").backlog_records == 1
    outbox.connection.execute(
        "UPDATE outbox_subscriptions SET retention_hold = NULL WHERE subscription = 'two';"
        "INSERT INTO outbox_parked_ids (subscription, shard, id, kafka_topic, kafka_key, reason, held, transaction_id)"
        " SELECT 'two', 0, id, 't', 'us-1', 'too large', false, transaction_id FROM outbox WHERE id = 2"
    )
    found = native.audit(subscription="two")
    assert (found.lost, found.backlog_records) == (0, 0)
    with pytest.raises(CheckpointError, match="eu, two"):
        native.audit(subscription="none")
