"""Rotation on a real Postgres: a segment is left before its ids are used up, and nobody gets an id twice."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.errors import LockNotAvailable
from psycopg.pq import TransactionStatus
from support.waiting import eventually

from harvest_lib.config import HarvestConfig
from harvest_lib.errors import DatabaseAccessDenied, DatabaseError
from harvest_lib.harvester.housekeeping.maintenance import Maintenance
from harvest_lib.outbox.segments import Segments, drop_passed, ensure_segments, rotate_segment

pytestmark = pytest.mark.gate

DAY = 86_400.0


def rotate(native, **options):
    return rotate_segment(native.connection, native.table, **options)


@pytest.mark.parametrize("time", ["-infinity", "infinity"])
def test_times_that_are_infinite_make_no_segment_old(native, time):
    native.write(3)
    native.connection.execute("UPDATE outbox SET create_time = %s", (time,))
    assert rotate(native, older_than_seconds=1) is None
    native.connection.execute("UPDATE outbox SET create_time = now() - interval '2 days' WHERE id = 2")
    assert rotate(native, older_than_seconds=DAY) is not None


def age(native, seconds):
    native.connection.execute("UPDATE outbox SET create_time = create_time - make_interval(secs => %s)", (seconds,))
    native.connection.execute(
        "UPDATE outbox_segments SET passed_at = passed_at - make_interval(secs => %s), "
        "closed_at = closed_at - make_interval(secs => %s)",
        (seconds, seconds),
    )


def test_the_next_record_goes_into_the_next_segment(native):
    native.write(3)
    done = rotate(native)
    assert (done.segment, done.next_id) == ("outbox_from_0", 10)
    native.write(1)
    ids = [row[0] for row in native.connection.execute("SELECT id FROM outbox ORDER BY id")]
    assert ids == [1, 2, 3, 10]
    assert native.closed() == ["outbox_from_0"], "so that retention can drop it"


def test_a_segment_without_a_record_is_not_rotated(native):
    assert rotate(native) is None
    native.write(1)
    rotate(native)
    assert rotate(native) is None
    assert native.segments.next_id(native.connection) == 10


def test_only_a_segment_whose_first_record_is_old_enough_is_rotated(native):
    native.write(1)
    age(native, DAY)
    native.write(1)
    assert rotate(native, older_than_seconds=DAY + 60) is None
    assert rotate(native, older_than_seconds=DAY).segment == "outbox_from_0"


def test_dates_that_writers_make_up_do_not_use_up_segments(native):
    """A writer may say when something happened, years ago: no segment is older than the end of the one before."""
    native.write(1)
    age(native, 10 * DAY)
    assert rotate(native, older_than_seconds=DAY) is not None
    native.closed()
    native.connection.execute(
        "INSERT INTO outbox (create_time, kafka_topic, kafka_key) VALUES ('2001-01-01', 't', 'k')"
    )
    assert rotate(native, older_than_seconds=DAY) is None
    age(native, DAY)
    assert rotate(native, older_than_seconds=DAY) is not None


def test_dates_to_come_do_not_keep_a_segment(native):
    """Else one record would keep payloads permanently: a writer made its date up, or a clock was set back since."""
    native.connection.execute(
        "INSERT INTO outbox (create_time, kafka_topic, kafka_key) VALUES ('2999-01-01', 't', 'k')"
    )
    assert rotate(native, older_than_seconds=DAY) is None, "how old it is is not known"
    native.write(1)
    native.connection.execute("UPDATE outbox SET create_time = now() - interval '2 days' WHERE id = 2")
    assert rotate(native, older_than_seconds=DAY).segment == "outbox_from_0"
    native.closed()
    native.connection.execute("UPDATE outbox_segments SET passed_at = now() + interval '1 year'")
    native.write(1)
    assert rotate(native, older_than_seconds=DAY) is None
    native.connection.execute("UPDATE outbox SET create_time = now() - interval '2 days' WHERE id = 10")
    assert rotate(native, older_than_seconds=DAY).segment == "outbox_from_10"


@pytest.mark.parametrize("change", [rotate_segment, ensure_segments, drop_passed])
def test_who_does_not_own_the_table_is_told_who_does(native, dsn, unique, change):
    native.write(1)
    role = sql.Identifier(unique("role")[:60])
    native.connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'p'").format(role))
    try:
        native.connection.execute(sql.SQL("GRANT SELECT ON ALL TABLES IN SCHEMA public TO {}").format(role))
        native.connection.execute(sql.SQL("GRANT SELECT ON ALL SEQUENCES IN SCHEMA public TO {}").format(role))
        limited = make_conninfo(dsn, user=role.as_string(None).strip('"'), password="p")
        with psycopg.connect(limited, autocommit=True) as connection:
            with pytest.raises(DatabaseAccessDenied, match="only its owner") as refused:
                change(connection, native.table)
            assert f"as {native.connection.info.user!r}" in refused.value.next_step
    finally:
        native.connection.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(role))


def test_segments_are_made_first_and_a_tail_with_records_is_left_too(native):
    for _ in range(8):
        native.write(1)
        rotate(native)
    assert native.count() == 8
    native.write(45)
    native.write(1)
    rotate(native)
    native.write(1)
    assert native.count() == 55
    (lower, _), *_ = [bounds for bounds in native.bounds() if bounds[1] is None]
    assert native.segments.next_id(native.connection) < lower, "not in the tail"


def test_no_id_is_given_out_twice_and_no_writer_is_refused(native, dsn):
    """Segments of ten ids, which writers fill and leave while they are rotated."""
    written, over = [], threading.Event()

    def write():
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not over.is_set():
                row = connection.execute(
                    "INSERT INTO outbox (kafka_topic, kafka_key) VALUES ('t', 'k') RETURNING id"
                ).fetchone()
                written.append(row[0])

    with ThreadPoolExecutor(3) as writers:
        running = [writers.submit(write) for _ in range(3)]
        try:
            rotated = [rotate(native) for _ in range(25)]
            eventually(lambda: len(written) > 100 or any(each.done() for each in running), "they write on")
        finally:
            over.set()
        for each in running:
            each.result(60)
    assert any(rotated)
    assert len(written) == len(set(written)) == native.count() > 100


def test_no_id_can_be_drawn_between_reading_the_sequence_and_moving_it(native, dsn, monkeypatch):
    native.write(1)
    sequence, read, drawn = native.segments.sequence(native.connection), Segments.next_id, []

    def read_and_draw(segments, connection):
        next_id = read(segments, connection)
        if connection.info.transaction_status is TransactionStatus.INTRANS:  # where the sequence is about to be moved
            with psycopg.connect(dsn, options="-c lock_timeout=200ms") as other, suppress(LockNotAvailable):
                drawn.append(other.execute("SELECT nextval(%s::regclass)", (str(sequence),)).fetchone())
            drawn.append("tried")
        return next_id

    monkeypatch.setattr(Segments, "next_id", read_and_draw)
    assert rotate(native).next_id == 10
    assert drawn == ["tried"]


def test_a_transaction_that_stays_open_is_named_and_holds_up_no_writer_for_long(native, dsn):
    native.write(1)
    with psycopg.connect(dsn) as writer:
        native.write(1, connection=writer)
        with psycopg.connect(dsn) as reader:
            reader.execute("SELECT last_value FROM outbox_id_seq")  # which holds up nobody, and began later
            with pytest.raises(DatabaseError, match=f"held by pid {writer.info.backend_pid} "):
                rotate(native, patience_seconds=0.5)
        writer.rollback()
    assert rotate(native) is not None


# -- by the harvester


def maintenance(dsn, native, **settings):
    return Maintenance(
        HarvestConfig(leadership="solo", data_source=dsn, keep_segments_seconds=0.0, **settings), native.table
    )


def events(caplog, name):
    return [each for each in caplog.records if each.getMessage() == name]


def test_the_harvester_rotates_by_age_and_drops_what_was_delivered(native, dsn, caplog):
    caplog.set_level(logging.INFO, "harvest_lib.harvester.housekeeping.maintenance")
    native.write(3)
    native.subscribe(native.snapshot())
    house = maintenance(dsn, native)
    house.maintain()
    assert native.names()[0] == "outbox_from_0", "it is not a day old"
    age(native, DAY)
    house.maintain()
    house.maintain()
    (said,) = events(caplog, "segment_rotated")
    assert (said.segment, said.next_id) == ("outbox_from_0", 10)
    assert "outbox_from_0" not in native.names()
    assert native.count() == 0


def test_a_transaction_that_keeps_rotation_waiting_keeps_nothing_else(native, dsn):
    """And for a second a minute only is it tried: each time writers wait with it."""
    native.write(15)
    native.subscribe(native.snapshot())
    native.closed()
    age(native, DAY)
    with psycopg.connect(dsn) as writer:
        writer.execute("SELECT nextval('outbox_id_seq')")
        with pytest.raises(DatabaseError, match=str(writer.info.backend_pid)):
            maintenance(dsn, native).maintain()
    assert native.names()[0] == "outbox_from_10", "dropped all the same"


def test_zero_leaves_segments_to_their_ids(native, dsn):
    native.write(3)
    age(native, 100 * DAY)
    maintenance(dsn, native, max_segment_age_seconds=0.0).maintain()
    assert native.segments.next_id(native.connection) == 4


def test_who_holds_segments_back_is_said_with_their_bytes(native, dsn, caplog):
    native.write(15)
    native.subscribe("1:1:", name="stopped")
    house = maintenance(dsn, native)
    for _ in range(3):
        house.maintain()
    (said,) = events(caplog, "segments_held")
    assert (said.levelname, said.segments) == ("WARNING", 1)
    assert said.bytes == native.segments.size_bytes(native.connection, native.segments.read(native.connection)[0]) > 0
    assert "the subscription 'stopped'" in said.reason
    native.write(10)
    for _ in range(3):
        house.maintain()
    assert [each.segments for each in events(caplog, "segments_held")] == [1, 2], "once more, when they are more"
    native.subscribe(native.snapshot(), name="stopped")
    house.maintain()
    assert native.names()[0] == "outbox_from_20"
    assert len(events(caplog, "segments_held")) == 2
