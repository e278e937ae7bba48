"""Connection strings with passwords that libpq, or a reader, takes for something else: every entry, and what it says.

Nothing listens where they lead to. Looked for is any piece of a password, in what is printed, logged and raised.
"""

import logging
import os
import runpy
import subprocess
import sys
import traceback
from functools import partial
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict
from typer.testing import CliRunner

from dagster_harvest.resources import HarvesterResource
from harvest_lib import HarvestConfig
from harvest_lib import cli as harvest_cli
from harvest_lib.audit import read_query
from harvest_lib.config.data_source import DataSource
from harvest_lib.conninfo import has_secret, parameters_of, shown
from harvest_lib.consume import PostgresStore, create_tables
from harvest_lib.consume.checkpoint import ShardId
from harvest_lib.consume.key_values import create_key_values
from harvest_lib.errors import ConfigError
from harvest_lib.local_stack.stack import _check_postgres
from harvest_lib.postgres.database import connect, require_session
from harvest_lib.spark import outbox_sink
from harvest_lib.spark.audit import __main__ as spark_audit
from harvest_lib.spark.data_source.read_options import ReadOptions
from harvest_lib.spark.data_source.write_options import WriteOptions
from harvest_lib.spark.flights import by_day, by_month
from harvest_lib.spark.replay import __main__ as spark_replay
from harvest_lib.spark.sink.database import connect as sink_connect

pytestmark = pytest.mark.gate

ROOT = Path(__file__).parents[3]
PIECE = "cnry"
"""In every piece of every password."""
PASSWORDS = [
    "cnry1 cnry2",
    "cnry1@cnry2",
    "cnry1@@cnry2",
    "cnry1/cnry2",
    "12/cnry2",
    "cnry1/cnry2@cnry3",
    "cnry1?cnry2",
    "/?cnry=1",
    "cnry1%zz",
    "cnry1%",
    "cnry1%00cnry2",
    "'cnry1",
    "cnry1'cnry2",
    "'cnry1' cnry2'",
    "cnry1\\",
    "cnry1 cnry2=cnry3",
    "cnry1\tcnry2",
    "cnry1\ncnry2",
    "cnry1\0cnry2",
    "cnry1\ud800cnry2",
    "cnry1#cnry2",
    "cnry1:cnry2",
    "[cnry1]",
    "cnry1&cnry2",
    "cnry1,cnry2",
]
TORN = [
    spelled.format(password)
    for password in PASSWORDS
    for spelled in (
        "postgresql://bob:{}@127.0.0.1:1/shop",
        "postgres://127.0.0.1:1/shop?user=bob&password={}",
        "host=127.0.0.1 port=1 dbname=shop user=bob password={}",
        "host=127.0.0.1 port=1 dbname=shop user=bob password='{}'",
        "Postgresql+psycopg://bob:{}@127.0.0.1:1/shop",
    )
]


def refuses(dsn):
    """Return True if the string cannot be read. One that can leads to a port where nothing listens."""
    try:
        parameters_of(dsn)
    except ConfigError:
        return True
    return False


def is_refused_setting(dsn):
    try:
        DataSource.parse(dsn)
    except ConfigError:
        return True
    return False


UNREADABLE = [dsn for dsn in TORN if refuses(dsn)]
REFUSED = [dsn for dsn in UNREADABLE if is_refused_setting(dsn)]
READABLE = [dsn for dsn in TORN if not refuses(dsn)]


def of_store(dsn):
    PostgresStore(dsn, ShardId("c", "t", 0)).restore()


def of_spark(options, dsn):
    made = options.parse({"dsn": dsn, "topic": "t", "key": "k", "batchId": "b"}, streaming=False)
    return f"{made} {made!r}"


def of_reader(dsn):
    made = ReadOptions.parse({"dsn": dsn}, streaming=False)
    return f"{made} {made!r}"


def of_resource(dsn):
    return HarvesterResource(dsn=dsn).get_resource_definition().config_schema.default_value


def of_job(main, *arguments):
    def call(dsn):
        return main([*arguments, "--dsn", dsn])

    return call


def of_example(name):
    def call(dsn):
        runpy.run_path(str(ROOT / "docs" / "examples" / name), run_name="__main__")

    return call


def of_module(name):
    def call(dsn):
        runpy.run_module(f"harvest_lib.examples.{name}", run_name="__main__")

    return call


def of_command(*words):
    def call(dsn):
        result = CliRunner().invoke(harvest_cli.app, list(words))
        return result.output + "".join(traceback.format_exception(result.exception) if result.exception else [])

    return call


COMMANDS = [
    "init",
    "migrate",
    "check",
    "run",
    "status",
    "audit --topic t",
    "grants postgres",
    "park list",
    "park show 1",
    "park retry --all",
    "park drop 1 --yes",
    "segments list",
    "segments ensure",
    "segments rotate",
    "segments drop",
    "segments archive file:///nowhere",
    "segments verify file:///nowhere",
    "subscriptions list",
    "subscriptions add s",
    "subscriptions remove s",
    "subscriptions rewind s --to beginning",
    "subscriptions move",
    "subscriptions reshard s --shards 2",
]
ENTRIES = {
    "connect": connect,
    "require_session": require_session,
    "create_tables": create_tables,
    "create_key_values": create_key_values,
    "PostgresStore": of_store,
    "read_query": lambda dsn: list(read_query(dsn, "SELECT 1", topics=("t",))),
    "HarvestConfig": lambda dsn: repr(HarvestConfig(leader_group_id="g", data_source=dsn)),
    "DataSource": lambda dsn: repr(DataSource.parse(dsn)),
    "shown": shown,
    "sink": sink_connect,
    "WriteOptions": partial(of_spark, WriteOptions),
    "ReadOptions": of_reader,
    "resource": of_resource,
    "resource's connection": lambda dsn: HarvesterResource(dsn=dsn).connect(),
    "local stack": _check_postgres,
    "outbox_sink": of_job(outbox_sink.main, "x.parquet", "--topic", "t", "--key", "k", "--batch-id", "b"),
    "by_month": of_job(by_month.main, "--months", "1"),
    "by_day": of_job(by_day.main, "--first-day", "2013-01-01"),
    "audit by Spark": of_job(spark_audit.main, "--topic", "t", "--bootstrap-servers", "127.0.0.1:1"),
    "replay": of_job(spark_replay.main, "r", "--topic", "t", "--to", "{topic}-r", "--bootstrap-servers", "127.0.0.1:1"),
    **{f"examples/{name}": of_example(name) for name in ("basic.py", "consumer.py", "events.py", "custom_logger.py")},
    **{f"harvest_lib.examples.{module}": of_module(module) for module in ("bank_transfer", "order_totals")},
    **{f"harvest {command}": of_command(*command.split()) for command in COMMANDS},
}

KEEP_TRYING = {"harvest run", "harvest check"}


@pytest.fixture
def said(monkeypatch, capfd, caplog):
    """Return a function that calls an entry with a string, and returns all that it says."""
    caplog.set_level(logging.DEBUG)
    logger = logging.getLogger("harvest_lib")  # entries set it up as a process of their own does
    for name in ("level", "propagate", "handlers"):
        kept = getattr(logger, name)
        monkeypatch.setattr(logger, name, list(kept) if name == "handlers" else kept)
    for name in [name for name in os.environ if name.startswith(("HARVEST_", "PG"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HARVEST_LEADER_GROUP_ID", "g")
    monkeypatch.setenv("HARVEST_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setattr(sys, "argv", ["example"])

    def call(entry, dsn):
        try:
            monkeypatch.setenv("HARVEST_DSN", dsn)
        except (ValueError, UnicodeError):
            monkeypatch.setenv("HARVEST_DSN", "host=127.0.0.1 port=1 dbname=shop user=bob")  # no variable has such text
        raised = ""
        try:
            raised = repr(entry(dsn))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, it is looked at
            seen: BaseException | None = error
            while seen is not None:
                raised += repr(seen) + str(seen) + repr(getattr(seen, "args", ""))
                seen = seen.__cause__ or seen.__context__
            raised += "".join(traceback.format_exception(error))
        logged = "\n".join(repr(vars(record)) + str(record.exc_text) for record in caplog.records)
        caplog.clear()
        return raised + logged + "".join(capfd.readouterr())

    return call


def test_parameters_are_those_of_libpq():
    for dsn in READABLE:
        assert parameters_of(dsn) == conninfo_to_dict(dsn)
        assert has_secret(dsn)
    for host in ("@/run/abstract", "/run/a,db.example.com"):
        assert parameters_of(f"host={host}") == {"host": host}
    assert not has_secret("postgresql://bob@db/shop?sslmode=require")
    assert parameters_of("dbname=a@b") == {"dbname": "a@b"}
    in_query = "postgresql:///db?host=/cloudsql/p:r:i&user=sa@project.iam"
    assert parameters_of(in_query) == {"dbname": "db", "host": "/cloudsql/p:r:i", "user": "sa@project.iam"}


@pytest.mark.gate(cases=6)
@pytest.mark.parametrize("name", ENTRIES)
def test_no_entry_says_a_piece_of_a_password(name, said):
    assert len(UNREADABLE) > 50
    dsns = UNREADABLE + READABLE
    if name.startswith("harvest "):  # all commands read the setting by the same function, tested above
        dsns = REFUSED[:: len(REFUSED) // 5] + ([] if name in KEEP_TRYING else READABLE[:1])
    for dsn in dsns:
        text = said(ENTRIES[name], dsn)
        assert text
        assert PIECE not in text, f"{dsn!r}: {text}"


def test_secrets_that_an_older_libpq_does_not_know_are_hidden():
    program = """
from psycopg.pq import Conninfo
known = [each for each in Conninfo.get_defaults() if each.keyword in {b"host", b"password", b"dbname"}]
Conninfo.get_defaults = classmethod(lambda cls: known)
from harvest_lib.conninfo import SECRETS
print(*sorted(SECRETS))
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.split() == [
        "oauth_client_secret",
        "password",
        "scram_client_key",
        "scram_server_key",
        "sslpassword",
    ]
