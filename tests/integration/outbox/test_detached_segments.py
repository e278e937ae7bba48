"""A segment that somebody detaches by hand: its records leave the outbox, and somebody says so."""

import json

import psycopg
import pytest
from psycopg import sql

from harvest_lib.config import HarvestConfig
from harvest_lib.harvester.housekeeping.maintenance import Maintenance
from harvest_lib.outbox.segments import detached_segments

pytestmark = pytest.mark.gate


def detach(native, name):
    native.connection.execute(sql.SQL("ALTER TABLE outbox DETACH PARTITION {}").format(sql.Identifier(name)))


def found(native):
    return detached_segments(native.connection, native.table)


def test_undelivered_records_of_a_detached_segment_are_counted_by_subscription(native):
    native.write(5)
    native.subscribe(native.snapshot(), name="early")
    native.write(10)
    native.subscribe(native.snapshot(), name="late")
    assert found(native) == []
    detach(native, "outbox_from_0")
    (segment,) = found(native)
    assert (segment.name, segment.records, segment.unseen) == ("outbox_from_0", 9, {"early": 4, "late": 0})
    assert "4 not delivered to 'early'" in str(segment)
    native.connection.execute(segment.attach)
    assert found(native) == []
    assert native.bounds()[0] == (None, 10), "as it was"


@pytest.mark.parametrize("name", ["outbox_from_10", "outbox_tail"])
def test_the_statement_that_attaches_it_again_fits(native, name):
    native.write(12 if name == "outbox_from_10" else 45)
    native.subscribe("1:1:")
    before = native.bounds()
    detach(native, name)
    (segment,) = found(native)
    native.connection.execute(segment.attach)
    assert native.bounds() == before


def test_what_retention_drops_and_what_is_no_segment_is_not_one(native):
    native.write(12)
    native.connection.execute("CREATE TABLE outbox_report (id bigint, transaction_id xid8)")
    native.connection.execute("CREATE TABLE archive AS SELECT * FROM outbox")
    assert found(native) == []
    detach(native, "outbox_from_20")
    assert found(native) == [], "it is empty"
    detach(native, "outbox_from_0")
    assert [each.name for each in found(native)] == ["outbox_from_0"]
    native.segments.close_passed(native.connection)
    native.connection.execute(
        "INSERT INTO outbox_segments (segment, open_then, writers, leaving) "
        "VALUES ('outbox_from_0', '1:1:', '{}', true)"
    )
    assert found(native) == [], "retention is at it"


def test_one_that_may_not_be_read_is_named(native, dsn, unique):
    native.write(12)
    role = unique("reader")
    native.connection.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(role)))
    for table in ("outbox", "outbox_segments", "outbox_subscriptions"):
        native.connection.execute(sql.SQL("GRANT SELECT ON {} TO {}").format(*map(sql.Identifier, (table, role))))
    detach(native, "outbox_from_0")
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
            (segment,) = detached_segments(connection, native.table)
            assert segment.records is None
            assert "may not be read" in str(segment)
    finally:
        native.connection.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(role)))


def test_status_segments_list_and_the_log_say_so(native, harvest, reaper, dsn, caplog):
    native.write(12)
    native.subscribe("1:1:", name="default")
    detach(native, "outbox_from_0")
    status = json.loads(harvest("status", "-f", reaper, "--json").stdout)
    assert any("outbox_from_0 was detached by hand: 9 records, 9 not delivered" in each for each in status["notes"])
    assert "outbox_from_0 was detached by hand" in harvest("status", "-f", reaper).stdout
    (listed,) = [
        each
        for each in json.loads(harvest("segments", "list", "-f", reaper, "--json").stdout)
        if each["state"] == "detached by hand"
    ]
    assert (listed["segment"], listed["records"], listed["unseen"]) == ("outbox_from_0", 9, {"default": 9})
    shown = harvest("segments", "list", "-f", reaper).stdout
    assert "9 not delivered to 'default'" in shown
    assert "ATTACH PARTITION" in shown
    house = Maintenance(HarvestConfig(leadership="solo", data_source=dsn), native.table)
    house.maintain()
    house.maintain()
    (said,) = [each for each in caplog.records if each.getMessage() == "segment_detached"]
    assert "outbox_from_0" in said.reason
