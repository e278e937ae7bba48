"""The rights of a role that writes by Spark: the printed rights are enough for each way, and each right is needed."""

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from support.outbox_format import write
from typer.testing import CliRunner

from harvest_lib.cli import app
from harvest_lib.errors import DatabaseAccessDenied, OutboxTableError
from harvest_lib.outbox.spark_tables import STAGING_SCHEMA
from harvest_lib.spark import errors
from harvest_lib.spark.data_source import register
from harvest_lib.spark.outbox_sink import Records, sink

pytestmark = [pytest.mark.full, pytest.mark.spark]

RECORDS = Records(topic="orders", key="customer", value="n")


@pytest.fixture
def frame(spark):
    register(spark)
    return spark.range(10).selectExpr("concat('c', id) AS customer", "id AS n")


@pytest.fixture
def command(monkeypatch, dsn):
    def run(*words):
        monkeypatch.setenv("HARVEST_DSN", dsn)
        done = CliRunner().invoke(app, list(words))
        assert done.exit_code == 0, (words, done.output, done.exception)
        return done.stdout

    return run


@pytest.fixture
def owner(dsn, command):
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        connection.execute("CREATE TABLE orders (id bigserial, customer text, n bigint)")
        command("init", "--spark", "--spark-table", "orders")
        yield connection


@pytest.fixture
def writers(dsn, owner, role, command):
    """Connection strings of two roles with exactly the printed rights."""
    names = [role("LOGIN PASSWORD 'granted'") for _ in range(2)]
    roles = [part for name in names for part in ("--spark-writer", name)]
    owner.execute(command("grants", "postgres", "--reader", "", "--spark-table", "orders", *roles))
    return [make_conninfo(dsn, user=name, password="granted") for name in names]


def ways(frame, dsn, batch):
    """Write the frame by each way there is, into the business table too."""
    write(frame, dsn, f"{batch} a")
    write(frame, dsn, f"{batch} b", table="orders", headers='{"number": "id"}')
    sink(frame, dsn=dsn, batch_id=f"{batch} c", records=RECORDS)
    sink(frame, dsn=dsn, batch_id=f"{batch} d", records=RECORDS, table="orders")
    sink(frame, dsn=dsn, batch_id=f"{batch} e", records=RECORDS, through="driver")


def test_what_is_printed_is_enough_for_every_way_and_several_roles(owner, frame, writers):
    for number, dsn in enumerate([*writers, *writers]):
        ways(frame, dsn, f"batch {number}")
    count = "SELECT (SELECT count(*) FROM outbox), (SELECT count(*) FROM orders), (SELECT count(*) FROM outbox_batches)"
    assert owner.execute(count).fetchone() == (200, 80, 12)
    staged = "SELECT nspname, count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace "
    staged += "WHERE relname LIKE '%%staging%%' AND relkind = 'r' GROUP BY 1"
    assert owner.execute(staged).fetchall() == [(STAGING_SCHEMA, 8)]


@pytest.mark.parametrize(
    "taken",
    [
        "CREATE ON SCHEMA harvest_spark",
        "USAGE ON SCHEMA harvest_spark",
        "INSERT ON outbox_batches",
        "SELECT ON outbox_batches",
        "INSERT ON orders_batches",
        "INSERT ON orders",
        "USAGE ON SEQUENCE orders_id_seq",
        "INSERT (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values) ON outbox",
    ],
)
def test_each_right_is_needed_and_the_error_names_the_command(owner, frame, writers, taken):
    user = psycopg.conninfo.conninfo_to_dict(writers[0])["user"]
    owner.execute(f'REVOKE {taken} FROM "{user}"')
    with pytest.raises(Exception, match="grants postgres --spark-writer") as caught:
        ways(frame, writers[0], "b")
    assert isinstance(errors.of(caught.value), DatabaseAccessDenied)


def test_a_name_without_room_for_its_ledger_is_refused_before_postgres_cuts_it_off(owner, dsn, monkeypatch):
    monkeypatch.setenv("HARVEST_DSN", dsn)
    done = CliRunner().invoke(app, ["init", "--spark", "--spark-table", "o" * 56])
    assert isinstance(done.exception, OutboxTableError)
    assert "too long for the name of the table of Spark's batches" in str(done.exception)
    assert owner.execute("SELECT count(*) FROM pg_class WHERE relname LIKE 'ooo%'").fetchone() == (0,)


def test_a_role_without_them_learns_which_commands_the_owner_types(owner, dsn, role, frame, command):
    owner.execute(f"DROP SCHEMA {STAGING_SCHEMA}; DROP TABLE outbox_batches")
    name = role("LOGIN PASSWORD 'granted'")
    with pytest.raises(Exception, match="harvest init --spark"):
        write(frame, make_conninfo(dsn, user=name, password="granted"))
