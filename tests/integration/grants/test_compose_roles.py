"""The roles of the compose file, made by its own scripts in a real Postgres: the rights of each."""

import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
import yaml
from psycopg.conninfo import make_conninfo
from support.psql import psql

from harvest_lib.local_stack.postgres import PostgresServer

pytestmark = pytest.mark.full

COMPOSE = Path(__file__).parents[3] / "infra" / "compose.yaml"
INSERT = "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES ('orders', 'k', 'v')"
NAMES = ("DAGSTER", "AIRFLOW", "OWNER", "HARVESTER", "WRITER", "READER")


def content(name):
    """Return a file's content as a container gets it: compose makes one dollar of two."""
    return yaml.safe_load(COMPOSE.read_text())["configs"][name]["content"].replace("$$", "$")


@pytest.fixture(scope="module")
def connect(tmp_path_factory):
    """Return how each role connects to the outbox's database."""
    server = PostgresServer(tmp_path_factory.mktemp("compose"), durable=False)
    try:
        server.start()
        script = re.search(r"<<'SQL'\n(.*)^SQL$", content("databases"), re.DOTALL | re.MULTILINE)[1]
        before = dict(os.environ)
        os.environ.update({f"{name}_PASSWORD": f"of-{name.lower()}" for name in NAMES})
        try:
            psql(server.dsn, script)
        finally:
            os.environ.clear()
            os.environ.update(before)

        def role(name, password, database="outbox"):
            return make_conninfo(server.dsn, user=name, password=password, dbname=database)

        for _ in range(2):  # at each start
            done = subprocess.run(
                ["/bin/sh", "-c", content("init")],
                env={
                    "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
                    "HARVEST_DSN": role("outbox_owner", "of-owner"),
                    "HARVEST_BOOTSTRAP_SERVERS": "kafka:19092",
                },
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == 0, done.stderr
        yield role
    finally:
        server.stop()


def may(conninfo, statement):
    with psycopg.connect(conninfo) as connection:
        try:
            connection.execute(statement)
        except psycopg.errors.InsufficientPrivilege:
            return False
        return True


def test_each_role_may_do_what_is_printed_and_nothing_more(connect):
    writer, harvester = connect("writer", "of-writer"), connect("harvester", "of-harvester")
    reader, owner = connect("reader", "of-reader"), connect("outbox_owner", "of-owner")
    assert may(writer, INSERT)
    assert not may(writer, "SELECT * FROM outbox")
    assert may(harvester, "SELECT * FROM outbox")
    assert not may(harvester, INSERT)
    assert not may(harvester, "DROP TABLE outbox")
    assert may(reader, "SELECT * FROM outbox_subscriptions")
    assert not may(reader, "DELETE FROM outbox_parked_ids")
    assert may(owner, "CREATE TABLE flights (flight_id bigint)")
    assert may(owner, "CREATE SCHEMA harvest_audit")
    assert not may(owner, "CREATE ROLE another")


@pytest.mark.parametrize("name", ["harvester", "writer", "reader", "harvest_dagster"])
def test_nobody_is_the_superuser_or_enters_anothers_database(connect, name):
    password = f"of-{name.removeprefix('harvest_')}"
    other = "harvest_airflow"
    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        psycopg.connect(connect(name, password, database=other))
    own = "harvest_dagster" if name == "harvest_dagster" else "outbox"
    with psycopg.connect(connect(name, password, database=own)) as connection:
        assert connection.execute("SELECT usesuper FROM pg_user WHERE usename = current_user").fetchone() == (False,)
