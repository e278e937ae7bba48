"""Columns whose type was altered: the check and a running harvester name column, types and the statement that mends it,
and that statement works: what was written before and after arrives as it was."""

import psycopg
import pytest
from psycopg import sql
from support.outbox import harvest_config, read_topic
from support.waiting import eventually

from harvest_lib.errors import OutboxTableError
from harvest_lib.harvester import preflight
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.outbox import NativeTable, OutboxTable

pytestmark = pytest.mark.gate(cases=6)

OUTBOX = OutboxTable.parse("outbox")
KEY, VALUE, NAMES, CONTENTS = "6f1c7b0a-93f5-4c5e-9f0e-3a1f2b4c5d6e", '{"a": 1}', ["n", "é"], ['x"[y]\n', "ü"]
NUMBER = "5"

ALTERS = {
    "jsonb": ("kafka_value", "jsonb", "kafka_value::jsonb"),
    "json": ("kafka_value", "json", "kafka_value::json"),
    "key of bytes": ("kafka_key", "bytea", "convert_to(kafka_key, 'UTF8')"),
    "key of UUID": ("kafka_key", "uuid", "kafka_key::uuid"),
    "key of a number": ("kafka_key", "integer", NUMBER),
    "topic": ("kafka_topic", "name", "kafka_topic::name"),
    "names by jsonb": ("kafka_header_keys", "jsonb", "to_jsonb(kafka_header_keys)"),
    "headers by json": ("kafka_header_values", "json", "to_json(kafka_header_values)"),
    "headers of varchar": ("kafka_header_values", "character varying[]", "kafka_header_values"),
    "headers of jsonb": ("kafka_header_values", "jsonb[]", "pg_temp.jsons(kafka_header_values)"),
    "headers of bytes": ("kafka_header_values", "bytea[]", "pg_temp.bytes(kafka_header_values)"),
    "time without zone": ("create_time", "timestamp without time zone", "create_time AT TIME ZONE 'UTC'"),
    "time as a number": ("create_time", "bigint", "extract(epoch FROM create_time)"),
    "leader": ("leader_id", "text", "leader_id::text"),
    "transaction": ("transaction_id", "bigint", "transaction_id::text::bigint"),
}
FUNCTIONS = """
CREATE FUNCTION pg_temp.jsons(text[]) RETURNS jsonb[] LANGUAGE sql
  RETURN ARRAY(SELECT to_jsonb(each) FROM unnest($1) AS each);
CREATE FUNCTION pg_temp.bytes(text[]) RETURNS bytea[] LANGUAGE sql
  RETURN ARRAY(SELECT convert_to(each, 'UTF8') FROM unnest($1) AS each)
"""


@pytest.fixture
def owner(dsn):
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(FUNCTIONS)
        yield connection


@pytest.fixture(params=["native", "goharvest"])
def kind(request, owner):
    (NativeTable(outbox=OUTBOX) if request.param == "native" else OUTBOX).create(owner)
    return request.param


@pytest.fixture
def config(dsn, bootstrap_servers, group_id):
    return harvest_config(dsn, bootstrap_servers, group_id)


def write(connection, topic):
    connection.execute(
        "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)"
        " VALUES (clock_timestamp(), %s, %s, %s, %s, %s)",
        (topic, KEY, VALUE, NAMES, CONTENTS),
    )


def altered(connection, kind, name):
    """Alter a column, as somebody does who has no harvester in mind; return its name and its type."""
    column, made, using = ALTERS[name]
    if name == "transaction" and kind == "goharvest":
        pytest.skip("that table has no such column")
    statement = f"ALTER TABLE outbox ALTER {column} DROP DEFAULT, ALTER {column} TYPE {made} USING {using}"
    connection.execute(statement)
    return column, made


def mend(connection, error):
    for statement in error.next_step.split(": ", 1)[1].split("; "):
        connection.execute(sql.SQL(statement))


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("name", ALTERS)
def test_the_check_names_what_mends_it(owner, kind, config, make_topic, bootstrap_servers, name):
    topic = make_topic()
    write(owner, topic)
    column, made = altered(owner, kind, name)
    (said,) = [each for each in preflight.inspect(config, []).errors if "not an outbox table" in each.cause]
    assert f"{column} is {made}, not " in said.evidence
    with pytest.raises(OutboxTableError) as refused:
        Harvest(config).start()
    assert refused.value.next_step == said.next_step
    mend(owner, refused.value)
    Harvest(config).drain(60)
    (record,) = read_topic(bootstrap_servers, topic)
    assert record.key == (NUMBER if name == "key of a number" else KEY)
    assert record.value == VALUE
    assert list(record.headers) == [(name, text.encode()) for name, text in zip(NAMES, CONTENTS, strict=True)]


RUNNING = ["jsonb", "key of bytes", "key of a number", "names by jsonb", "headers of jsonb", "transaction"]


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("name", RUNNING)
def test_a_harvester_that_runs_names_it(owner, kind, config, make_topic, name):
    topic = make_topic()
    harvest = Harvest(config)
    harvest.start()
    try:
        write(owner, topic)
        eventually(lambda: harvest.delivered_records == 1, "the first is delivered")
        for _ in range(6):  # by then statements are prepared
            write(owner, topic)
        eventually(lambda: harvest.delivered_records == 7, "the others are delivered")
        column, made = altered(owner, kind, name)
        with pytest.raises(OutboxTableError) as ended:
            assert harvest.await_stopped(60)
    finally:
        harvest.stop()
    assert f"{column} is {made}, not " in ended.value.evidence
    mend(owner, ended.value)
    assert preflight.inspect(config, []).errors == []


def test_defaults_of_another_type_are_those_of_the_table_again(owner):
    NativeTable(outbox=OUTBOX).create(owner)
    owner.execute(
        "ALTER TABLE outbox ALTER kafka_header_keys DROP DEFAULT,"
        " ALTER kafka_header_keys TYPE jsonb USING to_jsonb(kafka_header_keys),"
        " ALTER kafka_header_keys SET DEFAULT '[]'"
    )
    with pytest.raises(OutboxTableError) as refused:
        OUTBOX.check_columns(owner)
    mend(owner, refused.value)
    owner.execute("INSERT INTO outbox (kafka_topic, kafka_key) VALUES ('t', 'k')")
    assert owner.execute("SELECT kafka_header_keys FROM outbox").fetchone() == ([],)


def test_a_type_that_no_statement_turns_is_only_named(owner):
    OUTBOX.create(owner)
    owner.execute("ALTER TABLE outbox DROP create_time, ADD create_time interval")
    with pytest.raises(OutboxTableError, match="create_time is interval") as refused:
        OUTBOX.check_columns(owner)
    assert "ALTER" not in refused.value.next_step


def test_a_transaction_of_ones_own_makes_no_native_table(owner):
    """A bank's table may have a column of that name, of another meaning."""
    OUTBOX.create(owner)
    owner.execute("ALTER TABLE outbox ADD transaction_id bigint")
    assert OUTBOX.check_columns(owner) == "goharvest"
