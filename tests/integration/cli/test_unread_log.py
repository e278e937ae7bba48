"""A log that nobody reads holds nothing up: neither the work nor the end of a process."""

import json
import signal
import subprocess
import sys

import psycopg
import pytest
from confluent_kafka import Producer
from support.unread import unread_pipe
from support.waiting import eventually

from harvest_lib.consume import create_tables

pytestmark = pytest.mark.gate

ROWS = 20
PIPELINE = """\
folder: folder
reader: {{adaptor: file, path: {folder}/in.jsonl, content: data, namespace: flights, follow: true}}
writers:
  plain: {{adaptor: file, path: "{folder}/out.jsonl"}}
"""


def works_and_ends(module, arguments, environment, is_done):
    """Run a program whose log has no room for a byte from the beginning, until its work is done; end it."""
    with unread_pipe() as log:
        process = subprocess.Popen([sys.executable, "-m", module, *arguments], env=environment, stderr=log.writes)
        try:
            eventually(is_done, f"{module} works")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()


def test_a_harvester_delivers_and_ends(allowed, reaper, outbox):
    outbox.fill(ROWS)
    arguments = ("run", "-f", str(reaper))
    works_and_ends("harvest_lib.cli", arguments, allowed(*arguments), lambda: not outbox.count())


def test_a_pipeline_writes_and_ends(environment, tmp_path):
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"n": number}) + "\n" for number in range(ROWS)))
    file, out = tmp_path / "flights.yaml", tmp_path / "out.jsonl"
    file.write_text(PIPELINE.format(folder=tmp_path))
    arguments = ("pipeline", "run", "-f", str(file))
    works_and_ends(
        "harvest_lib.cli", arguments, environment, lambda: out.exists() and len(out.read_text().splitlines()) == ROWS
    )


def test_a_consumer_consumes_and_ends(environment, dsn, bootstrap_servers, make_topic, unique):
    topic = make_topic()
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for _ in range(ROWS):
        producer.produce(topic, b"{}", key=b"N1")
    assert producer.flush(60) == 0
    create_tables(dsn)
    servers = {"HARVEST_DSN": dsn, "HARVEST_BOOTSTRAP_SERVERS": bootstrap_servers}
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE flight_counts (key TEXT PRIMARY KEY, flights BIGINT NOT NULL)")
        seen = connection.execute
        works_and_ends(
            "harvest_lib.examples.flight_counts",
            ("--topic", topic, "--name", unique("flights")),
            {**environment, **servers},
            lambda: seen("SELECT sum(flights) FROM flight_counts").fetchone()[0] == ROWS,
        )


def test_an_error_that_ends_a_command_does_not_wait_for_the_reader(environment, tmp_path):
    """After the log has begun: the folder of a pipeline that cannot be made."""
    (tmp_path / "folder").write_text("no folder")
    (tmp_path / "in.jsonl").write_text("")
    file = tmp_path / "flights.yaml"
    file.write_text(PIPELINE.format(folder=tmp_path).replace("folder: folder", f"folder: {tmp_path}/folder"))
    command = [sys.executable, "-m", "harvest_lib.cli", "pipeline", "run", "-f", str(file), "--log-level", "debug"]
    with unread_pipe() as log:
        process = subprocess.Popen(command, env=environment, stderr=log.writes)
        try:
            assert process.wait(60) > 0
        finally:
            process.kill()
            process.wait()
