"""Sessions in Postgres: the settings of `dataSource` hold, and those of a role or database change no answer."""

import json
import uuid
from urllib.parse import quote, urlencode

import psycopg
import pytest
from psycopg import errors as pg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from support.outbox import harvest_config

from dagster_harvest.resources import HarvesterResource
from harvest_lib import OutboxRecord, append
from harvest_lib.config import DataSource
from harvest_lib.errors import DatabaseError, DatabaseUnavailable
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.postgres.database import connect, lift_timeouts
from harvest_lib.postgres.translation import translate, translated

pytestmark = pytest.mark.gate

ODD = {
    "datestyle": "SQL, DMY",
    "intervalstyle": "sql_standard",
    "timezone": "Asia/Kathmandu",
    "extra_float_digits": "-15",
    "bytea_output": "escape",
    "quote_all_identifiers": "on",
    "standard_conforming_strings": "off",
    "array_nulls": "off",
    "default_transaction_isolation": "serializable",
    "transform_null_equals": "on",
    "xmloption": "document",
    "client_encoding": "latin1",
    "idle_session_timeout": "1min",
    "lc_numeric": "C",
    "enable_seqscan": "off",
    "plan_cache_mode": "force_generic_plan",
}
"""Settings that a database may have for all its sessions."""


def shown(conninfo, *names, settings=None):
    with connect(conninfo, settings) as connection:
        return [connection.execute(f"SHOW {name}").fetchone()[0] for name in names]


@pytest.mark.parametrize(
    "options",
    [
        "-c search_path=billing,public -c work_mem=5MB",
        "--search-path=billing,public -cwork_mem=5MB",
        r"-c search_path=billing,\ public  -c work_mem=5MB",
        "-c search_path=billing,public -c work_mem=5MB -c ignore_system_indexes=off",  # for the beginning of one only
        "-e -c search_path=billing,public -c work_mem=5MB",  # something that is no setting
    ],
)
def test_options_of_the_data_source_hold(dsn, monkeypatch, options):
    found = shown(make_conninfo(dsn, options=options), "search_path", "work_mem")
    assert [found[0].replace(" ", ""), found[1]] == ["billing,public", "5MB"]
    monkeypatch.setenv("PGOPTIONS", options)
    found = shown(dsn, "search_path", "work_mem")
    assert [found[0].replace(" ", ""), found[1]] == ["billing,public", "5MB"]
    assert shown(make_conninfo(dsn, options=""), "search_path") == ['"$user", public'], "they replace the environment's"


def test_options_of_a_service_hold(dsn, tmp_path, monkeypatch):
    services = tmp_path / "services.conf"
    services.write_text("[shop]\noptions=-c search_path=billing\n")
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    monkeypatch.setenv("PGOPTIONS", "-c search_path=another")
    assert shown(f"{dsn} service=shop", "search_path") == ["billing"]
    assert shown(f"{dsn} service=shop options='-c search_path=own'", "search_path") == ["own"]
    monkeypatch.setenv("PGSERVICE", "shop")
    assert shown(dsn, "search_path") == ["billing"]


def test_no_option_makes_commits_less_durable_or_values_spelled_otherwise(dsn):
    options = "-c synchronous_commit=off -c datestyle=german -c statement_timeout=5s"
    names = ("synchronous_commit", "datestyle", "statement_timeout")
    assert shown(make_conninfo(dsn, options=options), *names) == ["on", "ISO, YMD", "5s"]
    ours = {"statement_timeout": "7s"}
    assert shown(make_conninfo(dsn, options=options), *names, settings=ours) == ["on", "ISO, YMD", "7s"]


def test_the_server_notices_a_client_that_is_gone(dsn):
    """One that vanished in the middle of a transaction would keep its locks for as long as TCP lets it."""
    assert "host=127.0.0.1" in dsn, "over a socket file there is nothing to notice"
    names = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout")
    assert shown(dsn, *names) == ["5", "3", "3", "10000"]


@pytest.mark.parametrize("options", ["-c no_such_thing=1", "-c work_mem=much"])
def test_an_option_that_the_server_does_not_take_is_named(dsn, options):
    with pytest.raises(DatabaseError, match="does not take a setting") as error:
        connect(make_conninfo(dsn, options=options))
    assert options.partition("=")[0].removeprefix("-c ") in error.value.evidence
    assert "dataSource" in error.value.next_step


def test_dagster_looks_into_the_schema_that_the_data_source_names(dsn, monkeypatch):
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA billing; CREATE TABLE billing.outbox (id int)")
    resource = HarvesterResource(dsn=f"{dsn} sslmode=disable search_path=billing")
    monkeypatch.setenv("HARVEST_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("HARVEST_LEADERSHIP", "solo")
    with resource.connect() as connection:
        assert resource.table.placed(connection).parts == ("billing", "outbox")
        assert connection.execute("SHOW statement_timeout").fetchone() == ("10s",)


@pytest.mark.full
def test_the_commands_say_the_same_whatever_a_database_sets(dsn, harvest, bootstrap_servers, group_id, make_topic):
    topic, name = make_topic(), psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    with psycopg.connect(dsn, autocommit=True) as connection:
        for setting, value in ODD.items():
            connection.execute(f"ALTER DATABASE \"{name}\" SET {setting} = '{value}'")
    servers = {
        "HARVEST_DSN": dsn,
        "HARVEST_BOOTSTRAP_SERVERS": bootstrap_servers,
        "HARVEST_LEADER_GROUP_ID": group_id,
        "HARVEST_DELIVERY": "barrier",
        "HARVEST_LEADERSHIP": "solo",
    }

    def run(*arguments):
        done = harvest(*arguments, **servers)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), (arguments, done.stdout, done.stderr)
        return done.stdout

    def read(*arguments):
        return json.loads(run(*arguments, "--json"))

    run("init")
    run("init")
    with connect(dsn) as connection, connection.transaction():
        append(connection, [OutboxRecord(topic=topic, key="k", value="é \\ 'v'")] * 3)
    assert read("check", "--topic", topic)["ok"]
    assert read("status")["backlog_records"] == 3
    run("run", "--drain")
    assert read("status")["backlog_records"] == 0
    assert [each["name"] for each in read("subscriptions", "list")] == ["default"]
    run("subscriptions", "add", "second", "--from", "now")
    run("subscriptions", "rewind", "second", "--to", "beginning")
    assert {each["name"] for each in read("subscriptions", "list")} == {"default", "second"}
    run("subscriptions", "remove", "second", "--yes")
    assert read("park", "list") == []
    run("segments", "ensure")
    assert read("segments", "list")
    run("segments", "rotate", "--older-than", "1h")
    run("segments", "drop", "--yes")
    report = read("audit", "--topic", topic)
    assert (report["committed"], report["delivered"], report["ok"]) == (3, 3, True)
    run("grants", "postgres", "--harvester", "h", "--writer", "w")


def test_harvesting_is_the_same_whatever_a_database_sets(outbox, bootstrap_servers, group_id):
    name = psycopg.conninfo.conninfo_to_dict(outbox.dsn)["dbname"]
    for setting, value in ODD.items():
        outbox.connection.execute(f"ALTER DATABASE \"{name}\" SET {setting} = '{value}'")
    outbox.fill(50)
    config = harvest_config(outbox.dsn, bootstrap_servers, group_id, delivery="pipelined")
    assert Harvest(config).drain(60).records == 50
    assert outbox.count() == 0
    assert shown(outbox.dsn, "idle_session_timeout") == ["0"], "it may idle"


def test_a_plan_that_fits_no_more_passes_with_a_new_connection(dsn):
    """By the place in the server that says so: its words are in its own language."""
    with connect(dsn) as connection, psycopg.connect(dsn, autocommit=True) as owner:
        owner.execute("CREATE TABLE changing (n int)")
        connection.execute("SELECT * FROM changing", prepare=True)
        owner.execute("ALTER TABLE changing ALTER n TYPE text")
        with pytest.raises(DatabaseUnavailable, match="0A000"), translated():
            connection.execute("SELECT * FROM changing", prepare=True)


def test_long_work_is_cut_by_no_timeout_of_the_role(dsn):
    own = {"statement_timeout": "300", "idle_in_transaction_session_timeout": "300"}
    with connect(dsn, own) as connection, connection.transaction():
        lift_timeouts(connection)
        connection.execute("SELECT pg_sleep(0.5)")
        asked = """
        SELECT name FROM pg_settings
        WHERE name LIKE '%timeout' AND name <> 'tcp_user_timeout' AND setting <> '0' AND source = 'session'
        """
        assert connection.execute(asked).fetchall() == []
    with connect(dsn, own) as connection, pytest.raises(pg.QueryCanceled):
        connection.execute("SELECT pg_sleep(60)")


@pytest.mark.parametrize(
    ("error", "setting"),
    [
        (pg.IdleInTransactionSessionTimeout, "idle_in_transaction_session_timeout"),
        (pg.TransactionTimeout, "transaction_timeout"),
        (pg.IdleSessionTimeout, "idle_session_timeout"),
    ],
)
def test_a_timeout_of_the_role_is_named(error, setting):
    found = translate(error("terminating connection"))
    assert isinstance(found, DatabaseUnavailable)
    assert "a timeout of the role" in str(found)
    assert f"SET {setting} = 0" in found.next_step


@pytest.fixture
def read_only(dsn):
    """A role that is read-only unless a session says otherwise: its connection string, for writing."""
    role = sql.Identifier(f"""we"ird {uuid.uuid4().hex[:8]}""")
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'x'").format(role))
        admin.execute(sql.SQL("ALTER ROLE {} SET default_transaction_read_only = on").format(role))
        try:
            name = role.as_string(None)[1:-1].replace('""', '"')
            yield make_conninfo(dsn, user=name, password="x", target_session_attrs="read-write"), admin
        finally:
            admin.execute(sql.SQL("DROP ROLE {}").format(role))


@pytest.mark.parametrize("way", ["options", "parameter", "environment", "url"])
def test_a_role_that_is_read_only_writes_where_the_data_source_says_so(read_only, monkeypatch, way):
    """As in psql: libpq asks about it before the options hold."""
    conninfo, _ = read_only
    lifted = "-c default_transaction_read_only=off"
    match way:
        case "options":
            conninfo = make_conninfo(conninfo, options=lifted)
        case "environment":
            monkeypatch.setenv("PGOPTIONS", lifted)
        case "parameter":
            conninfo = DataSource.parse(f"{conninfo} default_transaction_read_only=off").conninfo()
        case "url":
            query = urlencode({"options": lifted, **conninfo_to_dict(conninfo)}, quote_via=quote)
            conninfo = DataSource.parse(f"postgresql://?{query}").conninfo()
    with connect(conninfo) as connection:
        assert connection.execute("SHOW transaction_read_only").fetchone() == ("off",)
        assert connection.execute("SELECT pg_current_xact_id() IS NOT NULL").fetchone() == (True,)


def test_a_role_that_is_read_only_is_told_from_a_standby(read_only):
    conninfo, admin = read_only
    with pytest.raises(DatabaseUnavailable, match="read-only, though the server is no standby") as caught:
        connect(conninfo)
    assert "comes from the user" in caught.value.evidence
    admin.execute(caught.value.next_step.partition(";")[0].encode())
    with connect(conninfo) as connection:
        assert connection.execute("SHOW transaction_read_only").fetchone() == ("off",)


def test_a_database_that_is_read_only_is_named(dsn):
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(database_of(admin)))
    conninfo = make_conninfo(dsn, target_session_attrs="read-write")
    with pytest.raises(DatabaseUnavailable, match="no standby") as caught:
        connect(conninfo)
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute("SET default_transaction_read_only = off")
        admin.execute(caught.value.next_step.partition(";")[0].encode())
    connect(conninfo).close()


def database_of(connection):
    return sql.Identifier(connection.info.dbname)
