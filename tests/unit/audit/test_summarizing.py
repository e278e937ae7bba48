"""The summary of an audit in a single process: each anomaly changes its numbers and no other."""

from dataclasses import asdict
from datetime import UTC, datetime, timedelta

import pytest

from harvest_lib.audit import CommittedRecord, ObservedRecord
from harvest_lib.audit.comparison import temporary_database
from harvest_lib.audit.records import MUST_COME, PARKED, WAITS, content_of
from harvest_lib.audit.results import AuditFinding
from harvest_lib.audit.summarizing import Summarizing

pytestmark = pytest.mark.quick

AT = 1_700_000_000.0
CREATED = int(AT * 1e6) - 60_000_000
"""A minute before the snapshot, in microseconds."""
RECORDS, KEYS = 12, 3
LEADER, NEXT = b"a" * 16, b"b" * 16
VALUE = content_of(b"v")


def row(record_id, *, state=MUST_COME, topic="t", since=CREATED):
    return record_id, f"k{record_id % KEYS}".encode(), VALUE, topic, state, since


def seen(record_id, *, offset=None, leader=LEADER, content=VALUE, key=None, delay_ms=5):
    offset = (record_id or 50) if offset is None else offset
    key = f"k{(record_id or 0) % KEYS}".encode() if key is None else key
    return ObservedRecord("t", 0, offset, CREATED // 1000 + delay_ms, key, record_id, leader, content)


WHOLE = [row(each) for each in range(1, RECORDS + 1)]
LOG = [seen(each) for each in range(1, RECORDS + 1)]


def summarized(rows=WHOLE, log=LOG, *, begins=1000, floor=None, delivered=()):
    with temporary_database() as database:
        summarizing = Summarizing(database)
        summarizing.add_delivered(delivered, "t")
        summarizing.add_outbox(rows)
        summarizing.add_observed(log)
        summarizing.compare({("t", 0): begins}, floor)
        return summarizing.summary("a", AT), list(summarizing.findings())


def changed(**how):
    """The numbers that differ from those of a delivery without a fault."""
    clean, found = asdict(summarized()[0]), asdict(summarized(**how)[0])
    return {name: value - clean[name] for name, value in found.items() if name != "at" and value != clean[name]}


def test_a_delivery_without_a_fault_has_no_finding():
    summary, found = summarized()
    assert summary.ok
    assert (summary.records, summary.committed, summary.keys, found) == (RECORDS, RECORDS, KEYS, [])
    assert summary.at == datetime.fromtimestamp(AT, UTC)
    delays = (summary.delay_p50_ms, summary.delay_p95_ms, summary.delay_p99_ms, summary.delay_max_ms)
    assert delays == (5.0, 5.0, 5.0, 5.0)


def test_delays_are_of_rank():
    log = [seen(each, delay_ms=each) for each in range(1, RECORDS + 1)]
    summary, _ = summarized(log=log)
    assert (summary.delay_p50_ms, summary.delay_p95_ms, summary.delay_max_ms) == (6.0, 12.0, 12.0)
    assert summarized(log=[])[0].delay_p50_ms is None


@pytest.mark.parametrize(
    ("how", "numbers"),
    [
        ({"log": LOG[:-1]}, {"records": -1, "lost": 1, "keys_with_gaps": 1}),
        ({"log": [*LOG, seen(RECORDS, offset=20)]}, {"records": 1, "duplicates_adjacent": 1}),
        ({"log": [*LOG, seen(1, offset=20)]}, {"records": 1, "duplicates_separated": 1}),
        ({"log": [*LOG, seen(1, offset=20, leader=NEXT)]}, {"records": 1, "duplicates_cross_epoch": 1}),
        ({"log": [*LOG, seen(99)]}, {"records": 1, "unknown": 1, "keys_with_gaps": 1}),
        ({"log": [*LOG, seen(99)], "begins": 99}, {"records": 1}),
        ({"log": [seen(0, offset=0), *LOG], "floor": 1}, {"records": 1}),
        ({"log": [*LOG, seen(None, leader=None)]}, {"records": 1, "foreign_messages": 1}),
        (
            {"log": [*LOG, seen(2, offset=20, content=content_of(b"w"))]},
            {"records": 1, "other_contents": 1, "keys_with_gaps": 1},
        ),
        (
            {"log": [*LOG[:8], seen(9, offset=12), *LOG[9:11], seen(12, offset=9)]},
            {"reordered": 1, "keys_with_gaps": 1},
        ),
        ({"rows": [*WHOLE, row(13, state=WAITS)]}, {"committed": 1, "backlog_records": 1, "backlog_age_seconds": 60.0}),
        ({"rows": [*WHOLE, row(13, state=PARKED)]}, {"committed": 1}),
    ],
)
def test_each_anomaly_changes_its_numbers_and_no_other(how, numbers):
    assert changed(**how) == numbers


def test_findings_have_their_places_and_no_key():
    log = [*LOG[1:], seen(99, offset=40), seen(2, offset=41, leader=NEXT), seen(3, offset=42, content=content_of(b"w"))]
    _, found = summarized(log=log)
    place = {"kafka_topic": "t", "kafka_partition": 0}
    assert found == [
        AuditFinding("lost", "1", since=datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=CREATED)),
        AuditFinding(
            "duplicate",
            "2",
            duplicate="cross_epoch",
            outbox_id=2,
            leader=NEXT.hex(),
            leader_before=LEADER.hex(),
            kafka_offset=41,
            **place,
        ),
        AuditFinding("unknown", "3", outbox_id=3, leader=LEADER.hex(), kafka_offset=42, **place),
        AuditFinding("unknown", "99", outbox_id=99, leader=LEADER.hex(), kafka_offset=40, **place),
    ]


def test_a_record_out_of_order_names_the_record_before_it():
    _, found = summarized(log=[seen(4, offset=1), seen(1, offset=2), *LOG[1:3], *LOG[4:]])
    assert [(each.kind, each.record, each.outbox_id_before) for each in found] == [("reordered", "1", 4)]


def test_findings_are_kept_up_to_a_limit_and_all_are_counted(monkeypatch):
    monkeypatch.setattr("harvest_lib.audit.summarizing.MOST_FINDINGS", 5)
    summary, found = summarized(log=[])
    assert (summary.lost, [each.record for each in found]) == (RECORDS, ["1", "2", "3", "4", "5"])


def test_where_rows_are_deleted_the_outbox_says_which_records_of_a_query_wait():
    delivered = [CommittedRecord(each, f"k{each % KEYS}".encode()) for each in range(1, RECORDS + 1)]
    summary, _ = summarized([row(RECORDS, state=WAITS)], LOG[:-1], delivered=delivered)
    assert (summary.committed, summary.lost, summary.backlog_records, summary.ok) == (RECORDS, 0, 1, True)
    summary, found = summarized([], LOG[:-1], delivered=delivered)
    assert (summary.lost, summary.keys_with_gaps, summary.delay_p50_ms) == (1, 1, None)
    assert found == [AuditFinding("lost", str(RECORDS))]
    keyless = [CommittedRecord(each.id) for each in delivered]
    summary, _ = summarized([], LOG[:-1], delivered=keyless)
    assert (summary.lost, summary.keys, summary.keys_with_gaps) == (1, None, None)
