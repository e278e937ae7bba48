"""`append` as writers use it: in their own transaction, by any of their connections, refused before it is written."""

import asyncio
import json
from datetime import UTC, datetime

import asyncpg
import django.db
import psycopg
import psycopg2
import pytest
import sqlalchemy
import sqlalchemy.exc
from django.db import connections, transaction
from psycopg import sql
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, scoped_session, sessionmaker
from support.append_writers import (
    WRITERS,
    AsyncpgSessionWriter,
    AsyncpgWriter,
    SyncWriter,
    Undone,
    asyncpg_options,
    django_connected,
    make_engine,
)
from support.open_telemetry import Traces, header

from harvest_lib.config.choices import ReadingMode
from harvest_lib.errors import DatabaseAccessDenied, LifecycleError, OutboxTableError, RecordError
from harvest_lib.grants.postgres import Grants
from harvest_lib.outbox import NativeTable, OutboxTable, append, append_async
from harvest_lib.record import OutboxRecord, RecordLimits

pytestmark = pytest.mark.gate(cases=4)


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


@pytest.fixture(params=[pytest.param(made, id=name) for name, made in WRITERS.items()])
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


def test_the_current_span_is_written_to_records_that_name_none(table, writer, monkeypatch):
    own = [("traceparent", "of its own"), ("type", "placed")]
    state = [("tracestate", "vendor=1")]
    with Traces(monkeypatch).tracer.start_as_current_span("write") as span:
        writer.write(records("a", headers={"type": "placed"}), records("b", headers=own) + records("c", headers=state))
    writer.write(records("d", headers={"type": "placed"}))
    assert table.rows("kafka_key, kafka_header_keys, kafka_header_values") == [
        ("a", ["type", "traceparent"], ["placed", header(span)]),
        ("b", ["traceparent", "type"], ["of its own", "placed"]),
        ("c", ["tracestate"], ["vendor=1"]),
        ("d", ["type"], ["placed"]),
    ]


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
    with pytest.raises(psycopg.errors.StringDataRightTruncation):
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
    with pytest.raises(OutboxTableError, match="does not exist"):
        sync_writer.write(records("k"))


@pytest.mark.quick
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


class Base(DeclarativeBase):
    """The business rows of a user of SQLAlchemy's ORM."""


class Order(Base):
    """A business row."""

    __tablename__ = "orders"
    id: Mapped[str] = mapped_column(primary_key=True)
    state: Mapped[str]


@pytest.mark.parametrize("scoped", [False, True], ids=["session", "scoped_session"])
def test_a_session_writes_its_rows_before_the_records(table, dsn, scoped):
    """Else the key would be locked after the record has its id, and two writers could take turns."""
    engine = make_engine(dsn)
    Base.metadata.create_all(engine)
    make = sessionmaker(engine, autoflush=False)
    session = scoped_session(make) if scoped else make()
    session.add(Order(id="o-1", state="placed"))
    append(session, records("o-1"))
    session.commit()
    session.get(Order, "o-1").state = "paid"
    append(session, records("o-1"))
    with psycopg.connect(dsn) as other, pytest.raises(psycopg.errors.LockNotAvailable):
        other.execute("SELECT FROM orders WHERE id = 'o-1' FOR UPDATE NOWAIT")
    session.rollback()
    session.close()
    engine.dispose()
    assert table.rows() == ["o-1"]
    assert table.connection.execute("SELECT state FROM orders").fetchall() == [("placed",)]


def test_an_async_session_writes_its_rows_before_the_records(table, dsn):
    engine = make_engine(dsn)
    Base.metadata.create_all(engine)
    engine.dispose()

    async def run():
        engine = AsyncpgSessionWriter(dsn).engine()
        async with AsyncSession(engine, autoflush=False) as session, session.begin():
            session.add(Order(id="o-2", state="placed"))
            await append_async(session, records("o-2"))
            assert not session.new
        await engine.dispose()

    asyncio.run(run())
    assert table.rows() == ["o-2"]


def test_records_outside_a_transaction_are_refused_where_that_is_easily_forgotten(table, dsn):
    with django_connected(dsn) as connection, pytest.raises(LifecycleError, match=r"transaction\.atomic"):
        append(connection, records("k"))

    async def run():
        connection = await asyncpg.connect(**asyncpg_options(dsn))
        try:
            await append_async(connection, records("k"))
        finally:
            await connection.close()

    with pytest.raises(LifecycleError, match=r"connection\.transaction"):
        asyncio.run(run())
    assert table.rows() == []


def test_a_transaction_of_sqlalchemy_that_postgres_does_not_have_is_refused(table, dsn):
    """A rollback would leave the records."""
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn)).execution_options(
        isolation_level="AUTOCOMMIT"
    )
    with engine.begin() as connection, pytest.raises(LifecycleError, match="AUTOCOMMIT"):
        append(connection, records("k"))

    async def run():
        made = create_async_engine(
            "postgresql+psycopg://",
            async_creator=lambda: psycopg.AsyncConnection.connect(dsn),
            isolation_level="AUTOCOMMIT",
        )
        async with made.begin() as connection:
            await append_async(connection, records("k"))

    with pytest.raises(LifecycleError, match="AUTOCOMMIT"):
        asyncio.run(run())
    assert table.rows() == []


@pytest.mark.parametrize("value_type", ["text", "bytea"])
def test_a_dict_becomes_json_whatever_the_column_is(dsn, writer, value_type):
    with psycopg.connect(dsn, autocommit=True) as connection:
        NativeTable(outbox=OutboxTable.parse("outbox"), value_type=value_type).create(connection)
        writer.write(records("dict", value={"ü": [1, None, "%s"]}), records("list", value=[{}]), limits=RecordLimits())
        found = [row[0] for row in connection.execute("SELECT kafka_value FROM outbox ORDER BY id")]
    texts = [each if isinstance(each, str) else each.decode() for each in found]
    assert texts == ['{"ü":[1,null,"%s"]}', "[{}]"]
    assert [json.loads(each) for each in texts] == [{"ü": [1, None, "%s"]}, [{}]]


def test_headers_may_be_a_dict(table, sync_writer):
    sync_writer.write(records("k", headers={"event": "placed", "trace": None}))
    assert table.rows("kafka_header_keys, kafka_header_values") == [(["event", "trace"], ["placed", None])]


WRONG = {
    "a date in JSON": ({"value": {"at": datetime.now(UTC)}}, "datetime is not JSON"),
    "no number in JSON": ({"value": {"of": float("nan")}}, "cannot be written as JSON"),
    "a value that is a number": ({"value": 5}, "it is int"),
    "a key that is a number": ({"key": 5}, "it is int"),
    "a topic that is missing": ({"topic": None}, "it is NoneType"),
    "a header that is a number": ({"headers": {"tries": 3}}, "it is int"),
    "headers that are names": ({"headers": ["event", "type"]}, "not pairs"),
    "headers that are text": ({"headers": "event"}, "not pairs"),
    "JSON that is too long": ({"value": {"v": "x" * 10_000}}, "10008 characters"),
}


@pytest.mark.parametrize(("wrong", "said"), WRONG.values(), ids=WRONG)
def test_what_was_given_instead_is_said(table, sync_writer, wrong, said):
    with pytest.raises(RecordError, match=said):
        sync_writer.write(records("k", **wrong))
    assert table.rows() == []


def test_an_error_of_asyncpg_reads_as_one_of_psycopg(table, dsn):
    for writer in (SyncWriter(dsn), AsyncpgWriter(dsn)):
        with pytest.raises(OutboxTableError, match="of another type"):
            writer.write(records("k", value=b"bytes"))
        with pytest.raises(OutboxTableError, match="harvest init"):
            writer.write(records("k"), table="missing")


def test_a_connection_of_another_kind_is_refused(dsn):
    lite = sqlalchemy.create_engine("sqlite://")
    old = sqlalchemy.create_engine("postgresql+psycopg2://", creator=lambda: psycopg2.connect(dsn))
    with (
        lite.connect() as connection,
        pytest.raises(TypeError, match=r"append takes a psycopg connection.* over sqlite3"),
    ):
        append(connection, records("k"))
    with old.connect() as connection, pytest.raises(TypeError, match=r"over psycopg2: .*postgresql\+psycopg://"):
        append(connection, records("k"))
    with psycopg2.connect(dsn) as connection, pytest.raises(TypeError, match=r"install psycopg \(version 3\)"):
        append(connection, records("k"))
    for other in (object(), lite, None):
        with pytest.raises(TypeError, match="psycopg"):
            append(other, records("k"))
        with pytest.raises(TypeError, match="asyncpg"):
            asyncio.run(append_async(other, records("k")))
    with psycopg.connect(dsn) as connection, pytest.raises(TypeError, match="use append"):
        asyncio.run(append_async(connection, records("k")))
    lite.dispose()
    old.dispose()


def test_django_over_another_database_is_refused(dsn):
    with django_connected(dsn) as connection:
        connections.settings["default"]["ENGINE"] = "django.db.backends.sqlite3"
        connections.settings["default"]["NAME"] = ":memory:"
        with pytest.raises(TypeError, match="connection to sqlite"):
            append(connection, records("k"))


FAILS = """
CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'not now' USING ERRCODE = current_setting('test.state'); END $$;
CREATE TRIGGER fails BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION fails();
"""


def as_raised(error, state):
    """Return True if it is what a statement of the caller's raises for this state, whatever the connection is."""
    cause = psycopg.errors.lookup(state)
    match error:
        case sqlalchemy.exc.DBAPIError():
            by_asyncpg = not isinstance(error.orig, psycopg.Error)
            return error.orig.sqlstate == state if by_asyncpg else isinstance(error.orig, cause)
        case django.db.OperationalError():
            return isinstance(error.__cause__, cause)
        case asyncpg.PostgresError():
            return error.sqlstate == state
    return isinstance(error, cause)


RETRIED = {"serialization": "40001", "deadlock": "40P01", "lock_timeout": "55P03", "statement_timeout": "57014"}


@pytest.mark.parametrize("state", RETRIED.values(), ids=RETRIED)
def test_what_the_caller_may_retry_is_raised_as_for_a_statement_of_its_own(table, dsn, writer, state):
    table.connection.execute(FAILS)
    name = table.connection.info.dbname
    table.connection.execute(sql.SQL("ALTER DATABASE {} SET test.state = {}").format(sql.Identifier(name), state))
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which it is, is the question
        writer.write(records("k"), limits=RecordLimits())
    assert as_raised(caught.value, state), repr(caught.value)
    assert "dataSource" not in str(caught.value)


def test_a_connection_that_is_lost_is_given_up_as_after_a_statement_of_the_callers(table, dsn):
    pid = "SELECT pg_backend_pid()"
    engine = make_engine(dsn)
    with engine.connect() as connection:
        table.connection.execute("SELECT pg_terminate_backend(%s)", (connection.exec_driver_sql(pid).scalar(),))
        with pytest.raises(sqlalchemy.exc.OperationalError) as lost:
            append(connection, records("k"))
        assert lost.value.connection_invalidated
        assert connection.invalidated
        connection.rollback()
        append(connection, records("sqlalchemy"))
        connection.commit()
    engine.dispose()
    with django_connected(dsn) as connection:
        with pytest.raises(django.db.OperationalError), transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(pid)
                table.connection.execute("SELECT pg_terminate_backend(%s)", cursor.fetchone())
            append(connection, records("k"))
        with transaction.atomic():
            append(connection, records("django"))
    with psycopg.connect(dsn) as connection:
        table.connection.execute("SELECT pg_terminate_backend(%s)", connection.execute(pid).fetchone())
        with pytest.raises(psycopg.OperationalError):
            append(connection, records("k"))
    connection.close()
    with pytest.raises(psycopg.OperationalError, match="closed"):
        append(connection, records("k"))
    assert table.rows() == ["sqlalchemy", "django"]


def test_django_knows_that_its_block_is_broken(table, dsn):
    table.connection.execute("ALTER TABLE outbox ADD CHECK (kafka_key <> 'bad')")
    with (
        django_connected(dsn) as connection,
        pytest.raises(transaction.TransactionManagementError),
        transaction.atomic(),
    ):
        with pytest.raises(django.db.IntegrityError), transaction.atomic():  # a savepoint
            append(connection, records("bad"))
        append(connection, records("good"))
        with pytest.raises(django.db.IntegrityError), transaction.atomic(savepoint=False):
            append(connection, records("bad"))
        append(connection, records("never"))
    assert table.rows() == []


def test_a_refusal_names_the_grant_and_no_setting_of_the_harvester(table, dsn, unique):
    role = unique("writer")
    table.connection.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(role)))
    for allowed, said in ((False, "may not write to outbox"), (True, "a policy of outbox")):
        if allowed:
            outbox = OutboxTable.parse("outbox")
            mode = ReadingMode.of("mark", "barrier", stops=True)
            grants = Grants(outbox=outbox, mode=mode, harvester="", reader="", writers={role: ["carts"]})
            table.connection.execute(grants.script())
        with psycopg.connect(dsn) as connection:
            connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
            with pytest.raises(DatabaseAccessDenied, match=said) as caught:
                append(connection, records("k"))
            assert isinstance(caught.value.__cause__, psycopg.errors.InsufficientPrivilege)
        assert "harvest grants postgres" in caught.value.next_step
        assert not {"dataSource", "password"} & set(str(caught.value).replace("`", " ").split())
    table.connection.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(role)))


def test_a_streaming_connection_of_sqlalchemy_appends_too(table, dsn):
    engine = make_engine(dsn).execution_options(stream_results=True)
    with engine.begin() as connection:
        append(connection, records("k"))
    engine.dispose()
    assert table.rows() == ["k"]
