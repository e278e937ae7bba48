"""Segments on a real Postgres: made ahead of need, closed when nobody writes there, dropped when nobody reads there."""

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import psycopg
import pytest
from support.clusters import create
from support.lock_timeouts import Locking
from support.native import Native
from support.parking import Parking
from support.servers import crash
from support.waiting import eventually

from harvest_lib.errors import DatabaseError, OutboxTableError
from harvest_lib.outbox import append
from harvest_lib.outbox.parking import ParkedSelection
from harvest_lib.outbox.segments import ensure_segments
from harvest_lib.outbox.short_locks import LOCK_TIMEOUT_SECONDS, exclusively
from harvest_lib.record import OutboxRecord

pytestmark = pytest.mark.gate

NOTHING_SEEN = "1:1:"
FAR = 100_000_000_000


class Killed(Exception):
    """The process ends here."""


def first(native):
    return native.segments.read(native.connection)[0]


# -- ahead


def test_segments_are_made_before_the_sequence_arrives(native):
    assert native.bounds() == [(None, 10), (10, 20), (20, 30), (30, None)]
    assert ensure_segments(native.connection, native.table, ahead=3).made == 0
    native.write(12)
    assert ensure_segments(native.connection, native.table, ahead=3).made == 1
    assert ensure_segments(native.connection, native.table, ahead=4, size=100).made == 1
    assert native.bounds() == [(None, 10), (10, 20), (20, 30), (30, 40), (40, 140), (140, None)]
    native.write(30)
    assert native.count() == 42


def test_a_tail_with_records_is_cut_without_being_read_under_a_lock(native):
    """A week without harvesters: writers have gone far past all segments."""
    native.write(25)
    native.push(5_000)
    native.write(500)
    said = []
    native.connection.add_notice_handler(lambda notice: said.append(notice.message_primary))
    native.connection.execute("SET client_min_messages = debug1")
    done = ensure_segments(native.connection, native.table, ahead=3)
    assert done.cut_tail
    assert any("implied by existing constraints" in message for message in said), "attached without a scan"
    *_, last_with_records, first, second, third, tail = native.bounds()
    assert last_with_records == (30, first[0])
    assert first[0] >= 5_500 + FAR - 10
    assert (second[0] - first[0], third[1] - third[0], tail) == (10, 10, (third[1], None))
    assert native.segments.next_id(native.connection) == first[0], "so that the wide one is closed"
    native.write(5)
    assert native.count() == 530
    assert native.closed()[-1] == "outbox_from_30"
    assert ensure_segments(native.connection, native.table, ahead=3).made == 0
    left = native.connection.execute("SELECT count(*) FROM pg_constraint WHERE conname = 'harvest_cut'").fetchone()
    assert left == (0,)


@pytest.mark.parametrize("step", ["added", "validated", "cut", "moved"])
def test_a_cut_that_was_killed_refuses_nobody_and_is_finished_by_the_next(native, step):
    native.write(45)

    def die(reached):
        if reached == step:
            raise Killed

    with pytest.raises(Killed):
        ensure_segments(native.connection, native.table, ahead=2, after=die)
    native.write(100)
    ensure_segments(native.connection, native.table, ahead=2)
    native.write(1)
    assert native.count() == 146
    ends = native.bounds()
    assert all(before[1] == after[0] for before, after in pairwise(ends)), "without a gap"
    next_id = native.segments.next_id(native.connection)
    assert sum(upper is not None and upper > next_id for _, upper in ends) >= 2


def test_a_cut_begun_long_ago_gets_another_end(native):
    native.write(45)

    def die(_):
        raise Killed

    with pytest.raises(Killed):
        ensure_segments(native.connection, native.table, after=die)
    native.push(FAR - 5)
    ensure_segments(native.connection, native.table)
    native.write(20)
    assert native.count() == 65
    assert native.segments.next_id(native.connection) > 2 * FAR - 100


def test_ids_that_the_sequence_never_gave_out_are_named(native):
    native.write(45)
    native.connection.execute("INSERT INTO outbox (id, kafka_topic, kafka_key) VALUES (9000000000000000000, 't', 'k')")
    with pytest.raises(OutboxTableError, match="a writer sets ids"):
        ensure_segments(native.connection, native.table)
    native.connection.execute("DELETE FROM outbox WHERE id > 1000000; ")
    native.write(1)
    assert ensure_segments(native.connection, native.table).cut_tail


def test_two_at_once_make_each_segment_once(native, dsn):
    native.write(45)

    def ensure():
        with psycopg.connect(dsn, autocommit=True) as connection:
            ensure_segments(connection, native.table, ahead=3)

    with ThreadPoolExecutor(4) as several:
        for done in [several.submit(ensure) for _ in range(4)]:
            done.result(60)
    assert len(native.bounds()) == 8
    with psycopg.connect(dsn, autocommit=True) as other, exclusively(other, native.table.placed(other)):
        with pytest.raises(DatabaseError, match="another command"):
            native.drop_passed(patience_seconds=0.1)
        with pytest.raises(DatabaseError, match="another command"):
            ensure_segments(native.connection, native.table, patience_seconds=0.1)


def test_a_tail_that_the_sequence_passed_without_a_record_needs_no_cut(native):
    native.push(1_005)
    assert ensure_segments(native.connection, native.table, ahead=2).made == 3
    assert native.bounds()[-4:] == [(30, 1_000), (1_000, 1_010), (1_010, 1_020), (1_020, None)]


def test_names_with_a_percent_sign_are_names(dsn):
    native = Native(dsn, name="100%s %(x)s")
    native.write(15)
    native.subscribe(native.snapshot())
    native.closed()
    assert native.drop_passed().dropped == ["100%s %(x)s_from_0"]
    native.connection.close()


def test_writers_wait_no_longer_than_the_lock_timeout(native):
    """For a change that waits itself, for somebody who sits on the outbox."""
    native.write(45)
    with Locking.connect(native.dsn, autocommit=True) as connection:
        connection.watch()
        assert ensure_segments(connection, native.table, ahead=3).cut_tail
        timeouts = connection.timeouts
    assert set(timeouts) == {f"{int(LOCK_TIMEOUT_SECONDS * 1000)}ms"}


def test_writers_are_never_refused(native):
    """While segments are cut again and again, from tails with and without records, behind somebody who sits on it."""
    stop, written, errors = threading.Event(), [], []

    def write():
        with psycopg.connect(native.dsn) as connection:
            while not stop.is_set():
                try:
                    append(connection, [OutboxRecord(topic="t", key="k", value="v")])
                    connection.commit()
                except Exception as error:  # noqa: BLE001 - whatever it is, it counts
                    errors.append(error)
                    return
                written.append(None)

    writers = [threading.Thread(target=write) for _ in range(3)]
    sitter = psycopg.connect(native.dsn)
    for writer in writers:
        writer.start()
    try:
        sitter.execute("SELECT count(*) FROM outbox")
        with pytest.raises(DatabaseError, match="always a lock on it") as refused:
            ensure_segments(native.connection, native.table, ahead=50, patience_seconds=1)
        assert f"pid {sitter.info.backend_pid}" in str(refused.value)
        sitter.rollback()
        cuts = 0
        for _ in range(4):
            cuts += ensure_segments(native.connection, native.table, ahead=3).cut_tail
            native.push(native.segments.next_id(native.connection) + 100)
            enough = len(written) + 50
            eventually(lambda enough=enough: errors or len(written) > enough, "they write on")
    finally:
        stop.set()
        for writer in writers:
            writer.join(60)
        sitter.close()
    assert errors == []
    assert cuts >= 2
    assert native.count() == len(written)


# -- closed


def test_a_segment_is_closed_when_the_sequence_and_its_writers_are_gone(native, dsn):
    with psycopg.connect(dsn) as idle, psycopg.connect(dsn) as later:
        native.write(2, idle)
        native.write(20)
        native.write(1, later)
        assert native.closed() == []
        assert f"pid {idle.info.backend_pid}" in native.segments.waited_for(native.connection, first(native))
        idle.commit()
        assert native.closed() == [], "the other one was open too when it was passed"
        later.commit()
        assert native.closed() == ["outbox_from_0", "outbox_from_10"]


def test_a_writer_that_has_drawn_an_id_and_written_nothing_yet_keeps_it_open(native, dsn):
    """It has a lock, but no transaction id: a snapshot alone does not list it."""
    native.connection.execute(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN IF NEW.kafka_key = 'slow' THEN PERFORM pg_advisory_lock_shared(1); END IF; RETURN NEW; END$$"
    )
    native.connection.execute(
        "ALTER TABLE outbox ALTER transaction_id DROP DEFAULT, ALTER transaction_id DROP NOT NULL"
    )
    native.connection.execute("CREATE TRIGGER slow BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION slow()")
    with psycopg.connect(dsn) as guard, psycopg.connect(dsn, autocommit=True) as writer:
        guard.execute("SELECT pg_advisory_lock(1)")
        statement = "INSERT INTO outbox (kafka_topic, kafka_key) VALUES ('t', 'slow')"
        writing = threading.Thread(target=writer.execute, args=(statement,))
        writing.start()
        eventually(lambda: native.segments.next_id(native.connection) == 2, "it has its id")
        native.push(25)
        assert native.closed() == []
        guard.execute("SELECT pg_advisory_unlock(1)")
        writing.join(60)
        assert native.closed() == ["outbox_from_0", "outbox_from_10"]


def test_a_transaction_that_drew_an_id_in_advance_keeps_its_segment_open(native, dsn):
    """It has no lock on the outbox yet, but was open when the sequence passed."""
    with psycopg.connect(dsn) as early:
        drawn = early.execute("SELECT nextval('outbox_id_seq'), pg_current_xact_id()").fetchone()[0]
        native.write(15)
        assert native.closed() == []
        assert any("transaction" in each for each in native.segments.waited_for(native.connection, first(native)))
        early.execute("INSERT INTO outbox (id, kafka_topic, kafka_key) VALUES (%s, 't', 'k')", (drawn,))
        early.commit()
    assert native.closed() == ["outbox_from_0"]


@pytest.mark.parametrize("prepared_before", [True, False])
def test_a_prepared_writer_keeps_its_segment_open(native, dsn, prepared_before):
    name = uuid.uuid4().hex
    with psycopg.connect(dsn, autocommit=True) as writer:
        writer.execute("BEGIN")
        native.write(1, writer)
        if prepared_before:
            writer.execute(f"PREPARE TRANSACTION '{name}'")
        native.write(25)
        assert native.closed() == []
        if not prepared_before:
            writer.execute(f"PREPARE TRANSACTION '{name}'")
        try:
            native.subscribe(native.snapshot())
            assert native.closed() == []
            assert "prepared" in native.drop_passed().because
        finally:
            writer.execute(f"COMMIT PREPARED '{name}'")
    assert native.closed() == ["outbox_from_0", "outbox_from_10"]
    assert native.count() == 26


@pytest.mark.full
def test_a_writer_that_was_prepared_before_a_restart_keeps_its_segment_open(breakable_stack, unique):
    """Noted before it had a transaction id, under a name that the restart changes: its lock on the segment tells."""
    dsn, name = create(breakable_stack.postgres, unique("db")[:63]), uuid.uuid4().hex
    native = Native(dsn)
    with psycopg.connect(dsn, autocommit=True) as writer:
        writer.execute("BEGIN; LOCK TABLE outbox IN ROW EXCLUSIVE MODE")
        native.push(15)
        assert native.closed() == []
        writer.execute("INSERT INTO outbox (id, kafka_topic, kafka_key) VALUES (5, 't', 'k')")
        writer.execute(f"PREPARE TRANSACTION '{name}'")
        assert native.closed() == []
    native.connection.close()
    crash(breakable_stack.postgres)
    native.connection = psycopg.connect(dsn, autocommit=True)
    native.push(15)
    try:
        assert native.closed() == []
        assert "prepared" in native.segments.waited_for(native.connection, first(native))[0]
    finally:
        native.connection.execute(f"COMMIT PREPARED '{name}'")
    assert native.closed() == ["outbox_from_0"]
    native.connection.close()


# -- seen


def test_a_segment_is_unseen_while_a_snapshot_lacks_a_record_of_it(native):
    native.write(15)
    before = native.snapshot()
    assert native.unseen(NOTHING_SEEN) == ["outbox_from_0", "outbox_from_10"]
    assert native.unseen(before) == []
    native.write(10)
    assert native.unseen(before) == ["outbox_from_10", "outbox_from_20"]
    assert native.unseen() == []


def test_a_segment_is_unseen_if_an_open_transaction_of_the_snapshot_wrote_into_it(native, dsn):
    with psycopg.connect(dsn) as late:
        native.write(12, late)
        seen = native.snapshot()
        native.write(10)
        late.commit()
    assert native.closed() == ["outbox_from_0", "outbox_from_10"]
    assert native.unseen(seen) == ["outbox_from_0", "outbox_from_10", "outbox_from_20"]
    assert native.unseen() == []


def test_a_closed_segment_is_unseen_after_a_parked_record_is_put_back(native):
    native.write(25)
    Parking(native.connection, native.parked).move(15)
    seen = native.snapshot()
    assert native.unseen(seen) == []
    native.parked.retry(native.connection, ParkedSelection())
    assert native.unseen(seen) == ["outbox_from_10"]
    assert native.unseen() == []


def test_unseen_reads_little_whatever_the_statistics_say(native):
    """A plan chosen for an empty table would read all of a full one."""
    native.connection.execute("ANALYZE outbox")
    native.push(1)
    native.write(9)
    ensure_segments(native.connection, native.table, size=200_000, ahead=4)
    native.push(30)
    native.connection.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key) SELECT 't', 'k' FROM generate_series(1, 250_000)"
    )
    assert native.unseen() == []
    reads = "SELECT coalesce(sum(seq_tup_read), 0) FROM pg_stat_user_tables WHERE relname LIKE 'outbox_from_%'"
    native.connection.execute("SELECT pg_stat_force_next_flush()")
    (before,) = native.connection.execute(reads).fetchone()
    with psycopg.connect(native.dsn) as idle:
        idle.execute("SELECT pg_current_xact_id()")
        assert native.unseen(native.snapshot()) == []
    native.connection.execute("SELECT pg_stat_force_next_flush()")
    (after,) = native.connection.execute(reads).fetchone()
    assert after - before < 1_000


# -- as a person does


def test_the_commands(harvest, native):
    native.write(25)
    native.subscribe(native.snapshot())

    def segments(*arguments):
        done = harvest("segments", *arguments, HARVEST_DSN=native.dsn)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "outbox_from_10" in segments("list")
    assert "would drop: outbox_from_0" in segments("drop", "--keep", "0s", "--dry-run")
    assert "is kept for 86400 s" in segments("drop", "--yes")
    assert segments("drop", "--keep", "0s", "--yes").startswith(
        "dropped: outbox_from_0\ndropped: outbox_from_10\nkept:"
    )
    assert "2 segments created" in segments("ensure", "--count", "3")
    assert "enough" in segments("ensure", "--count", "3")
    assert "number without a unit" in harvest("segments", "drop", "--keep", "5", HARVEST_DSN=native.dsn).stderr


def test_the_commands_take_the_times_of_the_configuration(harvest, native, tmp_path):
    """As in a crontab: one file for the harvester and for the commands beside it."""
    native.write(25)
    native.subscribe(native.snapshot())
    native.closed()
    native.connection.execute("UPDATE outbox_segments SET closed_at = closed_at - interval '30 hours'")
    native.connection.execute("UPDATE outbox SET create_time = create_time - interval '30 hours'")
    file = tmp_path / "harvest.yaml"

    def segments(command, *arguments, **settings):
        file.write_text(
            "harvest:\n  leadership: solo\n" + "".join(f"  {name}: {value}\n" for name, value in settings.items())
        )
        done = harvest("segments", command, "-f", file, *arguments, HARVEST_DSN=native.dsn)
        assert done.returncode == 0, done.stderr
        return done.stdout

    native.connection.execute("UPDATE outbox_segments SET passed_at = passed_at - interval '30 hours'")
    assert "older than 172800 s" in segments("rotate", "--due", maxSegmentAge="48h")
    assert "maxSegmentAge is 0" in segments("rotate", "--due", maxSegmentAge="0s")
    assert "rotated: outbox_from_20" in segments("rotate", "--due", maxSegmentAge="24h")
    assert "is kept for 259200 s" in segments("drop", "--yes", keepSegments="72h")
    assert "is kept for 172800 s" in segments("drop", "--yes", "--keep", "48h", keepSegments="24h")
    assert "dropped: outbox_from_0" in segments("drop", "--yes", keepSegments="24h")
    done = harvest("segments", "rotate", "--due", "--older-than", "1h", HARVEST_DSN=native.dsn)
    assert done.returncode == 2
    assert "maxSegmentAge" in done.stderr


def test_a_table_of_goharvests_layout_has_none(harvest, dsn):
    harvest("init", "--goharvest", HARVEST_DSN=dsn)
    done = harvest("segments", "list", HARVEST_DSN=dsn)
    assert done.returncode == 4
    assert "harvest migrate" in done.stderr
