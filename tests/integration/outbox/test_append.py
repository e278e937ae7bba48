"""`append` as writers use it: in their own transaction, by any of three connections, refused before it is written."""

import asyncio

import psycopg
import pytest
import sqlalchemy
from psycopg import sql

from harvest_lib.errors import DatabaseError, OutboxTableError, RecordError
from harvest_lib.outbox import NativeTable, OutboxTable, append, append_async
from harvest_lib.record import OutboxRecord, RecordLimits


class Undone(Exception):
    """Raised inside a transaction, to roll it back."""


class SyncWriter:
    """Writes through psycopg."""

    def __init__(self, dsn):
        self._dsn = dsn

    def write(self, *batches, undo=False, **options):
        """Append all batches in one transaction and return what each call said."""
        with psycopg.connect(self._dsn) as connection:
            counts = [append(connection, batch, **options) for batch in batches]
            connection.rollback() if undo else connection.commit()
        return counts


class AsyncWriter(SyncWriter):
    """Writes through psycopg's async half."""

    def write(self, *batches, undo=False, **options):
        async def run():
            async with await psycopg.AsyncConnection.connect(self._dsn) as connection:
                counts = [await append_async(connection, batch, **options) for batch in batches]
                await (connection.rollback() if undo else connection.commit())
            return counts

        return asyncio.run(run())


class SqlalchemyWriter(SyncWriter):
    """Writes through SQLAlchemy, whose transaction begins by itself."""

    def write(self, *batches, undo=False, **options):
        engine = make_engine(self._dsn)
        try:
            with engine.connect() as connection:
                counts = [append(connection, batch, **options) for batch in batches]
                connection.rollback() if undo else connection.commit()
        finally:
            engine.dispose()
        return counts


def make_engine(dsn):
    return sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn))


class Table:
    """The outbox, seen by someone else than the writer."""

    def __init__(self, dsn, name="outbox"):
        self.connection = psycopg.connect(dsn, autocommit=True)
        self._table = OutboxTable.parse(name)
        self._table.create(self.connection)

    def rows(self, columns="kafka_key"):
        statement = sql.SQL("SELECT {} FROM {} ORDER BY id").format(sql.SQL(columns), self._table.identifier)
        rows = self.connection.execute(statement).fetchall()
        return [row[0] for row in rows] if "," not in columns else rows


@pytest.fixture
def table(dsn):
    made = Table(dsn)
    yield made
    made.connection.close()


@pytest.fixture(params=[SyncWriter, AsyncWriter, SqlalchemyWriter], ids=["psycopg", "psycopg_async", "sqlalchemy"])
def writer(request, dsn):
    return request.param(dsn)


@pytest.fixture
def sync_writer(dsn):
    return SyncWriter(dsn)


def records(*keys, **fields):
    return [OutboxRecord(**{"topic": "orders", "key": key, "value": "v", **fields}) for key in keys]


def test_a_commit_keeps_records_with_ids_in_the_order_given(table, writer):
    keys = [f"k{number * 7 % 50}" for number in range(50)]
    assert writer.write(records(*keys), records("last")) == [50, 1]
    assert table.rows() == [*keys, "last"]


def test_a_rollback_removes_them(table, writer):
    """I2."""
    writer.write(records("undone"), undo=True)
    writer.write(records("done"))
    assert table.rows() == ["done"]


def test_a_record_is_stored_as_it_is(table, writer):
    headers = [("type", "created"), ("type", "twice"), ("empty", ""), ("none", None), ("curly", '{"a",b\\}')]
    whole = OutboxRecord(topic="A.b_c-1", key="kéy", value='{"ü": "%s \\"}', headers=headers)
    writer.write([whole, OutboxRecord(topic="t", key="", value=None), OutboxRecord(topic="t", key="e", value="")])
    columns = "kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, leader_id"
    assert table.rows(columns) == [
        (whole.topic, whole.key, whole.value, [name for name, _ in headers], [content for _, content in headers], None),
        ("t", "", None, [], [], None),
        ("t", "e", "", [], [], None),
    ]
    (fresh,) = table.connection.execute(
        "SELECT bool_and(clock_timestamp() - create_time < '1 minute') FROM outbox"
    ).fetchone()
    assert fresh, "by Postgres's clock"


def test_records_may_come_from_a_generator_and_there_may_be_none(table, writer):
    assert writer.write((record for record in records("a", "b")), iter([])) == [2, 0]
    assert table.rows() == ["a", "b"]


def test_a_bad_record_is_refused_by_every_connection(table, writer):
    with pytest.raises(RecordError):
        writer.write(records("good"), records("good", "k" * 101))
    assert table.rows() == []


BAD = [
    {"topic": ""},
    {"topic": "."},
    {"topic": ".."},
    {"topic": "x" * 250},
    {"topic": "ord€rs"},
    {"topic": "'); DROP TABLE outbox; --"},
    {"key": "k" * 101},
    {"value": "v" * 10_001},
    {"key": "\x00"},
    {"value": "\x00"},
    {"headers": [("a", "\x00")]},
]


def test_a_bad_record_is_refused_before_any_is_written(table, dsn):
    with psycopg.connect(dsn) as connection:
        append(connection, records("before"))
        for wrong in BAD:
            bad = OutboxRecord(**{"topic": "orders", "key": "bad", "value": "v", **wrong})
            with pytest.raises(RecordError):
                append(connection, [*records("same call"), bad])
        append(connection, records("after"))
    assert table.rows() == ["before", "after"]


def test_limits_follow_a_wider_table(table, sync_writer):
    table.connection.execute("ALTER TABLE outbox ALTER kafka_key TYPE text, ALTER kafka_value TYPE text")
    wide = RecordLimits(key_chars=1_000, value_chars=None)
    sync_writer.write(records("k" * 1_000, value="v" * 50_000), limits=wide)
    with pytest.raises(RecordError):
        sync_writer.write(records("k" * 1_001), limits=wide)
    assert table.rows("length(kafka_key), length(kafka_value)") == [(1_000, 50_000)]


@pytest.mark.parametrize("value_type", ["text", "bytea"])
def test_the_columns_say_how_long_a_value_may_be(dsn, writer, value_type):
    """As `harvest init --value-type` made them."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        NativeTable(outbox=OutboxTable.parse("long outbox"), value_type=value_type).create(connection)
        value = "x" * 10_001 if value_type == "text" else b"x" * 10_001
        assert writer.write(records("k", value=value), table="long outbox") == [1]
        assert connection.execute('SELECT length(kafka_value) FROM "long outbox"').fetchone() == (10_001,)
    with pytest.raises(RecordError, match="the key of a record"):
        writer.write(records("k" * 101, value=value), table="long outbox")


def test_a_column_that_is_narrower_or_wider_is_found_out(table, dsn):
    """Without asking again for each record: once for a connection, and before one is refused."""
    table.connection.execute("ALTER TABLE outbox ALTER kafka_value TYPE VARCHAR(20)")
    with psycopg.connect(dsn, autocommit=True) as connection:
        append(connection, records("k"))
        with pytest.raises(RecordError, match="the column takes 20"):
            append(connection, records("k", value="x" * 21))
        table.connection.execute("ALTER TABLE outbox ALTER kafka_value TYPE VARCHAR(30)")
        assert append(connection, records("k", value="x" * 21)) == 1
        asked = [append(connection, records("k")) for _ in range(3)]
        assert asked == [1, 1, 1]
    assert len(table.rows()) == 5


def test_limits_beyond_the_table_are_found_out_by_postgres(table, sync_writer):
    with pytest.raises(DatabaseError):
        sync_writer.write(records("k" * 200), limits=RecordLimits(key_chars=200))
    assert table.rows() == []


def test_a_table_is_found_by_its_name_whatever_that_holds(table, dsn, writer):
    names = ['"; DROP TABLE outbox; --', 'Mixed "Case"', "sélect", "100%s %(x)s %", "{table}", "billing.outbox"]
    table.connection.execute("CREATE SCHEMA billing")
    others = [Table(dsn, name) for name in names]
    for name in names:
        writer.write(records(f"in {name}"), table=name)
    writer.write(records("ours"))
    assert [other.rows() for other in others] == [[f"in {name}"] for name in names]
    assert table.rows() == ["ours"]
    for other in others:
        other.connection.close()


def test_a_missing_table_is_named_as_such(dsn, sync_writer):
    assert sync_writer.write([], table="missing too") == [0], "nothing to append asks nobody"
    with pytest.raises(OutboxTableError, match="not there"):
        sync_writer.write(records("k"))


def test_it_joins_the_business_rows_of_the_same_transaction(table, dsn):
    """Whatever the caller did before with the connection, both come and go together."""
    table.connection.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    engine = make_engine(dsn)
    for undo in (True, False):
        with engine.connect() as connection:
            connection.execute(sqlalchemy.text("INSERT INTO orders VALUES (1)"))
            append(connection, records("k"))
            connection.rollback() if undo else connection.commit()
    with pytest.raises(Undone), engine.begin() as connection:
        append(connection, records("undone"))
        with connection.begin_nested():
            append(connection, records("nested"))
        raise Undone
    engine.dispose()
    assert table.connection.execute("SELECT count(*) FROM orders").fetchone() == (1,)
    assert table.rows() == ["k"]


def test_a_connection_of_another_kind_is_refused(dsn):
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as connection, pytest.raises(TypeError, match="psycopg"):
        append(connection, records("k"))
    for other in (object(), engine):
        with pytest.raises(TypeError, match="psycopg"):
            append(other, records("k"))
    engine.dispose()
