"""The examples of the documentation, run as a reader would: as processes, against real servers, ended by a signal."""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from support.outbox import read_topic
from support.waiting import eventually
from support.walkthrough import tools

from harvest_lib import Harvest, HarvestConfig, OutboxRecord, append
from harvest_lib.errors import ConfigError
from harvest_lib.outbox import NativeTable, OutboxTable

pytestmark = pytest.mark.gate

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
SECRET = "s3cr3t-canary"


class Example:
    """One example as a process; its output and its log are in files."""

    def __init__(self, folder, name, *arguments, environment):
        self._printed, self._logged = folder / "printed.txt", folder / "logged.txt"
        with self._printed.open("w") as printed, self._logged.open("w") as logged:
            self.process = subprocess.Popen(
                [sys.executable, str(EXAMPLES / name), *arguments], stdout=printed, stderr=logged, env=environment
            )

    @property
    def text(self):
        return self._printed.read_text()

    @property
    def log(self):
        return self._logged.read_text()

    def says(self, *words, seconds=60):
        """Wait until it has said all of it."""

        def said():
            assert self.process.poll() is None, self.log
            return all(word in self.text for word in words)

        eventually(said, f"{words} in what it says", seconds=seconds)

    def end(self, number):
        self.process.send_signal(number)
        return self.process.wait(60)


@pytest.fixture
def run(dsn, bootstrap_servers, tmp_path):
    started = []

    def start(name, *arguments, **variables):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HARVEST_")}
        environment |= {"HARVEST_DSN": dsn, "HARVEST_BOOTSTRAP_SERVERS": bootstrap_servers, **variables}
        example = Example(tmp_path, name, *arguments, environment=environment)
        started.append(example.process)
        return example

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()


def arrives(bootstrap_servers, outbox, records):
    """Wait until so many records of an outbox are in Kafka, and out of the table."""
    eventually(lambda: outbox.count() == 0, "the outbox is empty")
    found = read_topic(bootstrap_servers, outbox.topic)
    assert len(found) == records
    return found


def test_basic(run, dsn, bootstrap_servers, make_topic):
    topic = make_topic()
    example = run("basic.py", topic)
    eventually(lambda: read_topic(bootstrap_servers, topic), "the record arrives")
    (record,) = read_topic(bootstrap_servers, topic)
    assert (record.key, record.value, record.headers) == ("o-1", '{"state": "placed"}', [("event", b"placed")])
    with psycopg.connect(dsn, autocommit=True) as connection:
        waiting = connection.execute
        eventually(lambda: waiting("SELECT count(*) FROM outbox").fetchone() == (0,), "it is purged")
        assert connection.execute("SELECT id, state FROM orders").fetchall() == [("o-1", "placed")]
    assert example.end(signal.SIGTERM) == 0
    assert example.text.splitlines() == ["harvesting", "stopped, 1 delivered"]


def test_consumer(run, dsn, bootstrap_servers, make_topic):
    topic = make_topic(partitions=2)
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for number in range(30):
        producer.produce(topic, b'{"state": "placed"}' if number % 3 else b'{"state": "paid"}', key=str(number))
    producer.produce(topic, b"not JSON", key="bad")
    assert producer.flush(60) == 0
    example = run("consumer.py", topic)
    example.says("consuming")
    with psycopg.connect(dsn, autocommit=True) as connection:

        def counted():
            return dict(connection.execute("SELECT state, orders FROM states").fetchall()) == {"placed": 20, "paid": 10}

        eventually(counted, "the orders are counted")
        parked = "SELECT key FROM consumers_parked"
        eventually(lambda: connection.execute(parked).fetchall() == [(b"bad",)], "the bad one is parked")
    assert example.end(signal.SIGTERM) == 0
    assert example.text.splitlines() == ["consuming", "stopped"]


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("with_structlog", [False, True], ids=["standard", "structlog"])
def test_custom_logger(run, outbox, bootstrap_servers, with_structlog):
    outbox.fill(1)
    example = run("custom_logger.py", *(["--structlog"] if with_structlog else []))
    (record,) = arrives(bootstrap_servers, outbox, 1)
    assert example.end(signal.SIGINT) == 0
    if with_structlog:
        lines = [json.loads(line) for line in example.log.splitlines()]
        (acquired,) = [line for line in lines if line["event"] == "leader_acquired"]
        assert acquired == {"event": "leader_acquired", "level": "info", "leader_id": str(record.leader_id)}
        assert [line["delivered"] for line in lines if line["event"] == "harvester_stopped"] == [1]
    else:
        expected = f"INFO [harvest_lib.harvester.harvest] leader_acquired leader_id={record.leader_id}"
        assert [line for line in example.log.splitlines() if line.endswith(expected)]
        assert "[harvest_lib.harvester.harvest] harvester_stopped delivered=1" in example.log


@pytest.mark.full  # it stands still for longer than its heartbeats may
def test_every_event_is_shown(run, outbox, bootstrap_servers):
    """Acquired, then fenced by a freeze, refreshed by a connection that is cut, revoked by the end."""
    outbox.fill(3)
    example = run(
        "events.py",
        HARVEST_LIMITS__HEARTBEAT_TIMEOUT_SECONDS="4s",
        HARVEST_LIMITS__MIN_METRICS_INTERVAL_SECONDS="0s",
    )
    example.says("leader acquired: ", "meter read: throughput, ", " 3 in all at ")
    arrives(bootstrap_servers, outbox, 3)
    before = example.text.count("leader acquired")
    example.process.send_signal(signal.SIGSTOP)
    with pytest.raises(subprocess.TimeoutExpired):
        example.process.wait(5.0)  # longer than the heartbeat timeout, and shorter than the session timeout
    example.process.send_signal(signal.SIGCONT)
    example.says("leader fenced")
    eventually(lambda: example.text.count("leader acquired") > before, "it leads again")
    outbox.fill(1)
    arrives(bootstrap_servers, outbox, 4)  # over a connection that it has by then
    outbox.connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    example.says("leader refreshed: ")
    assert example.end(signal.SIGTERM) == 0
    assert example.text.splitlines()[-1] == "leader revoked"


@pytest.fixture
def sasl_ssl(monkeypatch):
    """The example's module, with secrets in the environment."""
    monkeypatch.setenv("KAFKA_USERNAME", "alice")
    monkeypatch.setenv("KAFKA_PASSWORD", SECRET)
    monkeypatch.setenv("HARVEST_DSN", f"host=localhost dbname=shop user=harvester password={SECRET}")
    monkeypatch.delenv("HARVEST_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.delenv("KAFKA_CA", raising=False)
    spec = importlib.util.spec_from_file_location("sasl_ssl", EXAMPLES / "sasl_ssl.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_sasl_ssl_is_a_configuration(sasl_ssl):
    config = sasl_ssl.make_config()
    assert isinstance(config, HarvestConfig)
    base = {
        "bootstrap.servers": "localhost:9094",
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": "ca-cert.pem",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": SECRET,
    }
    assert config.kafka_settings(for_producer=False) == base
    assert config.kafka_settings(for_producer=True) == {**base, "compression.type": "lz4"}
    assert SECRET in config.data_source.conninfo()


def test_sasl_ssl_shows_no_secret(sasl_ssl):
    """I10."""
    config = sasl_ssl.make_config()
    for shown in (repr(config), str(config), str(config.redacted()), str(config.model_dump())):
        assert SECRET not in shown
        assert "SCRAM-SHA-512" in shown
    assert SECRET not in (EXAMPLES / "sasl_ssl.py").read_text()


def test_librdkafka_takes_the_settings_of_sasl_ssl(sasl_ssl, monkeypatch, tmp_path):
    """All but the certificate, which is not there."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"ssl\.ca\.location") as refused:
        Harvest(sasl_ssl.make_config())
    assert SECRET not in str(refused.value)


@pytest.fixture
def typed(dsn, bootstrap_servers, tmp_path):
    """Run a shell script of the examples on a native outbox whose configuration is in `harvest.yaml`."""
    folder = tools(tmp_path / "bin")
    config = {"leaderGroupID": "examples", "dataSource": dsn, "source": "snapshot", "leadership": "solo"}
    written = {"harvest": {**config, "baseKafkaConfig": {"bootstrap.servers": bootstrap_servers}}}
    (tmp_path / "harvest.yaml").write_text(json.dumps(written))
    with psycopg.connect(dsn, autocommit=True) as connection:
        NativeTable(outbox=OutboxTable(("outbox",))).create(connection)

    def run(name, *arguments):
        return subprocess.run(
            ["sh", str(EXAMPLES / name), "harvest.yaml", *arguments],
            env={**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"},
            cwd=tmp_path,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=240,
            check=False,
        )

    yield run
    shutil.rmtree(folder)


def appended(dsn, *records):
    with psycopg.connect(dsn) as connection:
        append(connection, records)


def drained(bootstrap_servers, dsn, **settings):
    config = HarvestConfig(
        leader_group_id="examples",
        data_source=dsn,
        base_kafka_config={"bootstrap.servers": bootstrap_servers},
        source="snapshot",
        leadership="solo",
        **settings,
    )
    return Harvest(config).drain(60).records


@pytest.mark.full
def test_parking(typed, dsn, bootstrap_servers, make_topic):
    """The topic is created between the first delivery and the script."""
    topic = f"late-{uuid.uuid4().hex[:8]}"
    appended(
        dsn, *(OutboxRecord(topic=topic, key=key, value=value) for key, value in [("a", "1"), ("a", "2"), ("b", "3")])
    )
    assert drained(bootstrap_servers, dsn) == 0
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for future in admin.create_topics([NewTopic(topic, 1, 1)]).values():
        future.result(60)
    done = typed("parking.sh", topic)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("the topic does not exist") >= 2
    assert "held behind" in done.stdout
    assert drained(bootstrap_servers, dsn) == 3
    found = read_topic(bootstrap_servers, topic, isolation="read_committed")
    assert {key: [each.value for each in found if each.key == key] for key in "ab"} == {"a": ["1", "2"], "b": ["3"]}


@pytest.mark.full
def test_subscriptions(typed, dsn):
    """From now on nothing waits; from the beginning the one record that is there does."""
    appended(dsn, OutboxRecord(topic="orders", key="o-1", value="v"), OutboxRecord(topic="refunds", key="r", value="v"))
    done = typed("subscriptions.sh", "lake", "orders")
    assert done.returncode == 0, done.stdout
    assert re.findall(r"│ (\d+) record", done.stdout) == ["0", "1"]
    assert "removed: lake" in done.stdout
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT count(*) FROM outbox_subscriptions").fetchone() == (0,)


def test_pipeline(dsn, tmp_path):
    with psycopg.connect(dsn, autocommit=True) as connection:
        NativeTable(outbox=OutboxTable(("outbox",))).create(connection)
    records = [("orders", "o-1"), ("refunds", "r-1"), ("orders", "o-2")]
    appended(dsn, *(OutboxRecord(topic=topic, key=key, value={"state": "placed"}) for topic, key in records))
    shutil.copy(EXAMPLES / "pipeline.yaml", tmp_path)
    variables = {**os.environ, "HARVEST_DSN": dsn, "LINES": str(tmp_path / "lines.json")}
    command = [sys.executable, "-m", "harvest_lib.cli", "pipeline"]
    subprocess.run([*command, "check", "pipeline.yaml"], cwd=tmp_path, env=variables, check=True, timeout=120)
    running = subprocess.Popen([*command, "run", "-f", "pipeline.yaml"], cwd=tmp_path, env=variables)
    try:
        lines = tmp_path / "lines.json"
        eventually(lambda: lines.exists() and lines.read_text().count("\n") == 2, "both orders are written")
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0
    finally:
        running.kill()
        running.wait()
    assert [json.loads(line)["key"] for line in lines.read_text().splitlines()] == ["o-1", "o-2"]
