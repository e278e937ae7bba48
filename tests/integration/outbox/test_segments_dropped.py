"""Segments are dropped when every subscription has passed them and nobody reads or writes there."""

import psycopg
import pytest
from support.parking import Parking

from harvest_lib.errors import DatabaseError
from harvest_lib.outbox.parking import ParkedSelection

pytestmark = pytest.mark.gate


def test_what_every_subscription_has_passed_is_dropped(native):
    native.write(35)
    assert "no subscription" in native.drop_passed().because
    native.subscribe("1:1:", name="slow")
    native.subscribe(native.snapshot(), name="fast", retention_hold=25)
    assert "'slow'" in native.drop_passed().because
    native.subscribe(native.snapshot(), name="slow")
    assert "is kept for 3600 s" in native.drop_passed(3600).because
    assert native.drop_passed(dry_run=True).dropped == ["outbox_from_0", "outbox_from_10"]
    assert native.names()[0] == "outbox_from_0"
    done = native.drop_passed()
    assert done.dropped == ["outbox_from_0", "outbox_from_10"]
    assert "holds the record 25" in done.because
    assert native.count() == 16
    native.subscribe(native.snapshot(), name="fast")
    assert native.drop_passed().dropped == ["outbox_from_20"]
    assert native.connection.execute("SELECT count(*) FROM outbox_segments").fetchone() == (0,)
    native.write(1)
    assert native.drop_passed().because == "it is open: the sequence is not past its end"


def test_a_shard_that_lags_keeps_a_segment(native):
    native.write(12)
    native.subscribe(native.snapshot(), shard=0)
    native.subscribe("1:1:", shard=1)
    assert "shard 1" in native.drop_passed().because


def test_an_open_writer_keeps_its_segment_from_being_dropped(native, dsn):
    with psycopg.connect(dsn) as writer:
        native.write(1, writer)
        native.write(15)
        native.subscribe(native.snapshot())
        assert f"pid {writer.info.backend_pid}" in native.drop_passed().because
        writer.commit()
    assert "has not passed it" in native.drop_passed().because
    native.subscribe(native.snapshot())
    assert native.drop_passed().dropped == ["outbox_from_0"]


def test_a_parked_record_keeps_its_segment(native):
    native.write(25)
    Parking(native.connection, native.parked).move(15)
    native.subscribe(native.snapshot())
    done = native.drop_passed()
    assert done.dropped == ["outbox_from_0"]
    assert "record 15 is parked" in done.because
    native.parked.retry(native.connection, ParkedSelection())
    assert "has not passed it" in native.drop_passed().because, "it was put back into a closed segment"
    native.subscribe(native.snapshot())
    assert native.drop_passed().dropped == ["outbox_from_10"]


@pytest.mark.full
def test_a_drop_kept_waiting_is_finished_by_the_next(native, dsn):
    """Writers go on meanwhile."""
    native.write(15)
    native.subscribe(native.snapshot())
    with psycopg.connect(dsn) as reader:
        reader.execute("SELECT count(*) FROM outbox")
        with pytest.raises(DatabaseError, match="always a lock on it"):
            native.drop_passed(patience_seconds=0.5)
        assert [each.detaching for each in native.segments.read(native.connection)][:2] == [True, False]
        native.write(1)
        assert reader.execute("SELECT count(*) FROM outbox").fetchone() == (15 - 9 + 1,)
        reader.rollback()
    assert native.drop_passed().dropped == ["outbox_from_0"]
    assert native.names()[0] == "outbox_from_10"
    assert native.connection.execute("SELECT to_regclass('outbox_from_0')").fetchone() == (None,)


@pytest.mark.parametrize("reached", ["noted", "detached", "dropped"])
def test_a_drop_that_was_killed_is_finished_by_the_next(native, reached):
    native.write(15)
    native.subscribe(native.snapshot())
    native.closed()
    native.connection.execute("UPDATE outbox_segments SET leaving = true")
    if reached != "noted":
        native.connection.execute("ALTER TABLE outbox DETACH PARTITION outbox_from_0 CONCURRENTLY")
    if reached == "dropped":
        native.connection.execute("DROP TABLE outbox_from_0")
    native.drop_passed()
    assert native.names()[0] == "outbox_from_10"
    assert native.connection.execute("SELECT to_regclass('outbox_from_0')").fetchone() == (None,)
    assert native.connection.execute("SELECT count(*) FROM outbox_segments").fetchone() == (0,)


def test_what_an_older_snapshot_reads_stays_until_that_has_ended(native, dsn):
    """An audit or a copy has not touched the outbox yet, so that nothing but its snapshot waits."""
    native.write(25)
    native.subscribe(native.snapshot())
    native.closed()
    with psycopg.connect(dsn) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT 1 FROM pg_class LIMIT 1")
        for _ in range(2):
            with pytest.raises(DatabaseError, match="could not be changed") as refused:
                native.drop_passed(patience_seconds=0)
            assert f"pid {reader.info.backend_pid} (idle in transaction), by its snapshot" in refused.value.evidence
        native.write(1)
        native.connection.execute("SET lock_timeout = '2s'")
        assert reader.execute("SELECT count(*) FROM outbox").fetchone() == (25,)
    assert native.drop_passed().dropped == ["outbox_from_0", "outbox_from_10"]
    assert native.count() == 7
