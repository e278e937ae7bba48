"""The lines of a log that say why a server ended."""

import os
import signal
from pathlib import Path

import pytest
from support.waiting import eventually

from harvest_lib.errors import StackError
from harvest_lib.local_stack.log_evidence import telling
from harvest_lib.local_stack.process import ServerProcess

pytestmark = pytest.mark.gate

KAFKA = """\
2026-11-25 19:22:54.600 [main] INFO kafka.server.BrokerServer - Waiting for the broker to be unfenced
2026-11-25 19:22:54.666 [main] ERROR kafka.network.DataPlaneAcceptor - Unable to start acceptor for PLAIN
org.apache.kafka.common.KafkaException: Socket server failed to bind to 127.0.0.1:31769: Address already in use.
\tat org.apache.kafka.server.ServerSocketFactory.openServerSocket(ServerSocketFactory.java:58)
Caused by: java.net.BindException: Address already in use
2026-11-25 19:22:55.581 [main] ERROR kafka.Kafka$ - Exiting Kafka due to fatal exception during startup.
Caused by: java.net.BindException: Address already in use
2026-11-25 19:22:55.841 [registration] INFO kafka.server.ControllerRegistrationManager - shutting down.
2026-11-25 19:22:55.849 [kafka-shutdown-hook] WARN org.apache.kafka.clients.NetworkClient - Attempting to close
2026-11-25 19:22:55.930 [kafka-shutdown-hook] INFO kafka.server.KafkaRequestHandlerPool - shutting down
2026-11-25 19:22:55.947 [kafka-shutdown-hook] INFO kafka.server.KafkaRequestHandlerPool - shut down completely
2026-11-25 19:22:55.981 [kafka-shutdown-hook] INFO kafka.server.SharedServer - Stopping SharedServer
"""


def test_the_errors_of_a_log_are_shown_and_not_the_shutdown_after_them():
    said = telling(KAFKA).split(" | ")
    assert "Unable to start acceptor for PLAIN" in said[0]
    assert "failed to bind to 127.0.0.1:31769: Address already in use" in said[1]
    assert "Exiting Kafka due to fatal exception" in said[-1]
    assert len(said) == len(set(said)) == 4
    assert "shutdown-hook" not in "".join(said)


def test_of_many_errors_the_first_and_the_last_are_shown():
    said = telling(
        "\n".join(f"2026-11-25 19:22:54.{number} UTC [7] FATAL:  error {number}" for number in range(100, 200))
    )
    assert [part[-3:] for part in said.split(" | ")] == ["100", "101", "102", "198", "199"]


@pytest.mark.parametrize(("log", "shown"), [("one\ntwo\n\n", "one | two"), ("", "its log is empty")])
def test_a_log_without_errors_is_shown_by_its_end(log, shown):
    assert telling(log) == shown


def test_a_log_of_an_earlier_start_says_nothing_of_this_one(tmp_path):
    log = tmp_path / "some.log"
    server = ServerProcess("some", log=log, stop_signals={signal.SIGTERM: 1})
    server.spawn([Path("/bin/sh"), "-c", "echo FATAL: Address already in use"], environment=os.environ)
    eventually(lambda: server.pid is None, "it ended")
    assert server.found_port_taken
    server.spawn([Path("/bin/sh"), "-c", "echo FATAL: something else; exit 3"], environment=os.environ)
    with pytest.raises(StackError, match="exit code 3") as raised:
        server.await_ready(lambda: False, seconds=60)
    assert raised.value.evidence == "FATAL: something else"
    assert not server.found_port_taken
