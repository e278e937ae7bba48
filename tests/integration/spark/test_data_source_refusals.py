"""Refusals of `format("outbox")`: each a clear error with the next step, nothing promoted, nothing left."""

import pytest
from psycopg import sql
from support.outbox_format import FileStream, hundred_orders, target, write
from support.sink import ORDERS

from harvest_lib.errors import DatabaseAccessDenied
from harvest_lib.spark import errors
from harvest_lib.spark.data_source import OutboxDataSource, register
from harvest_lib.spark.errors import EmptyBatch

pytestmark = [pytest.mark.full, pytest.mark.spark]


@pytest.fixture
def frame(spark):
    register(spark)
    return hundred_orders(spark)


def left(database):
    tables = database.ask("SELECT relname FROM pg_class WHERE relname ~ '_(batches|staging_[0-9a-f]{8})$'")
    count = sql.SQL("SELECT count(*) FROM {}")
    return {
        table: found
        for (table,) in [("outbox",), *tables]
        if (found := database.ask(count.format(sql.Identifier(table)))[0][0])
    }


@pytest.mark.parametrize(
    ("change", "options", "says"),
    [
        (["nullif(customer, 'c3') AS customer"], {},
         r"in a part of partition \d, [34] rows have null in the key: customer"),
        (["repeat(customer, 60) AS customer"], {}, "the longest key has 120 characters, kafka_key takes 100"),
        (["customer", "encode(text, 'utf8') AS v"], {}, "(?s)'v' holds bytes.*decode it in the frame"),
        (["place"], {}, r"(?s)there is no column 'customer'.*field `key`.*name one of the frame: place"),
        (["customer"], {"orderBy": "at"}, r"(?s)there is no column 'at'.*field `orderBy`"),
        (["customer", "concat('a', char(0)) AS text"], {}, "rows have a NUL character in 'text'"),
        (["customer", "array(char(0)) AS texts"], {}, "rows have a NUL character in 'texts'"),
        (["customer", "CAST(raise_error('canary') AS STRING) AS text"], {}, "USER_RAISED_EXCEPTION|canary"),
        (["customer"], {"outbox": "events"}, r'(?s)"events" does not exist.*harvest init'),
        (["customer"], {"table": "events"}, r'(?s)the business table "events" does not exist.*field `table`'),
        (["customer", "uuid() AS id", "'dear' AS price"], {"table": "orders", "batchColumn": "batch"},
         r"(?s)'price' is text in the frame.*cast it"),
        (["customer"], {"table": "orders"}, "requires a column"),
        (["customer"], {"oderBy": "at"}, "(?s)no option 'oderby'.*write orderBy"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_told_and_nothing_is_promoted(database, frame, change, options, says):
    database.connection.execute(ORDERS)
    with pytest.raises(Exception, match=says):
        write(frame.selectExpr(*change), database.dsn, **options)
    assert not left(database)


def test_an_empty_frame_is_an_error_unless_it_may_be_empty(database, frame):
    with pytest.raises(Exception, match=r"(?s)batch b is empty.*allowEmpty") as caught:
        write(frame.where("false"), database.dsn)
    assert isinstance(errors.of(caught.value), EmptyBatch)
    write(frame.where("false"), database.dsn, allowEmpty="true")
    assert not left(database)


def test_an_outbox_is_only_appended_to(database, frame, tmp_path):
    writer = frame.write.format("outbox").options(**target(database.dsn, batchId="b"))
    with pytest.raises(Exception, match=r'(?s)only appended to.*mode\("append"\)'):
        writer.mode("overwrite").save()
    with pytest.raises(Exception, match="append"):
        writer.save()
    assert not left(database)


def test_a_query_without_a_name_writes_nothing(spark, database, frame, tmp_path):
    stream = FileStream(spark, database, tmp_path)
    stream.add(0)
    with pytest.raises(Exception, match=r'(?s)the stream has no name.*option\("stream", "orders"\)'):
        stream.run(stream=None)
    assert not left(database)
    stream.run()
    assert stream.numbers() == list(range(10))


def test_a_dry_run_shows_the_plan_and_makes_nothing(spark, database, frame, tmp_path, capsys):
    options = {"orderBy": "place", "dryRun": "true", "fixedHeaders": '{"kind": "placed"}'}
    write(frame, database.dsn, **options)
    # Spark passes on what its Python workers say: to where the driver wrote when it started.
    OutboxDataSource(target(database.dsn, batchId="b", **options)).writer(frame.schema, overwrite=False)
    plan = capsys.readouterr().out
    for line in (
        "write         batch b",
        'outbox        "outbox"',
        "order         place",
        "headers       kind: 'placed'",
    ):
        assert line in plan
    stream = FileStream(spark, database, tmp_path)
    stream.add(0)
    with pytest.raises(Exception, match=r"(?s)nothing was written.*write\s+stream orders.*topic\s+orders"):
        stream.run(dryRun="true")
    assert database.ask("SELECT count(*) FROM pg_class WHERE relname ~ '_(batches|staging)'") == [(0,)]
    stream.run()
    assert stream.numbers() == list(range(10))


def test_rights_that_are_taken_away_are_told_and_nothing_is_half_promoted(database, frame):
    write(frame, database.dsn, "a")
    database.connection.execute("""
        CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN RAISE insufficient_privilege USING MESSAGE = ''permission denied for table outbox_batches''; END';
        CREATE TRIGGER no BEFORE INSERT ON outbox_batches FOR EACH ROW EXECUTE FUNCTION no()""")
    with pytest.raises(Exception, match=r"(?s)Postgres refused promoting batch b.*permission denied.*grant") as caught:
        write(frame, database.dsn)
    denied = errors.of(caught.value)
    assert isinstance(denied, DatabaseAccessDenied)
    assert denied.cause == "Postgres refused promoting batch b"
    assert "permission denied" in denied.evidence
    assert "grant" in denied.next_step
    assert left(database) == {"outbox": 100, "outbox_batches": 1}


def test_the_password_is_in_no_error(spark, database, frame):
    options = target(database.dsn, batchId="b") | {"password": "canary"}
    options["dsn"] += " user=nobody"
    with pytest.raises(Exception, match="Postgres refused the connection") as caught:
        frame.write.format("outbox").options(**options).mode("append").save()
    assert "canary" not in str(caught.value)
