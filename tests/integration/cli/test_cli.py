"""The commands, as a person runs them: real processes, real servers."""

import json
import re
import signal
import subprocess
import sys

import pytest
from support.outbox import read_topic
from support.waiting import eventually

from harvest_lib import OutboxRecord, append

pytestmark = pytest.mark.gate


def test_init_creates_once_and_prints_what_it_would_do(harvest, reaper, dsn):
    printed = harvest("init", "-f", reaper, "--print")
    assert printed.returncode == 0
    assert "PARTITION BY RANGE (id)" in printed.stdout
    assert "PARTITION BY" not in harvest("init", "-f", reaper, "--print", "--goharvest").stdout
    assert "record      JSONB NOT NULL" in printed.stdout
    created = [f'created: "outbox{suffix}"' for suffix in ("", "_parked", "_subscriptions", "_parked_ids", "_segments")]
    assert harvest("init", "-f", reaper).stdout.splitlines() == created
    assert harvest("init", HARVEST_DSN=dsn).stdout.startswith("already exists and is valid: ")


@pytest.mark.quick
@pytest.mark.usefixtures("elected")
def test_run_delivers_and_ends_cleanly_on_sigterm(harvest, reaper, outbox, bootstrap_servers, allowed, tmp_path):
    outbox.fill(500)
    log = tmp_path / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "harvest_lib.cli", "run", "-f", reaper, "--log-format", "json"],
            stderr=stderr,
            env=allowed("run", "-f", reaper),
        )
    try:
        eventually(lambda: outbox.count() == 0, "delivered")
        status = json.loads(harvest("status", "-f", reaper, "--json").stdout)
        assert status["backlog_records"] == 0
        assert status["members"] == 1
        assert status["leader"].endswith("@127.0.0.1")
        assert str(process.pid) in status["leader"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    events = [json.loads(line) for line in log.read_text().splitlines()]
    names = [event["event"] for event in events]
    assert "harvester_started" in names
    assert "leader_acquired" in names
    assert names[-2:] == ["leader_revoked", "harvester_stopped"]
    assert len(read_topic(bootstrap_servers, outbox.topic)) == 500


@pytest.mark.usefixtures("elected")
def test_status_without_a_leader_shows_what_waits(harvest, reaper, outbox):
    outbox.fill(7)
    shown = harvest("status", "-f", reaper)
    assert shown.returncode == 0
    assert "7 records" in shown.stdout
    assert "nobody" in shown.stdout


def test_run_drain_says_what_it_did(harvest, reaper, outbox):
    outbox.fill(100)
    assert harvest("run", "-f", reaper, "--drain").stdout.startswith("100 records in")


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (("outboxTable: outbox", "outboxTabel: outbox"), 3, ["line 12", "outboxTabel", "outboxTable"]),
        (("maxInFlightRecords: 1000", "maxInFlightRecords: none"), 3, ["line 16", "maxInFlightRecords"]),
        (("outboxTable: outbox", "outboxTable: absent"), 4, ["harvest init"]),
        ((r"port=\d+", "port=1"), 5, ["does not answer", "next step"]),
        (("bootstrap.servers: 127", "bootstrap.servers: 127.0.0.1:1 #"), 6, ["127.0.0.1:1", "next step"]),
    ],
)
def test_errors_name_the_cause_and_have_their_exit_code(harvest, reaper, outbox, change, code, words):
    text = reaper.read_text()
    assert re.search(change[0], text)
    reaper.write_text(re.sub(change[0], change[1], text))
    done = harvest("run", "-f", reaper)
    assert done.returncode == code, done.stderr
    assert not [word for word in words if word not in done.stderr], done.stderr
    assert "Traceback" not in done.stderr


def test_a_harvester_that_dies_shows_no_payload(harvest, reaper, outbox):
    """I10. The log shows where it died, not what it held."""
    append(outbox.connection, [OutboxRecord(topic=outbox.topic, key="k", value="canary-payload")])
    # Postgres quotes the whole row when it refuses to mark it.
    outbox.connection.execute("ALTER TABLE outbox ADD CONSTRAINT too_long CHECK (length(kafka_value) < 3) NOT VALID")
    for log_format in ("console", "json"):
        died = harvest("run", "-f", reaper, "--log-format", log_format)
        assert died.returncode == 5
        assert "too_long" in died.stderr
        assert "canary" not in died.stderr
        assert outbox.connection.info.password not in died.stderr


@pytest.mark.full
def test_a_drain_ends_cleanly_on_sigterm(reaper, outbox, allowed):
    outbox.fill(200_000)
    process = subprocess.Popen(
        [sys.executable, "-m", "harvest_lib.cli", "run", "-f", reaper, "--drain"], env=allowed("run", "-f", reaper)
    )
    try:
        eventually(lambda: outbox.count() < 199_000, "busy")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert outbox.count() > 0
    assert outbox.leaders() == set()
