"""The probe of Kafka, on a real broker, on one that restarts, and on an address where nobody listens."""

import os
import socket
import subprocess
import sys
from contextlib import closing

import pytest
from support.clock import Clock
from support.waiting import eventually

from harvest_lib.leadership.kafka_probe import KafkaProbe

pytestmark = pytest.mark.gate


@pytest.fixture
def nobody():
    """An address that is taken, and where nobody listens."""
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def test_a_broker_answers(bootstrap_servers):
    clock = Clock()
    probe = KafkaProbe({"bootstrap.servers": bootstrap_servers}, clock)
    assert eventually(lambda: probe.trouble() == "", "it answers")
    clock.now += 100
    assert probe.silent_seconds() == 0.0


def test_nobody_answers(nobody):
    clock = Clock()
    probe = KafkaProbe({"bootstrap.servers": nobody}, clock)
    assert probe.silent_seconds() == 0.0, "it was just asked"
    clock.now += 5
    eventually(lambda: probe.silent_seconds() == 5.0, "the time counts from the question")
    clock.now += 5
    assert "Kafka does not answer" in probe.trouble()
    eventually(lambda: probe.silent_seconds() == 10.0, "and not from a later one")


ASKED_AS_IT_RESTARTS = """
import sys
from support.clock import Clock
from support.restarting_broker import RestartingBroker
from harvest_lib.leadership.kafka_probe import KafkaProbe

broker, clock = RestartingBroker(int(sys.argv[1])), Clock()
probe = KafkaProbe({"bootstrap.servers": broker.servers}, clock)
for _ in range(6):
    probe.trouble()
    clock.now += 5
print(broker.asked)
"""


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("nth", [2, 3, 4, 5])
def test_a_broker_that_restarts_does_not_end_the_process(nth):
    """librdkafka aborts where a description of the cluster names neither brokers nor topics."""
    program = [sys.executable, "-c", ASKED_AS_IT_RESTARTS, str(nth)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    asked = subprocess.run(program, check=True, timeout=120, stdout=subprocess.PIPE, env=environment).stdout
    assert int(asked) > nth
