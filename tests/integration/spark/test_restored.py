"""Postgres is put back to an earlier moment, and the writers go on; a stream of the outbox is started again and again.

Its checkpoint is Spark's, which did not go back: each start is refused, however long the log has become meanwhile.
"""

import json
import uuid

import psycopg
import pytest
from support.native_outbox import NativeOutbox
from support.outbox_source import Followed, without_password
from support.restoring import LOG, WAYS, quiet_server
from support.waiting import eventually

from harvest_lib.errors import ServerRegressed
from harvest_lib.outbox import NativeTable, OutboxTable
from harvest_lib.outbox.segments import Segments
from harvest_lib.source.server_identity import lsn_number
from harvest_lib.spark.data_source import register
from harvest_lib.spark.data_source.read_options import read_schema
from harvest_lib.spark.data_source.stream_reader import OutboxStreamReader

pytestmark = pytest.mark.full

STARTS = 3
INSERT = """
INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
VALUES (now(), 't', 'k', %s, '{}', '{}')
"""


@pytest.fixture
def server(tmp_path):
    with quiet_server(tmp_path / "server") as made:
        NativeOutbox(made.dsn, "t").close()
        yield made


class Driven:
    """A reader of a stream, called as Spark calls it: from the checkpoint on, a micro-batch at each start."""

    def __init__(self, dsn, **options):
        self.options = {"dsn": dsn, **options}
        self.offsets = []
        self.values = []

    def run(self, batches=1, *, is_told=True):
        """Take so many micro-batches; `is_told` where Spark says first where the query is."""
        reader = OutboxStreamReader(self.options, read_schema(self.options))
        try:
            if not self.offsets:
                self.offsets.append(through_json(reader.initialOffset()))
            if self.offsets[1:] and is_told:
                reader.partitions(*self.offsets[-2:])
            for _ in range(batches):
                self.batch(reader)
        finally:
            reader.stop()

    def batch(self, reader):
        end = through_json(reader.latestOffset())
        parts = [] if end == self.offsets[-1] else reader.partitions(self.offsets[-1], end)
        tables = [table for part in parts for table in reader.read(part)]
        self.offsets.append(end)
        self.values += [value for table in tables for value in table.column("kafka_value").to_pylist()]


def through_json(offset):
    return json.loads(json.dumps(offset))


class Source:
    """An outbox on a server that is put back, and a stream that follows it."""

    def __init__(self, server, way, folder, **options):
        self.server, self.folder = server, folder
        self.dsn = without_password(server.dsn, folder)
        self.way = WAYS[way](server, folder)
        self.stream = Driven(self.dsn, **options)

    def write(self, number):
        """Commit so many transactions with one value each, that does not come again, and return the values."""
        values = [str(uuid.uuid4()) for _ in range(number)]
        with psycopg.connect(self.server.dsn, autocommit=True) as connection:
            for value in values:
                connection.execute(INSERT, (value,))
        return values

    def burn(self, number):
        """Have so many transactions commit that write nothing into the outbox."""
        with psycopg.connect(self.server.dsn, autocommit=True) as connection:
            for _ in range(number):
                connection.execute("SELECT pg_current_xact_id()")

    def log(self):
        with psycopg.connect(self.server.dsn) as connection:
            return lsn_number(connection.execute(LOG).fetchone()[0])

    def outgrow(self, log):
        """Have the log pass a place, with transactions enough to pass those of before as well."""
        self.burn(400)
        with psycopg.connect(self.server.dsn, autocommit=True) as connection:
            while lsn_number(connection.execute(LOG).fetchone()[0]) <= log:
                connection.execute("SELECT pg_logical_emit_message(true, 'x', repeat('x', 100000))")

    def put_back_to_before_empty_transactions(self):
        """Have the stream pass transactions without a record, and the server lose them; return what was read, and the
        end of the log of then."""
        first = self.write(20)
        self.stream.run()
        self.way.save()
        self.burn(100)
        self.stream.run(is_told=False)
        log = self.log()
        self.way.restore()
        return first, log

    def refused(self):
        """Start the stream some times, and return the evidence that it names."""
        before = list(self.stream.values)
        for start in range(STARTS):
            with pytest.raises(ServerRegressed, match="does not fit this database") as caught:
                self.stream.run(is_told=start % 2 == 0)
        assert self.stream.values == before, "nothing was handed over"
        assert "start the query with a new checkpoint" in caught.value.next_step
        return caught.value.evidence

    def everything(self):
        """Return what a stream with a new checkpoint reads."""
        anew = Driven(self.dsn)
        anew.run()
        return anew.values


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "saved"
    made.mkdir()
    for each in (tmp_path, made):
        each.chmod(0o755)
    return made


@pytest.fixture
def source(server, folder, way, options):
    return Source(server, way, folder, **options)


OPTIONS = [{}, {"maxRecordsPerBatch": "1000"}, {"maxRecordsPerBatch": "7"}, {"startingOffsets": "now"}]


@pytest.mark.full
@pytest.mark.parametrize(
    ("way", "options"),
    [
        pytest.param(way, options, marks=[pytest.mark.gate] if (way, options) == ("cold copy", {}) else [])
        for way in WAYS
        for options in OPTIONS
    ],
)
def test_a_stream_is_refused_however_late_it_starts(source):
    """The log and the transactions have long passed the checkpoint when it starts first."""
    source.stream.run()
    first = source.write(20)
    source.stream.run(batches=4)
    source.way.save()
    lost = source.write(10)
    source.stream.run(batches=3)
    assert source.stream.values == first + lost
    log = source.log()
    source.way.restore()
    written = source.write(25)
    source.outgrow(log)
    written += source.write(5)
    source.refused()
    assert set(written) <= set(source.everything())


@pytest.mark.parametrize(("way", "options"), [("cold copy", {})])
def test_records_of_transactions_that_had_ended_without_any_are_noticed(source):
    """Nothing that was read is gone: but others have the ids of transactions that wrote nothing into the outbox."""
    first, log = source.put_back_to_before_empty_transactions()
    source.write(25)
    source.outgrow(log)
    assert "of a transaction that had ended without it" in source.refused()
    assert source.stream.values == first


@pytest.mark.parametrize(("way", "options"), [("cold copy", {})])
def test_a_stream_goes_on_where_nothing_that_it_passed_has_changed(source):
    first, log = source.put_back_to_before_empty_transactions()
    source.outgrow(log)
    written = source.write(25)
    source.stream.run()
    assert source.stream.values == first + written


@pytest.mark.parametrize(("way", "options"), [("cold copy", {})])
def test_a_micro_batch_that_is_repeated_has_the_same_rows_or_is_refused(source):
    """Its end is in the checkpoint, of a server that was put back since."""
    first = source.write(20)
    source.stream.run()
    source.way.save()
    source.write(10)
    reader = OutboxStreamReader(source.stream.options, read_schema(source.stream.options))
    end = through_json(reader.latestOffset())
    reader.stop()
    log = source.log()
    source.way.restore()
    source.write(10)
    source.outgrow(log)
    for _ in range(STARTS):
        with pytest.raises(ServerRegressed, match="does not fit this database"):
            reader.partitions(source.stream.offsets[-1], end)
    assert source.stream.values == first


@pytest.mark.spark
@pytest.mark.parametrize(("way", "options"), [("base backup", {})])
def test_spark_ends_with_what_the_reader_says(source, spark):
    register(spark)
    stream = Followed(spark, source.dsn, source.folder / "checkpoint")
    source.write(20)
    stream.run()
    source.way.save()
    source.write(10)
    stream.run()
    assert len(stream.ids()) == 30
    log = source.log()
    source.way.restore()
    source.write(25)
    source.outgrow(log)
    for _ in range(STARTS):
        with pytest.raises(Exception, match="does not fit this database") as caught:
            stream.run()
    assert "ServerRegressed" in str(caught.value)
    assert len(stream.ids()) == 30


@pytest.fixture
def small(dsn, tmp_path):
    """An outbox with segments of ten records, its stream, and a function that commits so many records."""
    outbox = OutboxTable.parse("outbox")
    with psycopg.connect(dsn, autocommit=True) as connection:
        NativeTable(outbox=outbox, segment_size=10, ahead=5).create(connection)

        def write(number, by=connection):
            for _ in range(number):
                by.execute(INSERT, (str(uuid.uuid4()),))

        yield connection, Driven(without_password(dsn, tmp_path)), write


def closed_names(connection):
    """Close the segments that the sequence has passed, and return their names."""
    segments = Segments(OutboxTable.parse("outbox"))
    eventually(lambda: any(each.closed_at for each in segments.close_passed(connection)), "some are closed")
    return [each.name for each in segments.read(connection) if each.closed_at]


@pytest.mark.gate
def test_records_of_segments_that_were_dropped_are_not_missed(small):
    connection, stream, write = small
    write(15)
    stream.run()
    closed = closed_names(connection)
    stream.run()
    for name in closed:
        connection.execute(f"ALTER TABLE outbox DETACH PARTITION {name}")
    write(5)
    stream.run()
    assert len(stream.values) == 20


@pytest.mark.gate
def test_what_commits_late_is_no_reason_to_refuse(small, dsn):
    _connection, stream, write = small
    with psycopg.connect(dsn) as late:
        write(2, late)
        write(10)
        stream.run()
        write(2, late)
        late.commit()
    write(1)
    stream.run(batches=2)
    stream.run()
    assert len(stream.values) == 15


@pytest.mark.gate
@pytest.mark.parametrize("statement", ["DELETE FROM outbox WHERE id = 12", "TRUNCATE outbox RESTART IDENTITY"])
def test_records_that_an_operator_deleted_are_missed(small, statement):
    """They cannot be told from those of a server that was put back."""
    connection, stream, write = small
    write(12)
    stream.run()
    connection.execute(statement)
    write(20)
    with pytest.raises(ServerRegressed, match="or records were deleted"):
        stream.run()
