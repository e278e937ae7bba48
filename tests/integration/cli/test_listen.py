"""`--listen` of the commands: who is asked, what they say, and what becomes of an address that cannot be had."""

import json
import signal
import socket
import subprocess
import sys

import pytest
from support.scraping import get, scrape
from support.waiting import eventually

pytestmark = pytest.mark.gate


@pytest.fixture
def listening(allowed, tmp_path):
    """Start a command that listens on any port; return its process and where."""
    started = []

    def start(*arguments, **variables):
        log = tmp_path / f"log-{len(started)}"
        command = [sys.executable, "-m", "harvest_lib.cli", *map(str, arguments), "--log-format", "json"]
        with log.open("w") as stderr:
            process = subprocess.Popen(command, env=allowed(*map(str, arguments), **variables), stderr=stderr)
        started.append(process)

        def address():
            events = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
            return next((each["address"] for each in events if each["event"] == "telemetry_served"), None)

        return process, eventually(address, "it listens")

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_harvester_answers_from_before_it_starts_to_its_end(listening, reaper, outbox):
    outbox.fill(50)
    process, address = listening("run", "-f", reaper, HARVEST_LISTEN="127.0.0.1:0")
    eventually(lambda: get(address, "/readyz")[0] == 200, "ready")
    assert get(address, "/livez")[0] == 200
    eventually(lambda: scrape(address)["harvest_delivered_records_total", ("0",)] == 50, "delivered")

    def is_sampled():
        outbox.fill(1)  # one that was purged before it is sampled has no age any more
        return scrape(address)["harvest_delivery_latency_seconds_count", ("0",)] >= 1

    eventually(is_sampled, "sampled")
    assert get(address, "/progress?seconds=60")[0] == 200
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


@pytest.mark.usefixtures("elected")
def test_a_leader_and_a_standby_are_ready(listening, reaper, outbox):
    addresses = [listening("run", "-f", reaper, "--listen", "127.0.0.1:0")[1] for _ in range(2)]

    def roles():
        said = [get(address, "/readyz") for address in addresses]
        return {json.loads(text)["reason"] for status, text in said if status == 200}

    def leaders():
        return sum(scrape(address)["harvest_leader", ("0",)] for address in addresses)

    eventually(lambda: roles() == {"it leads", "it stands by"} and leaders() == 1, "one leads, one stands by")


def test_a_port_that_is_taken_ends_it_before_it_starts(harvest, reaper, outbox):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = harvest("run", "-f", str(reaper), "--listen", f"127.0.0.1:{port}")
    assert ended.returncode == 3
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in ended.stderr
    assert "ss -ltnp" in ended.stderr
    assert "harvester_started" not in ended.stderr
