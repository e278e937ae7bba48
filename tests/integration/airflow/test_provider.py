"""Airflow knows the connection type from the wheel alone, tests such a connection, and its trigger reads it itself."""

import json
import os
import shlex
import subprocess
import uuid

import psycopg
import pytest
from support.dagster_stub import dagster_stub
from support.installed import build, find_uv, install
from support.walkthrough import blocks

from harvest_lib.outbox import NativeTable, OutboxTable
from infra.platform.databases import own_database

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

CANARY = "canary-51b0"
TRIGGER = """
import asyncio, json, sys
from harvest_lib.airflow.triggers.dagster import DagsterRunTrigger

arguments = {"job_name": "flights_job", "location": "", "partition": "", "run_config": {}, "poll_seconds": 0.01,
             "deadline": 4e9, "patience_seconds": 1, "attempt": {"task": "dag/run/task/0", "number": 1}}
trigger = DagsterRunTrigger(**arguments, **json.loads(sys.argv[1]))
classpath, stored = trigger.serialize()

async def fired():
    async for event in DagsterRunTrigger(**stored).run():
        return event.payload

print(json.dumps([stored, asyncio.run(fired())]))
"""

LOGGED = """
import asyncio, sys
from airflow.sdk.log import redact
from harvest_lib.airflow.hooks.dagster import DagsterHook

asyncio.run(DagsterHook("shop").client())
print(redact(f"a library logs {sys.argv[1]}"))
"""


@pytest.fixture(scope="module")
def installed(parts, tmp_path_factory):
    """Return a function that runs a program of a fresh environment, in an empty folder with an empty home."""
    uv = find_uv(parts)
    venv, folder, home = (tmp_path_factory.mktemp(name) for name in ("venv", "folder", "home"))
    programs = install(uv, build(uv, tmp_path_factory.mktemp("wheel")), venv, "airflow")
    variables = {
        "HOME": str(home),
        "AIRFLOW_HOME": str(home / "airflow"),
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
        "PATH": os.environ["PATH"],
        "COLUMNS": "500",
    }

    def run(program, *arguments, **changes):
        command = [programs / program, *arguments]
        given = {**variables, **changes}
        return subprocess.run(command, check=False, cwd=folder, env=given, capture_output=True, text=True, timeout=200)

    assert run("airflow", "db", "migrate").returncode == 0
    return run


@pytest.fixture
def dagster():
    with dagster_stub() as stub:
        stub.next_status = "SUCCESS"
        stub.header = ("Authorization", f"Bearer {CANARY}")
        yield stub


def connection(stub, **extra):
    scheme, _, rest = stub.url.partition("://")
    host, _, port = rest.partition(":")
    return json.dumps({"conn_type": "dagster", "schema": scheme, "host": host, "port": int(port), "extra": extra})


def fired(installed, conn_id="", **variables):
    done = installed("python", "-c", TRIGGER, json.dumps({"conn_id": conn_id} if conn_id else {}), **variables)
    assert done.returncode == 0, done.stderr
    assert CANARY not in done.stdout + done.stderr
    stored, event = json.loads(done.stdout.splitlines()[-1])
    assert stored["conn_id"] == (conn_id or "dagster_default")
    return event


def test_airflow_lists_the_package_with_its_connection_type_and_hook(installed):
    listed = json.loads(installed("airflow", "providers", "list", "-o", "json").stdout)
    (ours,) = [each for each in listed if each["package_name"] == "outbox-harvester"]
    assert "Dagster" in ours["description"]
    hooks = json.loads(installed("airflow", "providers", "hooks", "-o", "json").stdout)
    (hook,) = [each for each in hooks if each["connection_type"] == "dagster"]
    assert hook == {
        "connection_type": "dagster",
        "class": "harvest_lib.airflow.hooks.dagster.DagsterHook",
        "conn_id_attribute_name": "conn_id",
        "package_name": "outbox-harvester",
        "hook_name": "Dagster",
    }
    (outbox,) = [each for each in hooks if each["connection_type"] == "outbox"]
    assert (outbox["hook_name"], outbox["class"]) == ("Outbox", "harvest_lib.airflow.hooks.outbox.HarvestHook")
    fields = json.loads(installed("airflow", "providers", "widgets", "-o", "json").stdout)
    names = {each["connection_parameter_name"] for each in fields}
    assert {"extra__dagster__token", "extra__dagster__ca_file", "extra__outbox__outbox_table"} <= names


def test_a_connection_is_tested_from_the_command_line(installed, dagster):
    def tested(**variables):
        return installed("airflow", "connections", "test", "shop", **variables)

    well = tested(AIRFLOW_CONN_SHOP=connection(dagster, token=CANARY))
    assert well.returncode == 0, well.stdout + well.stderr
    assert dagster.asked == ["HarvestVersion"]
    badly = tested(AIRFLOW_CONN_SHOP=connection(dagster, token=f"wrong-{CANARY}"))
    assert badly.returncode == 1
    assert "HTTP 401" in badly.stdout
    assert "check the credentials in the Airflow connection shop" in badly.stdout
    assert CANARY not in badly.stdout + badly.stderr + well.stdout + well.stderr


def test_a_connection_to_an_outbox_is_tested_by_what_the_harvester_needs(installed, stack, tmp_path):
    dsn, bootstrap_servers = (
        own_database(stack.dsn, f"shop_{uuid.uuid4().hex[:8]}", password_file=tmp_path / "p"),
        stack.bootstrap_servers,
    )
    with psycopg.connect(dsn) as connection:
        NativeTable(outbox=OutboxTable.parse("outbox")).create(connection)
    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    place = {"host": parts["host"], "port": int(parts["port"]), "schema": parts["dbname"], "login": parts["user"]}
    extra = {"bootstrap_servers": bootstrap_servers, "leader_group_id": "of-airflow", "sslmode": "disable"}

    def tested(**changes):
        made = {"conn_type": "outbox", **place, "password": parts["password"], "extra": {**extra, **changes}}
        return installed("airflow", "connections", "test", "shop", AIRFLOW_CONN_SHOP=json.dumps(made))

    well = tested()
    assert well.returncode == 0, well.stdout + well.stderr
    badly = tested(outbox_table="no_such_table")
    assert badly.returncode == 1
    assert "harvest init" in badly.stdout
    assert "use outbox_table, subscription" in tested(tabel="t").stdout


def test_the_connection_of_the_page_is_added_as_it_is_typed(installed):
    _, typed, *_ = blocks("docs/airflow.md", under="## Airflow without Dagster")
    *added, _ = typed.text.replace("\\\n", " ").splitlines()
    for each in added:
        done = installed(*shlex.split(each))
        assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads(installed("airflow", "connections", "get", "shop_outbox", "-o", "json").stdout)
    assert (found["conn_type"], found["host"], found["schema"]) == ("outbox", "db.example.com", "shop")
    refused = installed("airflow", "connections", "test", "shop_outbox")
    assert (refused.returncode, "db.example.com" in refused.stdout) == (1, True), "no such host: all else is there"


def test_the_trigger_reads_the_connection_and_an_old_dag_goes_on_with_the_address(installed, dagster):
    token = connection(dagster, token=CANARY)
    nowhere = {"DAGSTER_URL": "http://127.0.0.1:1"}
    assert fired(installed, "shop", AIRFLOW_CONN_SHOP=token, **nowhere)["outcome"] == "succeeded"
    assert fired(installed, AIRFLOW_CONN_DAGSTER_DEFAULT=token, **nowhere)["outcome"] == "succeeded"
    dagster.header, dagster.password = (), CANARY
    address = dagster.url.replace("//", f"//user:{CANARY}@")
    assert fired(installed, DAGSTER_URL=address)["outcome"] == "succeeded"
    assert dagster.launched() == 1


def test_a_token_that_others_log_is_masked(installed, dagster):
    shop = connection(dagster, token=CANARY)
    added = installed("airflow", "connections", "add", "shop", "--conn-json", shop)
    assert added.returncode == 0, added.stderr
    logged = installed("python", "-c", LOGGED, CANARY, _AIRFLOW_PROCESS_CONTEXT="server")
    assert logged.returncode == 0, logged.stderr
    assert logged.stdout.splitlines()[-1] == "a library logs ***"


def test_a_connection_that_is_missing_or_wrong_is_named(installed, dagster):
    missing = fired(installed, "nowhere", DAGSTER_URL=dagster.url)
    assert missing["outcome"] == "failed", "another try may find it"
    assert missing["cause"] == "Airflow has no connection 'nowhere'"
    assert "airflow connections add nowhere --conn-type dagster" in missing["next_step"]
    wrong = fired(installed, "shop", AIRFLOW_CONN_SHOP=connection(dagster, tokn=CANARY))
    assert (wrong["outcome"], wrong["evidence"]) == ("refused", "its extra has tokn")
    assert dagster.asked == []
