"""`option("snapshot", …)`: the rows read end exactly where a subscription begins."""

import threading

import psycopg
import pytest
from pyspark.errors import PySparkException
from support.outbox_source import without_password
from support.waiting import eventually

from harvest_lib.archive import archive_segments
from harvest_lib.errors import CheckpointError, ConfigError, OutboxTableError
from harvest_lib.outbox import OutboxTable, append
from harvest_lib.outbox.segments import drop_passed
from harvest_lib.record import OutboxRecord
from harvest_lib.source import Selection, SnapshotSource, server_identity
from harvest_lib.spark.data_source import register
from harvest_lib.subscriptions.admin import Subscriptions

pytestmark = [pytest.mark.full, pytest.mark.spark]

SEGMENT = 50


@pytest.fixture
def native(make_outbox):
    return make_outbox(size=SEGMENT, ahead=20)


@pytest.fixture
def system(native):
    return server_identity.place(native.connection).system


def read(spark, native, **options):
    frame = spark.read.format("outbox").options(dsn=native.dsn, **options).load()
    return sorted(row.id for row in frame.select("id").collect())


def begin(native):
    """Add a subscription that begins now, and return its snapshot and its position."""
    selection = Selection(table=native.table.identifier)
    subscriptions = Subscriptions(native.connection, native.table, selection)
    subscriptions.add("copy", start="now")
    (shard,) = subscriptions.shards("copy")
    return shard.low_watermark, shard.checkpoint.position


def tail(native, position):
    """Return the ids that a harvester of the subscription reads."""
    source = SnapshotSource(native.dsn, Selection(table=native.table.identifier), subscription="copy")
    try:
        source.open(position)
        found = []
        while (page := source.read(1_000)) is not None:
            found += [row[0] for row in page.rows]
        return found
    finally:
        source.close()


class Writers:
    """Two that commit a few records at a time, and roll some back, until they are stopped."""

    def __init__(self, dsn):
        self.dsn = dsn
        self.commits = 0
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(n,)) for n in range(2)]

    def __enter__(self):
        for each in self._threads:
            each.start()
        eventually(lambda: self.commits > 20)
        return self

    def __exit__(self, *_):
        self._stopped.set()
        for each in self._threads:
            each.join()

    def _write(self, writer):
        with psycopg.connect(self.dsn) as connection:
            n = 0
            while not self._stopped.wait(0.02):
                n += 1
                append(connection, [OutboxRecord(topic="t", key=f"k{writer}", value=str(n))] * 2)
                if n % 5 == 0:
                    connection.rollback()
                else:
                    connection.commit()
                    self.commits += 1


def test_what_a_subscription_does_not_deliver_is_read_while_writers_go_on(spark, native, system, tmp_path):
    """Also again, after segments with records of both sides were archived and dropped."""
    url = str(tmp_path / "archive")
    with psycopg.connect(native.dsn) as late:
        native.write(1, late)  # in progress at the snapshot, with an id before others that it saw
        with Writers(native.dsn) as writers:
            seen, position = begin(native)
            before = writers.commits
            snapshot = {"snapshot": f"{seen}@{system}"}
            bulk = read(spark, native, **snapshot)
            late.commit()
            assert read(spark, native, **snapshot) == bulk
            eventually(lambda: writers.commits > before + 60)
    rest = tail(native, position)
    assert bulk
    assert len(rest) > 2 * 60
    assert min(rest) < max(bulk)
    assert sorted(bulk + rest) == read(spark, native)
    list(archive_segments(native.connection, native.table, url))
    native.subscribe(native.snapshot(), name="copy")
    dropped = drop_passed(native.connection, native.table, keep_seconds=0).dropped
    assert len(dropped) > 1
    assert read(spark, native, archive=url, **snapshot) == bulk


@pytest.mark.parametrize("text", ["now", "5:5:", "5:5:,@7", "5:5:@", "5:5:@7; DROP TABLE outbox"])
def test_what_is_no_snapshot_of_a_server_is_refused(spark, native, text):
    with pytest.raises((ConfigError, PySparkException), match="is no snapshot with the server"):
        read(spark, native, snapshot=text)


def test_the_snapshot_of_another_server_is_refused(spark, native):
    with pytest.raises((CheckpointError, PySparkException), match="the snapshot is of another server"):
        read(spark, native, snapshot=f"{native.snapshot()}@1")


def test_a_snapshot_that_the_server_has_not_come_to_is_refused(spark, native, system):
    with pytest.raises((CheckpointError, PySparkException), match="the snapshot is ahead of the database"):
        read(spark, native, snapshot=f"1:{2**60}:@{system}")


def test_an_outbox_whose_rows_are_deleted_has_no_earlier_snapshot(spark, dsn, tmp_path):
    register(spark)
    with psycopg.connect(dsn, autocommit=True) as connection:
        OutboxTable.parse("outbox").create(connection)
    options = {"dsn": without_password(dsn, tmp_path), "snapshot": "5:5:@1"}
    with pytest.raises((OutboxTableError, PySparkException), match="no earlier snapshot is kept"):
        spark.read.format("outbox").options(**options).load().collect()
