"""Sequences that are too small for their column, or near their end: said in time, with a remedy that works."""

import psycopg
import pytest

from harvest_lib.config import HarvestConfig
from harvest_lib.harvester.housekeeping.table_warnings import warn_of_table
from harvest_lib.outbox import NativeTable, OutboxTable
from harvest_lib.outbox.id_sequences import IdSequences

pytestmark = pytest.mark.gate

SEQUENCE = "outbox_id_seq"
INTEGER = "ALTER TABLE outbox ALTER id TYPE integer; ALTER SEQUENCE outbox_id_seq AS integer; "


@pytest.fixture(params=["native", "goharvest"])
def table(dsn, request):
    outbox = OutboxTable.parse("outbox")
    with psycopg.connect(dsn, autocommit=True) as connection:
        if request.param == "native":
            NativeTable(outbox=outbox).create(connection)
        else:
            outbox.create(connection)
        yield connection


def test_a_table_of_ours_lasts(table):
    assert IdSequences("outbox").end(table) is None


@pytest.mark.parametrize(
    "change",
    [
        "ALTER SEQUENCE outbox_id_seq AS integer",
        "ALTER SEQUENCE outbox_id_seq MAXVALUE 1000000",
        "ALTER SEQUENCE outbox_id_seq AS smallint OWNED BY NONE",
    ],
)
def test_a_sequence_that_ends_before_its_column_is_named_with_what_ends_that(table, change):
    table.execute(change)
    end = IdSequences("outbox").end(table)
    assert "before its column does" in end.cause
    table.execute(end.next_step)
    assert IdSequences("outbox").end(table) is None


@pytest.mark.parametrize("called", [True, False])
def test_ids_near_their_end_are_named_whatever_the_type(dsn, caplog, called):
    with psycopg.connect(dsn, autocommit=True) as connection:
        outbox = OutboxTable.parse("outbox")
        outbox.create(connection)
        connection.execute(INTEGER)
        assert IdSequences("outbox").end(connection) is None
        connection.execute("SELECT setval('outbox_id_seq', 2000000000, %s)", (called,))
        end = IdSequences("outbox").end(connection)
        assert "near their end" in end.cause
        assert "2,000,000,000" in end.evidence
        warn_of_table(connection, HarvestConfig(leadership="solo", source="mark", data_source=dsn), outbox)
        (said,) = [record for record in caplog.records if record.msg == "ids_end"]
        assert "TYPE bigint" in said.next_step
        connection.execute(end.next_step.partition(" (writers")[0])
        assert IdSequences("outbox").end(connection) is None
        connection.execute("SELECT setval('outbox_id_seq', 9000000000000000000)")
        assert "near their end" in IdSequences("outbox").end(connection).cause


def test_without_the_right_to_read_the_sequence_the_table_tells(dsn, unique):
    role = unique("role")[:60]
    with psycopg.connect(dsn, autocommit=True) as connection:
        OutboxTable.parse("outbox").create(connection)
        connection.execute(INTEGER)
        connection.execute(
            "INSERT INTO outbox (id, create_time, kafka_topic, kafka_key, kafka_header_keys, kafka_header_values) "
            "VALUES (2000000000, now(), 't', 'k', '{}', '{}')"
        )
        connection.execute(f"CREATE ROLE {role}; GRANT SELECT ON outbox TO {role}; SET ROLE {role}")
        try:
            assert "near their end" in IdSequences("outbox").end(connection).cause
        finally:
            connection.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")
