"""Servers whose port another process takes between the choice and the start."""

import socket
from contextlib import ExitStack, contextmanager

import psycopg
import pytest
from support.waiting import eventually

from harvest_lib.errors import StackError
from harvest_lib.local_stack import kafka, postgres
from harvest_lib.local_stack.kafka import KafkaCluster
from harvest_lib.local_stack.ports import keep_ports
from harvest_lib.local_stack.postgres import PostgresServer

pytestmark = pytest.mark.full


@contextmanager
def taken(*ports):
    """Listen on ports as a foreign server does, which reserved nothing."""
    with ExitStack() as held:
        for port in ports:
            held.enter_context(socket.create_server(("127.0.0.1", port)))
        yield


@pytest.fixture
def cluster(tmp_path, parts):
    made = KafkaCluster(tmp_path, parts=parts, detours={"detour": ["127.0.0.1:1"]})
    yield made
    made.kill()


@pytest.mark.parametrize("role", ["plain", "controller", "detour"])
def test_kafka_starts_on_another_port(role, cluster):
    cluster.prepare()
    before = dict(cluster.ports)
    with taken(before[f"{role}-1"]):
        cluster.spawn()
        cluster.await_ready()
        eventually(cluster.answers, "all brokers answer")
        assert cluster.ports == before | {f"{role}-1": cluster.ports[f"{role}-1"]}
        assert cluster.ports != before
        socket.create_connection(("127.0.0.1", cluster.ports["detour-1"]), timeout=60).close()


def test_kafka_whose_port_clients_know_says_who_has_it(cluster):
    cluster.start()
    before = dict(cluster.ports)
    cluster.kill()
    with taken(before["plain-1"]):
        cluster.start_broker(1)
        with pytest.raises(StackError, match="another process has a port of it") as raised:
            cluster.await_ready()
    assert f"port {before['plain-1']} is taken by " in raised.value.evidence
    assert "Address already in use" in raised.value.evidence
    assert cluster.ports == before
    cluster.start_broker(1)
    cluster.await_ready()
    assert cluster.ports == before


def test_kafka_whose_ports_are_always_taken_gives_up(cluster, monkeypatch):
    """The third time: `prepare` finds a port free that is not."""
    cluster.prepare()
    ports = dict(cluster.ports)
    monkeypatch.setattr(kafka, "keep_ports", lambda *_: ports)
    with taken(ports["plain-1"]):
        cluster.spawn()
        with pytest.raises(StackError, match="another process has a port of it"):
            cluster.await_ready()
    assert cluster.brokers[0].log.read_text().count("Exiting Kafka due to fatal exception") == 3


def test_another_kafka_on_the_port_is_not_taken_for_ours(cluster, tmp_path, parts):
    cluster.start()
    other = KafkaCluster(tmp_path / "other", parts=parts)
    other.prepare()
    other.ports = {**other.ports, "plain-1": cluster.port(1)}
    eventually(cluster.answers, "all brokers answer")
    assert not other.answers()
    other.stop()


def test_postgres_starts_on_another_port(tmp_path, monkeypatch):
    with ExitStack() as held:
        chosen = []

        def choose(file, names):
            made = keep_ports(file, names)
            if not chosen:
                held.enter_context(taken(made["postgres"]))
            chosen.append(made["postgres"])
            return made

        monkeypatch.setattr(postgres, "keep_ports", choose)
        server = PostgresServer(tmp_path, durable=False)
        held.callback(server.stop)
        server.start()
        assert len(set(chosen)) == 2
        assert server.port == chosen[-1]
        with psycopg.connect(server.dsn) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_postgres_whose_port_is_always_taken_gives_up(tmp_path, monkeypatch):
    port = keep_ports(tmp_path / "ports.json", ["postgres"])["postgres"]
    monkeypatch.setattr(postgres, "keep_ports", lambda *_: {"postgres": port})
    server = PostgresServer(tmp_path, durable=False)
    with taken(port), pytest.raises(StackError, match="ended while it started") as raised:
        server.start()
    assert "Address already in use" in raised.value.evidence
    assert server.pid is None
    assert server.log.read_text().count("could not create any TCP/IP sockets") == 3
