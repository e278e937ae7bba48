"""The audit in a single process and the audit by Spark have the same numbers and findings on the same data."""

import uuid
from dataclasses import asdict

import pytest
from support.audited import RECORDS, of_one_key, write
from support.outbox import harvest_config

from harvest_lib.audit.stored import stored_audit

pytestmark = [pytest.mark.full, pytest.mark.spark]

FINDINGS = ("lost", "duplicates", "reorderings", "unknown")
AGES = {"audit_id", "at", "backlog_age_seconds"}
"""What two audits of the same data may have differently: both are made at their own time."""


@pytest.fixture
def both(native):
    """Audit by Spark and here; return both summaries, after all numbers and findings were found to be the same."""

    def audit(**settings):
        outbox = native.outbox
        config = harvest_config(outbox.dsn, native.servers, outbox.group, **settings)
        by_spark = native.audit(audit_id="spark", subscription=config.subscription)
        here = stored_audit(config, [outbox.topic], audit_id="here")
        kept = [{name: value for name, value in asdict(each).items() if name not in AGES} for each in (by_spark, here)]
        assert kept[0] == kept[1]
        assert here.backlog_age_seconds >= by_spark.backlog_age_seconds, "the second audit is later"
        for table in FINDINGS:
            rows = sorted(native.findings(table), key=str)
            assert [row[1:] for row in rows if row[0] == "here"] == [row[1:] for row in rows if row[0] == "spark"]
        assert native.findings("staging") == []
        assert {row[1:] for row in native.findings("audited")} == {('"public"."outbox"', outbox.topic)}
        return here

    return audit


def test_numbers_are_the_same_where_one_is_lost_two_are_swapped_one_is_copied_and_one_is_unknown(native, both):
    outbox = native.outbox
    native.deliver(delivery="transactional")
    assert both().ok
    first, *_, last = of_one_key(native.log())
    native.produce(first)  # copied
    write(outbox, last.key, last.key, last.key)
    outbox.connection.execute("UPDATE outbox_subscriptions SET low_watermark = pg_current_snapshot()")
    for outbox_id in (RECORDS + 3, RECORDS + 2):  # swapped; the one before them is lost
        native.produce(last, outbox_id=outbox_id, value=b"v")
    native.produce(last, outbox_id=10**9)  # unknown
    found = both()
    assert (found.lost, found.reordered, found.duplicates_separated, found.unknown) == (1, 1, 1, 1)
    assert (found.committed, found.records, found.keys_with_gaps) == (RECORDS + 3, RECORDS + 4, 1)


def test_numbers_are_the_same_for_each_other_kind_of_finding(native, both):
    outbox = native.outbox
    native.deliver(delivery="transactional")
    first, *_, last = of_one_key(native.log())
    native.produce(last)
    native.produce(last, leader=uuid.uuid4())
    native.produce(last, value=b"other")
    native.produce(last, header=[])
    outbox.connection.execute("UPDATE outbox SET kafka_value = 'changed' WHERE id = %s", (first.outbox_id,))
    write(outbox, last.key, "waits")
    found = both()
    assert (found.duplicates_adjacent, found.duplicates_cross_epoch, found.other_contents) == (1, 1, 2)
    assert (found.lost, found.foreign_messages, found.backlog_records) == (1, 1, 2)


def test_numbers_are_the_same_in_a_topic_that_is_sequenced(native, both):
    native.deliver(delivery="sequenced")
    found = both(delivery="sequenced")
    assert (found.committed, found.records, found.ok) == (RECORDS, RECORDS, True)


def test_parked_records_and_records_of_other_subscriptions_are_neither_lost_nor_late(native, both):
    outbox = native.outbox
    write(outbox, "us-1", "us-2", "eu-1", "eu-2")
    outbox.subscriptions.add("two", keys="^us")
    outbox.connection.execute(
        "UPDATE outbox_subscriptions SET low_watermark = pg_current_snapshot() WHERE subscription = 'two';"
        "INSERT INTO outbox_parked_ids (subscription, shard, id, kafka_topic, kafka_key, reason, held, transaction_id)"
        " SELECT 'two', 0, id, 't', 'us-1', 'too large', false, transaction_id FROM outbox WHERE id = 1"
    )
    found = both(subscription="two")
    assert (found.committed, found.lost, found.backlog_records) == (2, 1, 0)
