"""Sources to read and destinations to write, one class for each adaptor, all with rows of `id` and `note`."""

import json
import uuid
from contextlib import contextmanager, suppress

import psycopg
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from psycopg.conninfo import make_conninfo
from support.outbox import read_topic
from support.waiting import eventually

from harvest_lib.errors import AdaptorError, DatabaseAccessDenied
from harvest_lib.outbox import NativeTable, OutboxTable
from harvest_lib.pipeline.adaptors import reading, writing
from harvest_lib.pipeline.adaptors.postgres.reader import PostgresReader
from harvest_lib.pipeline.message import Mode, Op, PipelineMessage
from harvest_lib.record import OutboxRecord

TABLE = "CREATE TABLE t (id int PRIMARY KEY, note text)"


def opened(side, **options):
    """Return a side's reader or writer with these options."""
    return side.make(side.options(**options))


def collect(reader, last=None, *, until, seconds=60):
    """Read until `until(messages, last)` is true; return them without NOOPs, and the last of each namespace.

    The last messages are as a pipeline keeps them for this reader.
    """
    found, last = [], dict(last or {})

    def enough():
        batch = next(batches, None)
        if batch is None:
            return True
        found.extend(each for each in batch if each.op is not Op.NOOP)
        last.update((each.namespace, as_told(each)) for each in batch)
        return until(found, last)

    def as_told(message):
        return message if reader.needs_data or message.op is Op.NOOP else message._replace(data={})

    batches = reader.read(dict(last))
    eventually(enough, f"{len(found)} messages", seconds=seconds)
    return found, last


def following(reader, last=None):
    """Have a reader past its copy, and return its batches."""
    batches = reader.read(last or {})
    next(batch for batch in batches if any(each.mode is Mode.COMPLETE for each in batch))
    assert next(batches) == []  # the copy's transaction is over
    return batches


def taken(batches, count):
    found = []
    while len(found) < count:
        found += [each for each in next(batches) if each.op is not Op.NOOP]
    return found


def quick(source, tables=("t",)):
    """A reader that looks around every so often."""
    options = reading("postgres").options(data_source=source.dsn, slot=source.slot, tables=list(tables))
    return PostgresReader(options, position_seconds=0.1)


def refused(reader, last=None):
    with pytest.raises((AdaptorError, DatabaseAccessDenied)) as error:
        for _, _batch in zip(range(100), reader.read(last or {}), strict=False):
            pass
    return error.value


@contextmanager
def readers(source):
    """Yield what makes readers of a source; they are closed at the end, each twice, as may be."""
    made = []

    def make(**options):
        made.append(source.reader(**options))
        return made[-1]

    yield make
    for each in made:
        each.close()
        each.close()


class PostgresSource:
    """A table that is copied and followed."""

    namespace = "public.t"

    def __init__(self, dsn, unique):
        self.dsn, self.slot = dsn, unique("slot")[:63]
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.connection.execute(TABLE)

    def put(self, *ids):
        with self.connection.transaction(), self.connection.cursor() as cursor:
            cursor.executemany("INSERT INTO t VALUES (%s, %s)", [(each, f"note {each}") for each in ids])

    def reader(self, **options):
        """One that says where it is after changes alone, and not every few seconds, too."""
        known = {"data_source": self.dsn, "slot": self.slot, "tables": ["t"]}
        return PostgresReader(reading("postgres").options(**{**known, **options}), position_seconds=3600)

    def close(self):
        empty(self.connection)


class OutboxSource:
    """A native outbox."""

    namespace = "topic"

    def __init__(self, dsn):
        self.dsn = dsn
        self.connection = psycopg.connect(dsn, autocommit=True)
        NativeTable(outbox=OutboxTable.parse("outbox")).create(self.connection)

    def put(self, *ids):
        from harvest_lib import append  # noqa: PLC0415 - the others do without

        append(self.connection, [OutboxRecord(topic="topic", key="k", value=str(each)) for each in ids])

    def reader(self, **options):
        return opened(reading("outbox"), data_source=self.dsn, subscription="pipeline", **options)

    def close(self):
        empty(self.connection)


class KafkaSource:
    """A topic of envelopes."""

    def __init__(self, servers, topic):
        self.servers, self.namespace = servers, topic
        self._producer = Producer({"bootstrap.servers": servers})

    def put(self, *ids):
        for each in ids:
            message = {"op": "insert", "timestamp": 1, "namespace": self.namespace, "data": {"id": each, "note": "n"}}
            self._producer.produce(self.namespace, json.dumps(message))
        assert self._producer.flush(60) == 0

    def reader(self, **options):
        kafka = {"bootstrap.servers": self.servers}
        return opened(reading("kafka"), kafka=kafka, topics=[self.namespace], **options)

    def close(self):
        """Nothing is left."""


class FileSource:
    """JSON lines or Parquet."""

    namespace = "t"

    def __init__(self, path, file_format):
        self._path, self._format = path, file_format
        self._writer = opened(writing("file"), path=str(path), format=file_format)
        if file_format == "parquet":
            path.mkdir()
        else:
            path.touch()

    def put(self, *ids):
        self._writer.write([PipelineMessage(Op.INSERT, 1, "t", {"id": each, "note": f"note {each}"}) for each in ids])

    def reader(self, **options):
        return opened(reading("file"), path=self._path, format=self._format, follow=True, **options)

    def close(self):
        self._writer.close()


class PostgresTarget:
    """A table that is written to."""

    def __init__(self, dsn):
        self.dsn = dsn
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.connection.execute(TABLE)

    def writer(self, **options):
        return opened(writing("postgres"), data_source=self.dsn, **options)

    def rows(self):
        return dict(self.connection.execute("SELECT id, note FROM t").fetchall())

    def close(self):
        empty(self.connection)


class KafkaTarget:
    """A topic, whose table is what remains of each key's newest record."""

    def __init__(self, servers, topic, content):
        self.servers, self.topic, self._content = servers, topic, content

    def writer(self, **options):
        settings = {"key": {self.topic: ["id"]}, "content": self._content, **options}
        return opened(writing("kafka"), kafka={"bootstrap.servers": self.servers}, **settings)

    def rows(self):
        newest = {}
        for record in read_topic(self.servers, self.topic):
            value = json.loads(record.value) if record.value else None
            if self._content == "envelope":
                value = value["data"] if value["op"] != "delete" else None
            newest[json.loads(record.key)["id"]] = value
        return {key: value.get("note") for key, value in newest.items() if value is not None}

    def close(self):
        """Nothing is left."""


class FileTarget:
    """JSON lines or Parquet, whose table is what remains of each key's newest row."""

    def __init__(self, path, file_format):
        self._path, self._format = path, file_format

    def writer(self, **options):
        return opened(writing("file"), path=str(self._path), format=self._format, **options)

    def rows(self):
        newest = {}
        for op, row in self._parquet() if self._format == "parquet" else self._lines():
            newest[row["id"]] = {**(newest.get(row["id"]) or {}), **row} if op != "delete" else None
        return {key: row.get("note") for key, row in newest.items() if row is not None}

    def _lines(self):
        for line in self._path.read_text().splitlines():
            message = json.loads(line)
            yield message["op"], message["data"]

    def _parquet(self):
        for path in sorted(self._path.rglob("*.parquet")):
            for row in pq.read_table(path).to_pylist():
                yield row["_op"], {name: value for name, value in row.items() if not name.startswith("_")}

    def close(self):
        """Nothing is left."""


@contextmanager
def own_database(stack):
    """A database for all tests of a file, which leave it empty: one for each of them takes longer than most tests."""
    name = f"pipeline_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(stack.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield make_conninfo(stack.dsn, dbname=name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def empty(connection):
    """Take away all that a test has made."""
    drop_slots(connection)
    for (name,) in connection.execute("SELECT quote_ident(pubname) FROM pg_publication").fetchall():
        connection.execute(f"DROP PUBLICATION {name}")
    connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public; GRANT USAGE ON SCHEMA public TO PUBLIC")
    connection.close()


def drop_slots(connection):
    """Drop all slots of a database; it could not be dropped with one."""
    statement = """
    SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()
    """

    def dropped():
        with suppress(psycopg.errors.ObjectInUse):  # the server has not noticed yet that nobody is there
            connection.execute(statement)
            return True
        return False

    eventually(dropped, "the slots are dropped")
