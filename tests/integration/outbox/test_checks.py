"""CHECK constraints: a writer is refused what Kafka rejects permanently, and nobody fails over rows that are there."""

import psycopg
import pytest
from psycopg import sql
from support.native import Native
from support.outbox import harvest_config
from typer.testing import CliRunner

from harvest_lib.cli import app
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.outbox import NativeTable, OutboxTable, add_checks
from harvest_lib.outbox.parking import ParkedRecords, ParkedSelection
from harvest_lib.outbox.segments import ensure_segments

pytestmark = pytest.mark.gate

OUTBOX = OutboxTable.parse("outbox")
INSERT = """
INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
VALUES (now(), %s, 'k', 'v', %s::text[], %s::text[])
"""

BAD = {
    "empty topic": ("", "{}", "{}"),
    "a dot": (".", "{}", "{}"),
    "two dots": ("..", "{}", "{}"),
    "illegal topic": ("no/such", "{}", "{}"),
    "a line break": ("orders\n", "{}", "{}"),
    "unequal headers": ("orders", "{a,b}", "{1}"),
    "names alone": ("orders", "{a}", "{}"),
    "a header without a name": ("orders", "{NULL}", "{1}"),
    "an array of names": ("orders", "{{a,b}}", "{1,2}"),
    "an array of values": ("orders", "{a,b}", "{{1,2}}"),
}
GOOD = [("orders", "{}", "{}"), ("a" * 249, "{a,a}", "{1,NULL}"), ("A.b_c-9", '{""}', '{""}')]


@pytest.fixture
def connection(dsn):
    with psycopg.connect(dsn, autocommit=True) as opened:
        yield opened


@pytest.fixture
def init(dsn):
    def run(*arguments, user=None):
        conninfo = dsn if user is None else psycopg.conninfo.make_conninfo(dsn, user=user, password="p")
        environment = {"HARVEST_DSN": conninfo, "HARVEST_LEADER_GROUP_ID": "g"}
        result = CliRunner().invoke(app, ["init", *arguments], env=environment)
        assert result.exit_code == 0, result.output + str(result.exception)
        return result

    return run


def validated(connection):
    return connection.execute(
        "SELECT bool_and(convalidated), count(*) FROM pg_constraint WHERE contype = 'c' AND conname LIKE 'harvest_%'"
    ).fetchone()


@pytest.mark.parametrize("layout", [[], ["--goharvest", "--checks"]], ids=["native", "goharvest"])
def test_a_writer_is_refused_what_kafka_can_never_take(connection, init, layout):
    init(*layout)
    for name, values in BAD.items():
        with pytest.raises(psycopg.errors.CheckViolation):
            connection.execute(INSERT, values)
            pytest.fail(f"{name} was taken")
    for values in GOOD:
        connection.execute(INSERT, values)


def test_what_is_printed_has_them_too(connection, dsn):
    for arguments in ([], ["--goharvest", "--checks"]):
        printed = CliRunner().invoke(app, ["init", "--print", "--table", "outbox", *arguments]).stdout
        connection.execute(printed.encode())
        assert validated(connection)[0] is True
        connection.execute("DROP TABLE outbox CASCADE")


@pytest.mark.parametrize("options", [["--goharvest"], ["--no-checks"]])
def test_there_are_none_where_nobody_asked_for_them(connection, init, options):
    init(*options)
    for values in BAD.values():
        connection.execute(INSERT, values)


def test_a_table_in_use_gets_them_and_what_is_there_is_exempt(connection, init, dsn, bootstrap_servers, group_id):
    """A mark updates each row, a reset too, and what was parked is put back: the constraints check rows again."""
    NativeTable(outbox=OUTBOX).create(connection)
    ParkedRecords(OUTBOX).create(connection)
    for values in BAD.values():
        connection.execute(INSERT, values)
    assert init().stdout.count("added, for new records") == 2
    assert validated(connection)[0] is True
    with pytest.raises(psycopg.errors.CheckViolation):
        connection.execute(INSERT, BAD["unequal headers"])
    connection.execute("UPDATE outbox SET leader_id = gen_random_uuid()")
    connection.execute("UPDATE outbox SET leader_id = NULL")
    config = harvest_config(dsn, bootstrap_servers, group_id, source="mark", delivery="barrier", leadership="solo")
    assert Harvest(config).drain(60).records == 0
    parked = ParkedRecords(OUTBOX)
    assert parked.counts(connection).parked + parked.counts(connection).held == len(BAD)
    parked.retry(connection, ParkedSelection())
    assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (len(BAD),)
    assert "added" not in init().stdout, "it may be run again"


def test_segments_are_cut_and_attached_with_them(dsn):
    """Also where the process that added them was killed before they were validated."""
    native = Native(dsn, size=10, ahead=1)
    native.connection.execute(INSERT, BAD["unequal headers"])
    native.push(25)  # into the tail
    native.connection.execute(INSERT, BAD["empty topic"])
    assert add_checks(native.connection, native.table)
    for name in ("harvest_topic_is_legal", "harvest_headers_are_pairs"):
        definition = native.connection.execute(
            "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = %s AND conrelid = 'outbox'::regclass",
            (name,),
        ).fetchone()[0]
        native.connection.execute(f"ALTER TABLE outbox DROP CONSTRAINT {name}")
        native.connection.execute(f"ALTER TABLE outbox ADD CONSTRAINT {name} {definition} NOT VALID")
    assert validated(native.connection)[0] is False
    assert ensure_segments(native.connection, native.table, ahead=2, size=10).cut_tail
    assert validated(native.connection)[0] is True
    with pytest.raises(psycopg.errors.CheckViolation):
        native.connection.execute(INSERT, BAD["a dot"])
    native.connection.execute(INSERT, GOOD[0])
    native.connection.close()


def test_who_does_not_own_the_table_is_told_who_may(connection, init, unique):
    init("--no-checks")
    role = unique("role")[:63]
    name = sql.Identifier(role)
    connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'p'").format(name))
    connection.execute(sql.SQL("GRANT ALL ON ALL TABLES IN SCHEMA public TO {}").format(name))
    try:
        assert "only the owner" in init(user=role).stderr
        assert validated(connection)[1] == 0
    finally:
        connection.execute(sql.SQL("DROP OWNED BY {}; DROP ROLE {}").format(name, name))
