"""Tables beside the outbox whose columns are not those of their definition."""

import psycopg
import pytest
from support.native import Native
from support.outbox import harvest_config

from harvest_lib.errors import OutboxTableError
from harvest_lib.harvester import preflight
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.outbox import OutboxTable, create_beside
from harvest_lib.outbox.parking import ParkedRecords
from harvest_lib.outbox.relocation import Migration

pytestmark = pytest.mark.gate

OUTBOX = OutboxTable.parse("outbox")
LEADER = 'ALTER TABLE "public"."outbox_subscriptions" ADD COLUMN leader JSONB'
TRANSACTION_ID = 'ALTER TABLE "public"."outbox_parked_ids" ADD COLUMN transaction_id XID8 NOT NULL'
ENTRY = """
INSERT INTO outbox_parked_ids (subscription, shard, id, kafka_topic, kafka_key, reason, held)
VALUES ('default', 0, 1, 'orders', 'a', 'because', false)
"""


@pytest.fixture
def connection(dsn):
    native = Native(dsn)
    yield native.connection
    native.connection.close()


def statement_of(error):
    return error.next_step.split("as the owner: ")[1].split("; then")[0]


@pytest.mark.parametrize(
    ("table", "column", "statement"),
    [("outbox_subscriptions", "leader", LEADER), ("outbox_parked_ids", "transaction_id", TRANSACTION_ID)],
)
def test_a_missing_column_is_named_everywhere_with_the_statement_that_adds_it(
    connection, harvest, reaper, dsn, bootstrap_servers, group_id, table, column, statement
):
    connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    config = harvest_config(dsn, bootstrap_servers, group_id, leadership="solo")
    for command in ("init", "migrate", "run", "check"):
        refused = harvest(command, "-f", reaper)
        assert refused.returncode != 0
        said = " ".join((refused.stdout + refused.stderr).split())
        assert f"{column} is missing" in said
    with pytest.raises(OutboxTableError) as error:
        Harvest(config).drain(60)
    assert statement in error.value.next_step
    assert any(statement in each.next_step for each in preflight.inspect(config).errors)
    connection.execute(statement_of(error.value))
    assert harvest("init", "-f", reaper).returncode == 0
    assert Harvest(config).drain(60).records == 0


def test_a_table_of_a_former_name_is_refused_with_the_statement_that_renames_it(
    connection, harvest, reaper, dsn, bootstrap_servers, group_id
):
    connection.execute(ENTRY.replace("held)", "held, transaction_id)").replace("false)", "false, '7')"))
    connection.execute("ALTER TABLE outbox_parked_ids RENAME TO outbox_set_aside")
    config = harvest_config(dsn, bootstrap_servers, group_id, leadership="solo")
    for command in ("init", "migrate", "run", "check"):
        refused = harvest(command, "-f", reaper)
        assert refused.returncode != 0
        assert "has its former name" in " ".join((refused.stdout + refused.stderr).split())
    with pytest.raises(OutboxTableError, match="this table does not exist") as error:
        Harvest(config).drain(60)
    connection.execute(statement_of(error.value))
    assert harvest("init", "-f", reaper).returncode == 0
    assert connection.execute("SELECT id FROM outbox_parked_ids").fetchall() == [(1,)]


def test_columns_of_former_names_are_refused_with_the_statements_that_rename_them(connection):
    connection.execute("ALTER TABLE outbox_subscriptions RENAME COLUMN low_watermark TO seen")
    connection.execute("ALTER TABLE outbox_subscriptions RENAME COLUMN retention_hold TO holds")
    connection.execute("ALTER TABLE outbox_subscriptions DROP COLUMN leader")
    connection.execute(
        "INSERT INTO outbox_subscriptions (subscription, shard, shards, source, seen, holds) "
        "VALUES ('s', 0, 1, 'snapshot', '7:7:', 5)"
    )
    with pytest.raises(OutboxTableError, match="retention_hold has its former name holds; leader is missing") as error:
        create_beside(connection, OUTBOX)
    connection.execute(statement_of(error.value))
    assert create_beside(connection, OUTBOX) is False
    kept = connection.execute("SELECT low_watermark::text, retention_hold FROM outbox_subscriptions").fetchall()
    assert kept == [("7:7:", 5)]


def test_a_table_of_goharvests_layout_is_not_migrated_before_the_tables_beside_it_are_right(dsn):
    with psycopg.connect(dsn, autocommit=True) as connection:
        OUTBOX.create(connection)
        create_beside(connection, OUTBOX)
        connection.execute("ALTER TABLE outbox_subscriptions DROP COLUMN leader")
        with pytest.raises(OutboxTableError, match="leader is missing"):
            Migration(outbox=OUTBOX).run(connection)
        assert OUTBOX.kind(connection) == "goharvest"


def test_entries_that_do_not_say_which_row_they_are_of_are_refused(connection):
    connection.execute("ALTER TABLE outbox_parked_ids ALTER COLUMN transaction_id DROP NOT NULL")
    connection.execute(ENTRY)
    with pytest.raises(OutboxTableError, match="transaction_id allows nulls") as error:
        create_beside(connection, OUTBOX)
    statement = statement_of(error.value)
    with pytest.raises(psycopg.errors.NotNullViolation):
        connection.execute(statement)
    connection.execute("DELETE FROM outbox_parked_ids")
    connection.execute(statement)
    assert create_beside(connection, OUTBOX) is False


def test_a_table_of_parked_records_that_lacks_columns(connection):
    parked = ParkedRecords(OUTBOX)
    parked.create(connection)
    connection.execute("ALTER TABLE outbox_parked DROP COLUMN reason, ALTER COLUMN record DROP NOT NULL")
    with pytest.raises(OutboxTableError, match="reason is missing; record allows nulls") as error:
        parked.check(connection)
    connection.execute(statement_of(error.value))
    parked.check(connection)
