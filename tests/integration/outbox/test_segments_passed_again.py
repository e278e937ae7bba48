"""Segments whose sequence goes back: a segment that is used again is kept, and one that is missing is made."""

import psycopg
import pytest

from harvest_lib.errors import OutboxTableError
from harvest_lib.outbox.segments import drop_passed, ensure_segments

pytestmark = pytest.mark.gate


def restart(native):
    native.connection.execute("TRUNCATE outbox RESTART IDENTITY")


def test_a_segment_that_the_sequence_is_in_again_is_open(native):
    native.write(25)
    assert native.closed() == ["outbox_from_0", "outbox_from_10"]
    restart(native)
    native.write(5)
    native.subscribe(native.snapshot())
    assert not any(each.closed_at for each in native.segments.read(native.connection)), "also before it is noted"
    done = native.drop_passed()
    assert (done.dropped, done.kept) == ([], "outbox_from_0")
    assert "is open" in done.because
    native.write(1)
    assert native.count() == 6


def test_a_segment_that_is_passed_again_waits_for_the_writers_of_the_second_time(native, dsn):
    native.write(25)
    native.closed()
    restart(native)
    native.closed()
    with psycopg.connect(dsn) as writer:
        native.write(1, writer)
        native.write(15)
        native.subscribe(native.snapshot())
        assert native.closed() == []
        assert native.drop_passed().dropped == []
    assert native.closed() == ["outbox_from_0"]
    assert native.drop_passed().dropped == [], "the writer's record is not seen"
    native.subscribe(native.snapshot())
    assert native.drop_passed().dropped == ["outbox_from_0"]


def by_truncate(native):
    restart(native)


def by_setval(native):
    """As in a table that was emptied by hand: in the same file, by the same sequence."""
    native.connection.execute("DELETE FROM outbox")
    native.push(1)


def by_alter(native):
    native.connection.execute("DELETE FROM outbox; ALTER SEQUENCE outbox_id_seq RESTART")


@pytest.mark.parametrize("go_back", [by_truncate, by_alter, by_setval])
def test_what_was_noted_of_the_first_time_counts_no_more_after_the_second(native, dsn, go_back):
    """The sequence goes back and passes the segments again between two looks."""
    native.write(25)
    first = {each.name: each.closed_at for each in native.segments.close_passed(native.connection) if each.closed_at}
    go_back(native)
    with psycopg.connect(dsn) as writer:
        drawn = writer.execute("SELECT nextval('outbox_id_seq'), pg_current_xact_id()").fetchone()[0]
        native.write(24)
        native.subscribe(native.snapshot())
        done = native.drop_passed()
        assert (done.dropped, done.kept) == ([], "outbox_from_0")
        assert "could still write into it" in done.because
        assert native.closed() == []
        writer.execute("INSERT INTO outbox (id, kafka_topic, kafka_key) VALUES (%s, 't', 'k')", (drawn,))
    assert native.count() == 25
    again = {each.name: each.closed_at for each in native.segments.close_passed(native.connection) if each.closed_at}
    assert again.keys() == first.keys()
    assert all(again[name] > first[name] for name in first), "records are kept for as long as is configured"


def test_a_segment_that_is_passed_again_while_it_is_detached_is_attached_again(native, dsn):
    native.write(25)
    native.closed()
    native.subscribe(native.snapshot())

    def go_back():
        connection.when = None
        native.connection.execute("ALTER SEQUENCE outbox_id_seq RESTART WITH 30")

    with Returning.connect(dsn, autocommit=True) as connection:
        connection.when, connection.what = "after", go_back
        done = drop_passed(connection, native.table, keep_seconds=0)
    assert (done.dropped, done.kept) == ([], "outbox_from_0")
    assert "passed it again" in done.because
    assert native.count() == 25
    assert native.drop_passed().dropped[0] == "outbox_from_0", "by then it is closed again"


def test_segments_that_are_missing_below_the_sequence_are_made(native):
    native.write(45)
    ensure_segments(native.connection, native.table, ahead=2)
    native.subscribe(native.snapshot())
    assert native.drop_passed().dropped[-1] == "outbox_from_30"
    first, second = native.bounds()[:2]
    restart(native)
    with pytest.raises(psycopg.errors.CheckViolation, match="no partition"):
        native.write(1)
    assert ensure_segments(native.connection, native.table, ahead=2).made == 3
    assert native.bounds()[:5] == [(None, 10), (10, 20), (20, first[0]), first, second]
    native.write(25)
    assert native.count() == 25
    ensure_segments(native.connection, native.table, ahead=2)
    assert native.segments.next_id(native.connection) == first[0], "out of the wide one"
    native.write(25)
    assert native.count() == 50


def test_a_hole_where_the_sequence_is_to_come_is_filled(native):
    native.connection.execute("ALTER TABLE outbox DETACH PARTITION outbox_from_10; DROP TABLE outbox_from_10")
    native.write(5)
    assert ensure_segments(native.connection, native.table, ahead=3).made == 1
    assert native.bounds() == [(None, 10), (10, 20), (20, 30), (30, None)]
    native.write(20)


class Returning(psycopg.Connection):
    """A connection on which something happens once a segment is detached, or just before."""

    when = what = None

    def execute(self, query, *arguments, **options):
        text = query if isinstance(query, str) else query.as_string(self)
        if self.when == "before" and "CONCURRENTLY" in text:
            self.what()
        done = super().execute(query, *arguments, **options)
        if self.when == "after" and "FINALIZE" in text:
            self.what()
        return done


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_sequence_that_goes_back_while_a_segment_is_detached_gets_it_again(native, dsn, when):
    native.write(25)
    native.subscribe(native.snapshot())
    native.closed()

    def go_back():
        connection.when = None
        native.connection.execute("ALTER SEQUENCE outbox_id_seq RESTART WITH 100; TRUNCATE outbox_tail")
        native.connection.execute("SELECT setval('outbox_id_seq', 4, true)")
        if when == "before":
            native.connection.execute("DELETE FROM outbox WHERE id > 4")
            native.write(1)

    with Returning.connect(dsn, autocommit=True) as connection:
        connection.when, connection.what = when, go_back
        done = drop_passed(connection, native.table, keep_seconds=0)
    assert (done.dropped, done.kept) == ([], "outbox_from_0")
    assert ("gone back" if when == "after" else "has not passed it") in done.because
    assert native.bounds() == [(None, 10), (10, 20), (20, 30), (30, None)]
    if when == "before":
        native.write(1)
        assert native.count() == 6


def test_a_drop_that_was_begun_and_is_needed_again_is_undone(native):
    """Killed once the segment was detached; the ids begin again before the next run."""
    native.write(25)
    native.subscribe(native.snapshot())
    native.closed()
    native.connection.execute("UPDATE outbox_segments SET leaving = true WHERE segment = 'outbox_from_0'")
    native.connection.execute("ALTER TABLE outbox DETACH PARTITION outbox_from_0 CONCURRENTLY")
    restart(native)
    with pytest.raises(OutboxTableError, match="writers are refused"):
        ensure_segments(native.connection, native.table)
    assert native.drop_passed().dropped == []
    assert native.bounds()[0] == (None, 10)
    native.write(1)
