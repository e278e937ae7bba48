"""Every minor version of Airflow that the extra allows, with the wheel and the oldest Kafka provider that it allows.

Each has an environment of its own, with the newest packages that this version permits, and Airflow's database in
SQLite. The DAGs are those that `test_outbox.py` and the page run with the version of the lock.
"""

import json
import os
import signal
import sqlite3
import subprocess
import tomllib
import uuid
from types import SimpleNamespace

import psycopg
import pytest
from confluent_kafka.admin import NewTopic
from integration.airflow.test_outbox import CANARY, DAGS, FILL
from integration.airflow.test_provider import LOGGED, connection
from packaging.requirements import Requirement
from support.airflow_process import outbox_connection, run_airflow
from support.dagster_stub import dagster_stub
from support.installed import ROOT, build, find_uv, install_newest
from support.outbox import read_topic
from support.waiting import eventually
from support.walkthrough import blocks

from harvest_lib.local_stack.ports import keep_ports
from harvest_lib.outbox import NativeTable, OutboxTable
from infra.platform.databases import own_database
from infra.platform.service import ask

pytestmark = [pytest.mark.full, pytest.mark.long, pytest.mark.timeout(1_200)]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WANTED = {each.name: each.specifier for each in map(Requirement, PROJECT["optional-dependencies"]["airflow"])}
MINORS = [f"3.{minor}" for minor in range(20) if f"3.{minor}.99" in WANTED["apache-airflow"]]
KAFKA_PROVIDER = "apache-airflow-providers-apache-kafka"
OF_CONSTRAINTS = {"3.0": ("fastapi<0.117",), "3.2": ("fastapi<0.137", "svcs<26")}
"""Packages whose newest versions this Airflow allows and cannot run with; its constraints file has older ones."""
DEFERRED = "Received executor event with state success"
"""What the scheduler logs once a worker has ended, here because it deferred its task."""
OF_EVENTS = {"audit_on_message.py", "one_run_per_order.py"}
"""DAGs that need Airflow 3.3."""
RECORDS = {"shop": 500, "waiting": 3, "page": 10}
INSTALLED = """
import importlib, importlib.resources, json, pkgutil
import jsonschema
import harvest_lib.airflow
from airflow.sdk import BaseOperator
from airflow.triggers.base import BaseTrigger
from harvest_lib.airflow.compat import MINOR, BaseHook
from harvest_lib.airflow.provider import get_provider_info

EVENTS = ("outbox_events", "topic_events", "event_runs")
found = {kind: set() for kind in ("operators", "sensors", "triggers", "hooks")}
for each in pkgutil.walk_packages(harvest_lib.airflow.__path__, "harvest_lib.airflow."):
    kind, needs_events = each.name.split(".")[2], each.name.rpartition(".")[2] in EVENTS
    try:
        module = importlib.import_module(each.name)
    except Exception:  # ImportError, or what the Kafka provider raises
        assert needs_events and MINOR < 3, each.name
        found[kind].add(each.name)
        continue
    classes = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == each.name]
    ours = [one for one in classes if issubclass(one, (BaseOperator, BaseTrigger, BaseHook))]
    if any(one.__name__ != "OutboxOperator" for one in ours):
        found[kind].add(each.name)
info = get_provider_info()
schema = importlib.resources.files("airflow").joinpath("provider_info.schema.json").read_text()
jsonschema.validate(info, json.loads(schema))
listed = {kind: {name for each in info[kind] for name in each["python-modules"]} for kind in found}
assert listed == found, (listed, found)
print(json.dumps({"found": sum(map(len, found.values())), "on_kill": hasattr(BaseTrigger, "on_kill")}))
"""


@pytest.fixture(scope="module")
def wheel(parts, tmp_path_factory):
    return build(find_uv(parts), tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module", params=MINORS)
def installed(request, parts, wheel, tmp_path_factory):
    """An environment with a minor version of Airflow: its variables, and a function that runs a program of it."""
    venv, home = tmp_path_factory.mktemp("venv"), tmp_path_factory.mktemp("home")
    (oldest,) = WANTED[KAFKA_PROVIDER]
    pins = [f"apache-airflow=={request.param}.*", f"{KAFKA_PROVIDER}=={oldest.version}.*"]
    pins += OF_CONSTRAINTS.get(request.param, ())
    programs = install_newest(find_uv(parts), wheel, venv, "airflow", *pins)
    variables = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "COLUMNS": "500",
        "AIRFLOW_HOME": str(home / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
    }

    def run(program, *arguments, **changes):
        command, given = [programs / program, *arguments], {**variables, **changes}
        done = subprocess.run(command, check=False, cwd=home, env=given, capture_output=True, text=True, timeout=300)
        return SimpleNamespace(code=done.returncode, text=done.stdout + done.stderr, lines=done.stdout.splitlines())

    migrated = run("airflow", "db", "migrate")
    assert migrated.code == 0, migrated.text
    minor = int(request.param.partition(".")[2])
    yield SimpleNamespace(run=run, minor=minor, home=home, variables=variables, python=programs / "python")
    subprocess.run(["rm", "-rf", venv], check=True)


@pytest.fixture(scope="module")
def ran(installed, stack, admin):
    """The ends of the runs of the DAGs, and the topic of each outbox."""
    dags = installed.home / "dags"
    dags.mkdir()
    for file in (ROOT / "airflow_dags").glob("*.py"):
        (dags / file.name).write_bytes(file.read_bytes())
    page_dag, *_ = blocks("docs/airflow.md", under="## Airflow without Dagster")
    (dags / "own.py").write_text(DAGS)
    (dags / "page.py").write_text(page_dag.text)
    topics = {part: f"{part}_{uuid.uuid4().hex[:8]}" for part in RECORDS}
    for made in admin.create_topics([NewTopic(name, 2) for name in topics.values()]).values():
        made.result(60)
    with dagster_stub() as stub:
        stub.next_status = "SUCCESS"
        stub.header = ("Authorization", f"Bearer {CANARY}")
        acme = json.loads(connection(stub, token=CANARY))
        kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": stack.bootstrap_servers, "group.id": "airflow"}}
        connections = {"brokers": kafka, "acme": acme}
        for part, topic in topics.items():
            dsn = own_database(stack.dsn, topic, password_file=installed.home / topic)
            with psycopg.connect(dsn) as database:
                NativeTable(outbox=OutboxTable.parse("outbox")).create(database)
                database.execute(FILL, {"topic": topic, "count": RECORDS[part]})
            connections[part] = outbox_connection(dsn, kafka_conn_id="brokers", leader_group_id=topic)
        connections["shop_outbox"] = connections.pop("page")
        asked = {"shop": "delivers", "waiting": "waits", "acme": "starts_a_job", "shop_outbox": "orders_batch"}
        runs = [{"dag_id": dag, "conf": {"conn": name}, "variables": {}} for name, dag in asked.items()]
        imported, ends = run_airflow(installed.variables, runs, python=installed.python, connections=connections)
        yield SimpleNamespace(imported=imported, topics=topics, stub=stub, **dict(zip(asked, ends, strict=True)))
    with psycopg.connect(stack.dsn, autocommit=True) as server:
        for name in topics.values():
            server.execute(f"DROP DATABASE {name} WITH (FORCE)")
            server.execute(f"DROP ROLE {name}")


def test_each_module_is_imported_and_the_description_is_valid_and_complete(installed):
    done = installed.run("python", "-c", INSTALLED)
    assert done.code == 0, done.text
    found = json.loads(done.lines[-1])
    assert found["found"] >= 7
    assert found["on_kill"] == (installed.minor >= 3), "the table of docs/airflow.md says it"


def test_airflow_lists_the_package_its_hooks_and_the_fields_of_its_forms(installed):
    def listed(*arguments):
        return json.loads(installed.run("airflow", "providers", *arguments, "-o", "json").lines[-1])

    assert listed("get", "outbox-harvester")[0]["Provider"] == "outbox-harvester"
    hooks = {each["connection_type"]: each["hook_name"] for each in listed("hooks")}
    assert (hooks["outbox"], hooks["dagster"]) == ("Outbox", "Dagster")
    fields = {each["connection_parameter_name"] for each in listed("widgets")}
    known = {"extra__dagster__token", "extra__outbox__outbox_table"}
    assert fields & known == (known if installed.minor >= 2 else set()), "the table of docs/airflow.md says it"


def test_connections_are_tested_from_the_command_line(installed, dsn, bootstrap_servers, group_id):
    with psycopg.connect(dsn) as database:
        NativeTable(outbox=OutboxTable.parse("outbox")).create(database)

    def tested(made):
        return installed.run("airflow", "connections", "test", "tested", AIRFLOW_CONN_TESTED=made)

    with dagster_stub() as stub:
        stub.header = ("Authorization", f"Bearer {CANARY}")
        good, bad = tested(connection(stub, token=CANARY)), tested(connection(stub, token=f"wrong-{CANARY}"))
    assert "Connection success!" in good.text, good.text
    assert "Connection failed!" in bad.text, bad.text
    assert (good.code, bad.code) == (0, int(installed.minor >= 3)), "the table of docs/airflow.md says it"
    assert "HTTP 401" in bad.text
    assert CANARY not in good.text + bad.text
    made = outbox_connection(dsn, bootstrap_servers=bootstrap_servers, leader_group_id=group_id)
    good = tested(json.dumps(made))
    assert "Connection success!" in good.text, good.text
    bad = tested(json.dumps({**made, "extra": {**made["extra"], "outbox_table": "no_such_table"}}))
    assert "Connection failed!" in bad.text, bad.text
    assert "harvest init" in bad.text


def test_a_token_that_others_log_is_masked(installed):
    with dagster_stub() as stub:
        made = connection(stub, token=CANARY)
    added = installed.run("airflow", "connections", "add", "masked", "--conn-json", made)
    assert added.code == 0, added.text
    redact = "airflow.sdk.log" if installed.minor else "airflow.sdk.execution_time.secrets_masker"
    program = LOGGED.replace("airflow.sdk.log", redact).replace('"shop"', '"masked"')
    logged = installed.run("python", "-c", program, CANARY, _AIRFLOW_PROCESS_CONTEXT="server")
    assert logged.code == 0, logged.text
    assert logged.lines[-1] == "a library logs ***"


def test_the_dags_are_imported(ran, installed):
    errors = {name.rpartition("/")[2]: text for name, text in ran.imported["errors"].items()}
    assert set(errors) == (set() if installed.minor >= 3 else OF_EVENTS), "\n".join(errors.values())
    assert {"delivers", "orders_batch", "harvest_nightly_audit"} <= {*ran.imported["dags"]}


def test_a_task_delivers_and_sensors_find_it_delivered_deferred_or_not(ran, bootstrap_servers):
    assert set(ran.shop["tasks"].values()) == {"success"}, ran.shop["log"][-8000:]
    assert ran.shop["returned"]["drain"]["records"] == RECORDS["shop"]
    assert len(read_topic(bootstrap_servers, ran.topics["shop"])) == RECORDS["shop"]
    for until in ("start", "empty"):
        for kind in ("deferred", "poked"):
            assert ran.shop["returned"][f"{until}_{kind}"]["waiting"] == "0"
    assert ran.shop_outbox["tasks"] == {"deliver": "success", "delivered": "success"}, ran.shop_outbox["log"][-8000:]


def test_a_sensor_that_waits_too_long_fails_or_is_skipped(ran):
    assert ran.waiting["tasks"] == {"deferred": "failed", "poked": "failed", "skipped": "skipped"}, ran.waiting["log"]
    assert "the outbox is not delivered in the given time: 3 records wait" in ran.waiting["log"]


def test_a_dagster_job_is_started_and_waited_for(ran):
    assert ran.acme["tasks"] == {"job": "success"}, ran.acme["log"][-8000:]
    assert ran.acme["returned"]["job"]["run_id"] == "run-1"
    assert ran.stub.launched() == 1
    assert CANARY not in ran.acme["log"]


def test_a_triggerer_reads_the_connection_of_the_database_and_hides_its_token(installed):
    """Services of Airflow run the page's first DAG: there a trigger reaches connections through another process."""
    home = installed.home / "services"
    (home / "dags").mkdir(parents=True)
    first, *_ = blocks("docs/airflow-dagster.md", under="# Airflow with Dagster")
    (home / "dags" / "first.py").write_text(first.text.replace('"@once"', "None"))
    ports = keep_ports(home / "ports.json", ["api", "worker", "trigger"])
    url = f"http://127.0.0.1:{ports['api']}"
    changes = {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__API__PORT": str(ports["api"]),
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(ports["worker"]),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(ports["trigger"]),
    }

    def airflow(*arguments):
        done = installed.run("airflow", *arguments, **changes)
        assert done.code == 0, done.text

    def states():
        with sqlite3.connect(f"file:{home / 'airflow.db'}?mode=ro", uri=True) as database:
            return [state for (state,) in database.execute("SELECT state FROM dag_run WHERE dag_id = 'first'")]

    with dagster_stub() as stub, (home / "services.log").open("wb") as log:
        stub.jobs, stub.partitions = {"place": ["flights_load"]}, {"flights_load": ["2013-01-01"]}
        stub.header = ("Authorization", f"Bearer {CANARY}")
        made = connection(stub, token=CANARY)
        airflow("db", "migrate")
        airflow("connections", "add", "dagster_default", "--conn-json", made)
        airflow("dags", "reserialize")
        command = [installed.python, "-m", "airflow", "standalone"]
        variables = {**installed.variables, **changes, "PATH": f"{installed.python.parent}:{os.environ['PATH']}"}
        services = subprocess.Popen(
            command, cwd=home, env=variables, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            eventually(lambda: ask(f"{url}/api/v2/monitor/health"), "the API server answers", seconds=240)
            airflow("dags", "trigger", "first")  # not before: a task that the API server does not answer fails
            # Airflow fails a task whose trigger ends before the scheduler knows that its worker has ended.
            log_file = home / "services.log"
            eventually(lambda: stub.runs and DEFERRED in log_file.read_text(), "the worker is free", seconds=240)
            stub.runs["run-1"]["status"] = "SUCCESS"
            eventually(lambda: states() in (["success"], ["failed"]), "the DAG ends", seconds=240)
        finally:
            os.killpg(services.pid, signal.SIGKILL)
            services.wait(60)
    logs = "".join(file.read_text(errors="replace") for file in home.rglob("*.log"))
    assert (states(), stub.launched()) == (["success"], 1), logs[-8000:]
    assert CANARY not in logs
