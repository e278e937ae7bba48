"""The rights of a harvester's role in Dagster: what is printed is enough, and each of it is needed."""

import re
import shlex
import threading
from dataclasses import fields
from datetime import UTC, datetime

import psycopg
import pytest
from dagster import DagsterInstance
from psycopg import sql
from psycopg.conninfo import make_conninfo
from support.waiting import eventually
from typer.testing import CliRunner

from dagster_harvest.audit_results import AuditSummary, details, last_summary
from dagster_harvest.daemon import LEAVING_TAG, daemon_job
from dagster_harvest.heartbeat import HeartbeatPlace, HeartbeatTable
from dagster_harvest.resources import HarvesterResource
from dagster_harvest.settings import DaemonSettings, OutboxSettings
from harvest_lib import OutboxRecord, append
from harvest_lib.audit.results import prepare, promote
from harvest_lib.cli import app
from harvest_lib.errors import DatabaseAccessDenied
from harvest_lib.grants import dagster
from harvest_lib.outbox import OutboxTable

pytestmark = pytest.mark.gate

PLACE = HeartbeatPlace(name="shop", location="here")
TABLES = [f"harvest_audit.{each}" for each in dagster._AUDIT_TABLES]


@pytest.fixture
def name(role):
    return role("LOGIN PASSWORD 'granted'")


@pytest.fixture
def granted(dsn, name):
    """How the role connects."""
    return make_conninfo(dsn, user=name, password="granted")


@pytest.fixture
def command(monkeypatch, dsn, group_id, bootstrap_servers):
    """Run a command of ours, as the owner unless another connection is named; return what it prints."""
    monkeypatch.setenv("HARVEST_LEADER_GROUP_ID", group_id)
    monkeypatch.setenv("HARVEST_LEADERSHIP", "solo")
    monkeypatch.setenv("HARVEST_BOOTSTRAP_SERVERS", bootstrap_servers)

    def run(*words, by=dsn, table="outbox", code=0):
        monkeypatch.setenv("HARVEST_DSN", by)
        monkeypatch.setenv("HARVEST_OUTBOX_TABLE", table)
        done = CliRunner().invoke(app, list(words))
        assert done.exit_code == code, (words, done.output, done.exception)
        return done.stdout

    return run


@pytest.fixture
def _outbox(owner, command):
    """An outbox, the tables of Dagster's runs and of audits, all of the owner."""
    command("init", "--dagster")
    prepare(owner)
    yield
    owner.execute("DROP SCHEMA harvest_audit CASCADE")


def give(owner, command, name, table="outbox"):
    options = ("--harvester", name, "--reader", "", "--writer", f"{name}-", "--dagster")
    owner.execute(command("grants", "postgres", *options, table=table).encode())


def test_a_role_that_may_not_create_learns_who_may(owner, granted, command, monkeypatch):
    owner.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    monkeypatch.setenv("HARVEST_DSN", granted)
    done = CliRunner().invoke(app, ["init", "--dagster"])
    assert isinstance(done.exception, DatabaseAccessDenied)
    assert "run this as the owner of the schema (HARVEST_DSN names another user)" in done.exception.next_step


@pytest.mark.parametrize("schema", [None, "My App"])
def test_the_commands_that_the_error_names_are_enough(owner, command, name, granted, schema):
    owner.execute('REVOKE CREATE ON SCHEMA public FROM PUBLIC; CREATE SCHEMA "My App"')
    table = "outbox" if schema is None else f'"{schema}".outbox'
    try:
        with psycopg.connect(granted, autocommit=True) as connection:
            heartbeats = HeartbeatTable.beside(connection, OutboxTable.parse(table))
            with pytest.raises(DatabaseAccessDenied) as caught:
                heartbeats.create()
            init, grants = (shlex.split(each)[1:] for each in re.findall(r"`(harvest [^`]+)`", caught.value.next_step))
            command(*init, table=table)
            roles = ["--harvester", name, "--reader", "", "--writer", f"{name}-"]
            owner.execute(command(*grants, *roles, table=table).encode())
            heartbeats.create()
            assert heartbeats.claim(PLACE, run_id="1", generation=None, stale_after_seconds=9) == 1
            assert heartbeats.renew(PLACE, "1")
            assert heartbeats.read(PLACE).run_id == "1"
    finally:
        owner.execute('DROP SCHEMA "My App" CASCADE')


@pytest.mark.usefixtures("_outbox")
def test_a_run_harvests_by_the_printed_grants(owner, command, name, granted, make_topic, monkeypatch):
    give(owner, command, name)
    topic = make_topic()
    append(owner, [OutboxRecord(topic=topic, key="k", value="v") for _ in range(10)])
    monkeypatch.setenv("HARVEST_DSN", granted)
    monkeypatch.setenv("HARVEST_OUTBOX_TABLE", "outbox")
    settings = OutboxSettings(name="shop", topics=[topic], daemon=DaemonSettings(report_every_seconds=1))
    delivered = "SELECT sum((checkpoint ->> 'delivered')::int) FROM outbox_subscriptions"
    with DagsterInstance.ephemeral() as instance:

        def end():
            eventually(lambda: owner.execute(delivered).fetchone() == (10,), "it has delivered")
            instance.add_run_tags(instance.get_runs()[0].run_id, {LEAVING_TAG: "it has delivered"})

        ending = threading.Thread(target=end)
        ending.start()
        result = daemon_job(settings).execute_in_process(
            instance=instance, resources={settings.resource_key: HarvesterResource()}, raise_on_error=False
        )
        ending.join(60)
        (run,) = instance.get_runs()
        assert result.success, [entry.user_message for entry in instance.all_logs(run.run_id)]
    beat = HeartbeatTable.beside(owner, OutboxTable.parse("outbox")).read(
        HeartbeatPlace(name="shop", location="in-process")
    )
    assert beat.is_stopped


def audit(connection):
    """Do what an audit and its checks do with the tables of results."""
    given = {field.name: 0 for field in fields(AuditSummary)}
    summary = AuditSummary(**{**given, "audit_id": "a", "at": datetime.now(UTC)})
    connection.execute("INSERT INTO harvest_audit.staging (run, kind, record) VALUES ('r', 'lost', '1')")
    outbox = OutboxTable.parse("outbox")
    promote(connection, summary, run="r", outbox=outbox, topics=["t"])
    settings = OutboxSettings(name="shop", topics=["t"])
    assert last_summary(connection, settings, outbox).audit_id == "a"
    assert details(connection, "a")["lost"] == 1


def beat(connection):
    heartbeats = HeartbeatTable.beside(connection, OutboxTable.parse("outbox"))
    heartbeats.create()
    heartbeats.claim(PLACE, run_id="1", generation=None, stale_after_seconds=9)
    heartbeats.renew(PLACE, "1")


@pytest.mark.usefixtures("_outbox")
def test_each_printed_grant_is_needed_and_missed_by_the_check(owner, command, name, granted):
    give(owner, command, name)
    rights = [("harvest_daemons", each, beat) for each in dagster._RUN]
    rights += [(table, each, audit) for table in TABLES for each in dagster._AUDIT]
    role = sql.Identifier(name)
    with psycopg.connect(granted, autocommit=True) as connection:
        beat(connection)
        audit(connection)
        for table, privilege, work in rights:
            names = {"right": sql.SQL(privilege), "table": sql.Identifier(*table.split(".")), "role": role}
            owner.execute(sql.SQL("REVOKE {right} ON {table} FROM {role}").format(**names))
            with pytest.raises((DatabaseAccessDenied, psycopg.errors.InsufficientPrivilege)):
                work(connection)
            with pytest.raises(DatabaseAccessDenied) as caught:
                dagster.require_dagster(connection, OutboxTable.parse("outbox"))
            assert f"GRANT {privilege} ON" in caught.value.next_step
            owner.execute(sql.SQL("GRANT {right} ON {table} TO {role}").format(**names))
        dagster.require_dagster(connection, OutboxTable.parse("outbox"))


@pytest.mark.usefixtures("_outbox")
def test_the_check_names_the_commands(owner, command, name, granted, make_topic):
    topic = make_topic()
    owner.execute("DROP TABLE harvest_daemons")
    give(owner, command, name)
    plain = ("check", "--topic", topic)
    command(*plain, by=granted)
    assert "`harvest init --dagster`" in command(*plain, "--dagster", by=granted, code=4)
    command("init", "--dagster")
    assert "GRANT SELECT, INSERT, UPDATE ON" in command(*plain, "--dagster", by=granted, code=5)
    give(owner, command, name)
    command(*plain, "--dagster", by=granted)


def test_the_script_warns_of_tables_that_are_missing_and_skips_a_role_that_is(owner, command, name):
    command("init")
    said = []
    owner.add_notice_handler(lambda notice: said.append((notice.severity_nonlocalized, notice.message_primary)))
    give(owner, command, name)
    warnings = [text for severity, text in said if severity == "WARNING" and "does not exist: nothing" not in text]
    assert len(warnings) == 2
    assert "run `harvest init --dagster`" in warnings[0]
    assert "the tables of audits do not exist: run `harvest init --dagster`" in warnings[1]
    give(owner, command, "nobody here")


def test_the_table_is_printed_for_migrations(command):
    assert "harvest_daemons" not in command("init", "--print")
    assert 'CREATE TABLE IF NOT EXISTS "harvest_daemons"' in command("init", "--print", "--dagster")
