"""The statements of `harvest grants postgres`, run where a role owns the outbox, or is not there."""

import secrets

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from typer.testing import CliRunner

from harvest_lib import OutboxRecord, append
from harvest_lib.audit.results import prepare
from harvest_lib.cli import app
from harvest_lib.config import HarvestConfig
from harvest_lib.config.choices import ReadingMode
from harvest_lib.errors import CheckpointError, DatabaseAccessDenied
from harvest_lib.grants import Grants
from harvest_lib.harvester.assembly.other_readers import refuse_readers
from harvest_lib.outbox import NativeTable, OutboxTable, create_beside
from harvest_lib.outbox.parking import ParkedRecords

pytestmark = pytest.mark.gate

OUTBOX = OutboxTable.parse("outbox")


@pytest.fixture
def admin(owner):
    return owner


@pytest.fixture
def outbox(admin):
    NativeTable(outbox=OUTBOX).create(admin)
    ParkedRecords(OUTBOX).create(admin)
    return admin


def run(connection, **grants):
    """Run the script of some roles, and return what the server said."""
    said = []
    connection.add_notice_handler(lambda notice: said.append((notice.severity_nonlocalized, notice.message_primary)))
    connection.execute(Grants(outbox=OUTBOX, mode=ReadingMode.of("mark", "barrier"), **grants).script().encode())
    return said


def may(connection, role, privilege, table="outbox"):
    return connection.execute("SELECT has_table_privilege(%s, %s, %s)", (role, table, privilege)).fetchone()[0]


def give(connection, table, role):
    connection.execute(sql.SQL("ALTER TABLE {} OWNER TO {}").format(sql.Identifier(table), sql.Identifier(role)))


@pytest.mark.parametrize("part", ["writer", "harvester", "reader"])
@pytest.mark.parametrize("by", ["itself", "membership"])
def test_nothing_is_taken_from_an_owner(outbox, role, by, part):
    owner = role()
    named = owner if by == "itself" else role()
    if by == "membership":
        outbox.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(owner), sql.Identifier(named)))
    give(outbox, "outbox", owner)
    roles = {"harvester": "", "reader": "", "writers": {}}
    roles[f"{part}s" if part == "writer" else part] = {named: None} if part == "writer" else named
    said = run(outbox, **roles)
    for privilege in ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE"):
        assert may(outbox, named, privilege), privilege
    assert ("NOTICE", f'"{named}" owns "outbox": nothing was taken from it') in said
    assert not may(outbox, named, "TRUNCATE", "outbox_parked"), "of another's table it gets no more than it needs"


def test_from_who_does_not_own_it_everything_else_is_taken(outbox, role):
    writer = role()
    outbox.execute(sql.SQL("GRANT ALL ON outbox TO {}").format(sql.Identifier(writer)))
    run(outbox, harvester="", reader="", writers={writer: None})
    assert not may(outbox, writer, "DELETE")
    assert not may(outbox, writer, "INSERT"), "of all columns"
    statement = "SELECT has_column_privilege(%s, 'outbox', 'kafka_topic', 'INSERT')"
    assert outbox.execute(statement, (writer,)).fetchone() == (True,)


def test_a_role_that_is_not_there_costs_only_its_own_part(outbox, role):
    harvester, writer = role(), role(name='50% "%I"; --\nshop')
    said = run(outbox, harvester=harvester, reader="nobody here", writers={"no % such": ["t"], writer: ["orders"]})
    missing = [message for severity, message in said if severity == "WARNING"]
    assert missing == [
        'the role "no % such" does not exist: nothing was granted to it',
        'the role "nobody here" does not exist: nothing was granted to it',
    ]
    assert may(outbox, harvester, "DELETE")
    outbox.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(writer)))
    append(outbox, [OutboxRecord(topic="orders", key="k", value="v")])
    outbox.execute("RESET ROLE")


def test_an_owner_whose_topics_are_limited_is_warned_of(outbox, role):
    owner = role()
    give(outbox, "outbox", owner)
    said = run(outbox, harvester="", reader="", writers={owner: ["orders"]})
    assert ("WARNING", f'"{owner}" owns "outbox": no rule by topic holds it back') in said


def test_where_the_table_is_looked_at_a_role_that_is_not_there_is_said_at_once(outbox, dsn):
    environment = {"HARVEST_DSN": dsn, "HARVEST_LEADER_GROUP_ID": "g"}
    arguments = ["grants", "postgres", "--writer", "nobody here", "--harvester", "", "--reader", ""]
    result = CliRunner().invoke(app, arguments, env=environment)
    assert result.exit_code == 0
    assert "the role 'nobody here' does not exist" in result.stderr
    assert "does not exist: nothing" in result.stdout
    assert "nobody here' does not exist" not in result.stdout


ODD = """we"ird 'Role' \\ é"""
"""A role that shows what quotes a name by hand."""


@pytest.fixture
def as_operator(dsn, admin, role, monkeypatch):
    """Run commands as a role with exactly what is printed for an operator; return what they print."""
    name = role("LOGIN PASSWORD 'granted'", name=f"{ODD} {secrets.token_hex(4)}")
    monkeypatch.setenv("HARVEST_LEADER_GROUP_ID", "g")
    monkeypatch.setenv("HARVEST_BOOTSTRAP_SERVERS", "127.0.0.1:1")

    def run_as(*command):
        monkeypatch.setenv("HARVEST_DSN", dsn)
        granted = ["grants", "postgres", "--operator", name, "--harvester", "", "--reader", "", "--writer", name + "-"]
        script = CliRunner().invoke(app, granted)
        assert script.exit_code == 0, script.output
        admin.execute(script.stdout.encode())
        monkeypatch.setenv("HARVEST_DSN", make_conninfo(dsn, user=name, password="granted"))
        done = CliRunner().invoke(app, list(command))
        assert done.exit_code == 0, (command, done.output, done.exception)
        return done.output

    return run_as


def test_an_operator_has_what_commands_on_subscriptions_need(admin, as_operator):
    NativeTable(outbox=OUTBOX).create(admin)
    create_beside(admin, OUTBOX)
    as_operator("subscriptions", "add", "eu")
    append(admin, [OutboxRecord(topic="t", key="k", value="v") for _ in range(3)])
    admin.execute(
        "INSERT INTO outbox_parked_ids (subscription, shard, id, kafka_topic, kafka_key, reason, held, transaction_id)"
        " SELECT 'eu', 0, id, kafka_topic, kafka_key, 'missing', false, transaction_id FROM outbox"
    )
    of_it = ("--subscription", "eu")
    assert "missing" in as_operator("park", "list", *of_it)
    as_operator("park", "show", "1", *of_it)
    as_operator("park", "retry", "1", *of_it)
    as_operator("park", "drop", "2", *of_it, "--yes")
    as_operator("subscriptions", "rewind", "eu", "--to", "beginning")
    as_operator("subscriptions", "list")
    as_operator("subscriptions", "reshard", "eu", "--shards", "2")
    as_operator("subscriptions", "remove", "eu", "--yes")
    as_operator("status")


def test_an_operator_has_what_parked_rows_need(admin, as_operator):
    OUTBOX.create(admin)
    ParkedRecords(OUTBOX).create(admin)
    append(admin, [OutboxRecord(topic="t", key=f"k{number}", value="v") for number in range(3)])
    admin.execute(
        "INSERT INTO outbox_parked (id, kafka_topic, kafka_key, reason, held, record)"
        " SELECT id, kafka_topic, kafka_key, 'missing', false, to_jsonb(o) FROM outbox AS o"
    )
    admin.execute("DELETE FROM outbox")
    as_operator("park", "show", "1")
    as_operator("park", "retry", "1")
    as_operator("park", "drop", "2", "--yes")
    assert "missing" in as_operator("park", "list")
    assert admin.execute("SELECT array_agg(id) FROM outbox").fetchone() == ([1],)


def test_a_grant_that_an_error_names_works_for_any_role(admin, role, dsn):
    """For a schema and a table; the next look then asks for nothing more."""
    name = role("LOGIN PASSWORD 'granted'", name=f"{ODD} {secrets.token_hex(4)}")
    admin.execute('CREATE SCHEMA "My App"')
    try:
        outbox = OutboxTable(("My App", "outbox"))
        outbox.create(admin)
        admin.execute(sql.SQL('ALTER ROLE {} SET search_path = "My App"').format(sql.Identifier(name)))
        with psycopg.connect(make_conninfo(dsn, user=name, password="granted"), autocommit=True) as connection:
            for look in (lambda: OUTBOX.refuse_hidden(connection), lambda: outbox.check(connection)):
                with pytest.raises(DatabaseAccessDenied) as caught:
                    look()
                assert caught.value.next_step.startswith("GRANT ")
                admin.execute(caught.value.next_step.encode())
                look()
    finally:
        admin.execute('DROP SCHEMA "My App" CASCADE')


@pytest.fixture
def owned(admin):
    """Tables that a role makes are gone before the role is."""
    yield
    admin.execute("DROP SCHEMA IF EXISTS harvest_audit CASCADE")


@pytest.mark.usefixtures("owned")
def test_the_rights_to_make_the_tables_of_audits_are_named(admin, role, dsn):
    name = role("LOGIN PASSWORD 'granted'", name=f"{ODD} {secrets.token_hex(4)}")
    with psycopg.connect(make_conninfo(dsn, user=name, password="granted"), autocommit=True) as connection:
        granted(admin, lambda: prepare(connection), "GRANT CREATE ON DATABASE ")
        prepare(connection)


def granted(admin, work, grant):
    """Work fails, and names a grant; it succeeds once that was run."""
    with pytest.raises(DatabaseAccessDenied) as caught:
        work()
    statements = caught.value.next_step.removeprefix("as the owner: ")
    assert statements.startswith(grant)
    admin.execute(statements.encode())
    work()


@pytest.mark.parametrize("is_secured", [False, True])
def test_who_marks_sees_the_readers_of_a_native_table(admin, role, dsn, is_secured):
    """It would delete what they have not read; a role that may not look does not begin."""
    marker = role("LOGIN PASSWORD 'granted'")
    NativeTable(outbox=OUTBOX).create(admin)
    create_beside(admin, OUTBOX)
    ParkedRecords(OUTBOX).create(admin)
    if is_secured:
        admin.execute("ALTER TABLE outbox_subscriptions ENABLE ROW LEVEL SECURITY")
    run(admin, harvester=marker, reader="", writers={})
    admin.execute(
        "INSERT INTO outbox_subscriptions (subscription, shard, shards, source, epoch, leader_id) "
        "VALUES ('search', 0, 1, 'snapshot', 1, gen_random_uuid())"
    )
    config = HarvestConfig(leadership="solo", source="mark", data_source=dsn)
    with psycopg.connect(make_conninfo(dsn, user=marker, password="granted"), autocommit=True) as connection:
        with pytest.raises(CheckpointError, match="would delete records that they have not read"):
            refuse_readers(connection, config, OUTBOX)
        admin.execute(sql.SQL("REVOKE SELECT ON outbox_subscriptions FROM {}").format(sql.Identifier(marker)))
        with pytest.raises(DatabaseAccessDenied, match="GRANT SELECT ON"):
            refuse_readers(connection, config, OUTBOX)
