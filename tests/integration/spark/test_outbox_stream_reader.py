"""`spark.readStream.format("outbox")`: everything once, each key in order, from the checkpoint on; or it fails."""

import json

import psycopg
import pytest
from support.outbox_source import HAS_TARGETS, Followed, without_password
from support.waiting import eventually
from support.writers import Writers

from harvest_lib.outbox import OutboxTable, append
from harvest_lib.record import OutboxRecord
from harvest_lib.spark.data_source import register
from harvest_lib.spark.data_source.read_options import read_schema
from harvest_lib.spark.data_source.versions import stream_reader_class

pytestmark = [pytest.mark.full, pytest.mark.spark]

END_OTHERS = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@pytest.fixture
def native(make_outbox):
    return make_outbox(size=1_000, ahead=5)


@pytest.fixture
def follow(spark, native, tmp_path):
    def start(**options):
        return Followed(spark, native.dsn, tmp_path / "checkpoint", **options)

    return start


def committed(native):
    return [row[0] for row in native.connection.execute("SELECT id FROM outbox ORDER BY id")]


def test_a_stream_that_starts_again_goes_on_where_it_was(native, follow):
    stream = follow()
    native.write(10)
    stream.run()
    assert stream.ids() == list(range(1, 11))
    stream.run()
    assert stream.ids() == list(range(1, 11)), "nothing is new"
    native.write(5)
    stream.run()
    assert stream.ids() == list(range(1, 16))


def test_a_batch_that_failed_comes_again_with_the_same_rows(native, follow):
    stream = follow()
    native.write(10)
    stream.run()
    native.write(5)
    stream.fail_at = max(stream.batches) + 1
    with pytest.raises(Exception, match="before its commit"):
        stream.run()
    native.write(5)
    failed, stream.fail_at = stream.fail_at, None
    stream.run()  # the failed one
    stream.run()
    first, again = stream.batches[failed]
    assert first == again
    assert [row["id"] for row in again] == list(range(11, 16))
    assert stream.ids() == list(range(1, 21))


def test_what_was_open_across_batches_comes_when_it_commits(native, follow):
    stream = follow()
    with psycopg.connect(native.dsn) as long, psycopg.connect(native.dsn) as undone:
        native.write(2, long)
        native.write(2, undone)
        native.write(3)
        stream.run()
        assert stream.ids() == [5, 6, 7]
        native.write(1)
        stream.run()
        assert stream.ids() == [5, 6, 7, 8], "an open transaction delays nobody"
        native.write(1, long)
        undone.rollback()
        long.commit()
    native.write(1)
    stream.run()
    assert stream.ids() == [5, 6, 7, 8, 1, 2, 9, 10]


def test_every_key_in_order_while_writers_go_on_and_the_query_is_restarted(native, follow):
    native.topic = "t"
    stream = follow(maxRecordsPerBatch="50", shards="2")
    with Writers(native, pause_seconds=0.02) as writers:
        for _ in range(3):
            before = len(stream.batches)
            query = stream.start()
            try:
                eventually(lambda: len(stream.batches) >= before + 4 or query.exception())  # noqa: B023
            finally:
                query.stop()
            assert query.exception() is None
    stream.options = {"shards": "2"}
    for _ in ("what has to be repeated", "the rest of a window", "what came after it"):
        stream.run()
    assert sorted(stream.ids()) == committed(native)
    versions = {}
    for row in stream.rows():
        versions.setdefault(row["kafka_key"], []).append(int(row["kafka_value"]))
    wanted = {key: list(range(1, version + 1)) for key, version in writers.committed().items() if version}
    assert versions == wanted


def test_micro_batches_are_bounded(native, follow):
    stream = follow(maxRecordsPerBatch="7")
    native.write(40)
    stream.run_until(40)
    assert [len(stream.batches[number][-1]) for number in range(6)] == [7, 7, 7, 7, 7, 5]
    with psycopg.connect(native.dsn) as late:
        native.write(9, late)
        native.write(1)
        stream.run_until(41)
        late.commit()
    stream.run_until(50)
    sizes = [len(batch[-1]) for batch in stream.batches.values()]
    assert max(sizes) == 7
    assert stream.ids() == [*range(1, 41), 50, *range(41, 50)]


def test_a_stream_of_some_topics_has_their_records_alone_and_counts_no_others(native, follow):
    append(native.connection, [OutboxRecord(topic="ab"[n % 2], key="k", value=str(n)) for n in range(40)])
    stream = follow(topics="b", columns="id,kafka_topic", maxRecordsPerBatch="7")
    stream.run_until(20)
    assert stream.ids() == list(range(2, 41, 2))
    assert [len(stream.batches[number][-1]) for number in range(3)] == [7, 7, 6]
    assert {tuple(row) for row in stream.rows()} == {("id", "kafka_topic")}


@pytest.mark.skipif(HAS_TARGETS, reason="Spark 4.2 takes all that is available")
def test_a_query_that_stops_within_a_window_goes_on_there(native, follow):
    stream = follow(maxRecordsPerBatch="7")
    native.write(30)
    for taken in (7, 14):
        stream.run()
        assert stream.ids() == list(range(1, taken + 1)), "one micro-batch at a time"
    stream.options = {}
    native.write(2)
    stream.run()
    stream.run()
    assert stream.ids() == list(range(1, 33))


@pytest.mark.skipif(not HAS_TARGETS, reason="Spark 4.1 takes a single micro-batch")
def test_all_that_is_available_comes_in_micro_batches_of_the_limit(native, follow):
    """Records that commit later, or were open, wait for the next query."""
    stream = follow(maxRecordsPerBatch="7")
    native.write(30)
    with psycopg.connect(native.dsn) as open_since:
        native.write(2, open_since)
        native.write(1)
        stream.run()
        assert stream.ids() == [*range(1, 31), 33]
        assert max(len(attempts[-1]) for attempts in stream.batches.values()) == 7
        count = len(stream.ids())
        stream.run()
        assert len(stream.ids()) == count, "nothing is new"
        open_since.commit()
    stream.fail_at = max(stream.batches) + 1
    with pytest.raises(Exception, match="before its commit"):
        stream.run()
    stream.fail_at = None
    native.write(20)
    stream.run()
    assert stream.ids() == [*range(1, 31), 33, 31, 32, *range(34, 54)]


@pytest.mark.skipif(not HAS_TARGETS, reason="as above")
def test_the_progress_has_the_newest_offset(native, follow):
    stream = follow(maxRecordsPerBatch="7")
    native.write(30)
    query = stream.start(availableNow=True)
    query.awaitTermination()
    (source,) = query.lastProgress["sources"]
    ids = [max(row[0] for row in json.loads(source[each])["seen"]["rows"]) for each in ("endOffset", "latestOffset")]
    assert ids == [30, 30]


@pytest.mark.skipif(not HAS_TARGETS, reason="as above")
def test_the_newest_offset_of_a_query_that_is_not_behind_costs_no_statement(native):
    reader = stream_reader_class()({"dsn": native.dsn}, read_schema({"dsn": native.dsn}))
    native.write(3)
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    reader.stop()
    native.connection.execute(END_OTHERS)
    native.connection.execute("ALTER TABLE outbox RENAME TO gone")  # a statement on it would fail
    assert reader.reportLatestOffset() == end


def test_a_stream_from_now_on_skips_what_was_there_and_nothing_else(native, follow):
    stream = follow(startingOffsets="now")
    native.write(5)
    with psycopg.connect(native.dsn) as open_since:
        native.write(1, open_since)
        stream.run()
        native.write(2)
        open_since.commit()
    stream.run()
    assert stream.ids() == [6, 7, 8]


def test_an_idle_stream_makes_no_batches(native, follow):
    stream = follow()
    native.write(1)
    query = stream.start()
    try:
        eventually(lambda: stream.ids() == [1] or query.exception())
        count = len(stream.batches)
        for _ in range(20):
            native.connection.execute("SELECT pg_current_xact_id()")
            query.processAllAvailable()  # it polls, and finds nothing
        assert len(stream.batches) == count
        assert query.exception() is None
    finally:
        query.stop()


def test_a_waiting_stream_outlives_its_connections(native, follow):
    stream = follow()
    native.write(1)
    query = stream.start()
    try:
        eventually(lambda: stream.ids() == [1] or query.exception())
        query.processAllAvailable()  # it waits now
        assert native.connection.execute(END_OTHERS).fetchone()[0]
        native.write(1)
        eventually(lambda: stream.ids() == [1, 2] or query.exception())
        assert query.exception() is None
    finally:
        query.stop()


def detach(native, count):
    for name in native.names()[:count]:
        native.connection.execute(f"ALTER TABLE outbox DETACH PARTITION {name}")


def test_a_segment_dropped_before_it_was_read_fails_the_stream(make_outbox, spark, tmp_path):
    native = make_outbox(size=10, ahead=9)
    stream = Followed(spark, native.dsn, tmp_path / "checkpoint")
    native.write(5)
    stream.run()
    native.write(25)
    detach(native, 2)
    with pytest.raises(Exception, match="a segment of the outbox was") as caught:
        stream.run()
    assert "lost records are in Kafka, or a backup" in str(caught.value)
    assert stream.ids() == [1, 2, 3, 4, 5], "no gap was passed"


def test_a_running_stream_fails_too(make_outbox, spark, tmp_path):
    native = make_outbox(size=10, ahead=9)
    stream = Followed(spark, native.dsn, tmp_path / "checkpoint")
    native.write(5)
    query = stream.start()
    eventually(lambda: stream.ids() or query.exception())
    with native.connection.transaction():
        native.write(25)
        detach(native, 2)
    with pytest.raises(Exception, match="a segment of the outbox was"):
        query.awaitTermination(60)
    assert stream.ids() == [1, 2, 3, 4, 5]


def test_segments_that_were_read_may_go(make_outbox, spark, tmp_path):
    """Retention closes a segment before it drops it: the stream notes that, and does without it."""
    native = make_outbox(size=10, ahead=9)
    stream = Followed(spark, native.dsn, tmp_path / "checkpoint")
    native.write(25)
    stream.run()
    assert len(native.closed()) == 2
    stream.run()
    assert stream.offset()["closed"] == 20
    detach(native, 2)
    native.write(5)
    stream.run()
    assert stream.ids() == list(range(1, 31))


def test_a_batch_that_is_repeated_fails_if_a_segment_of_it_is_gone(make_outbox, spark, tmp_path):
    native = make_outbox(size=10, ahead=9)
    stream = Followed(spark, native.dsn, tmp_path / "checkpoint")
    native.write(25)
    stream.fail_at = 0
    with pytest.raises(Exception, match="before its commit"):
        stream.run()
    stream.fail_at = None
    detach(native, 1)
    with pytest.raises(Exception, match="dropped before all of it was read"):
        stream.run()


def test_an_outbox_whose_rows_are_deleted_is_refused(spark, dsn, tmp_path):
    register(spark)
    with psycopg.connect(dsn, autocommit=True) as connection:
        OutboxTable.parse("outbox").create(connection)
        append(connection, [OutboxRecord(topic="t", key="k", value="v")])
    stream = Followed(spark, without_password(dsn, tmp_path), tmp_path / "checkpoint")
    with pytest.raises(Exception, match="no stream can follow the outbox") as caught:
        stream.run()
    assert "harvest migrate" in str(caught.value)
    assert not stream.batches


def test_a_stream_ends_when_rows_begin_to_be_deleted(native, follow):
    stream = follow()
    native.write(1)
    stream.run()
    native.subscribe("1:1:")
    native.connection.execute("UPDATE outbox_subscriptions SET source = 'mark'")
    with pytest.raises(Exception, match="no stream can follow the outbox"):
        stream.run()


def test_the_checkpoint_of_another_server_is_refused(native, follow):
    stream = follow()
    native.write(3)
    stream.run()
    file = max((stream.checkpoint / "offsets").glob("[0-9]*"), key=lambda each: int(each.name))
    lines = file.read_text().splitlines()
    offset = json.loads(lines[-1])
    offset["server"]["system"] = "1"
    file.write_text("\n".join([*lines[:-1], json.dumps(offset)]))
    (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
    query = stream.start()
    with pytest.raises(Exception, match="checkpoint does not fit this database"):
        query.awaitTermination(60)


def test_options_of_streams_are_checked(native, follow):
    for options, match in (({"startingOffsets": "12"}, "cannot start at"), ({"maxRecordsPerBatch": "0"}, "no number")):
        with pytest.raises(Exception, match=match):
            follow(**options).run()
