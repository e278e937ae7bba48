"""The stretch of network that breaks on demand."""

import asyncio
import socket
import threading

import pytest
from support.waiting import eventually

from infra.chaos.link import Direction, Links

pytestmark = pytest.mark.full


class Echo:
    """A server that sends back what it gets."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.heard = b""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with connection:
            while data := connection.recv(65_536):
                self.heard += data
                connection.sendall(data)


@pytest.fixture
def echo():
    made = Echo()
    yield made
    made.listener.close()


@pytest.fixture
def link(echo):
    with Links() as links:
        made = links.add()
        made.forward_to("127.0.0.1", echo.port)
        yield made


@pytest.fixture
def client(link):
    with socket.create_connection(("127.0.0.1", link.port), timeout=60) as connection:
        yield connection


def said(client, text, *, seconds=60.0):
    """Send, and return what comes back within so many seconds."""
    client.settimeout(seconds)
    client.sendall(text)
    found = b""
    try:
        while len(found) < len(text):
            if not (more := client.recv(65_536)):
                break
            found += more
    except TimeoutError:
        pass
    return found


def test_it_carries_both_ways(client):
    large = b"x" * 1_000_000
    sender = threading.Thread(target=client.sendall, args=(large,))
    sender.start()
    found = 0
    while found < len(large):
        found += len(client.recv(65_536))
    sender.join()
    assert said(client, b"hello") == b"hello"


def is_ended(client):
    """Return True if the other side ends the connection, in whatever way."""
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


def test_cut_ends_connections_and_new_ones(link, client):
    assert said(client, b"a") == b"a"
    link.cut()
    assert is_ended(client)
    with socket.create_connection(("127.0.0.1", link.port), timeout=60) as again:
        assert is_ended(again)
    link.heal()
    with socket.create_connection(("127.0.0.1", link.port), timeout=60) as again:
        assert said(again, b"c") == b"c"


@pytest.mark.parametrize(
    ("direction", "arrives"), [(Direction.TO_SERVER, b""), (Direction.TO_CLIENT, b"b"), (Direction.BOTH, b"")]
)
def test_held_in_one_direction_it_is_half_open(link, client, echo, direction, arrives):
    assert said(client, b"a") == b"a"
    link.hold(direction)
    assert said(client, b"b", seconds=0.3) == b""
    eventually(lambda: echo.heard == b"a" + arrives, "one direction carries on, or none does")
    link.heal()
    assert client.recv(1) == b"b", "what was held comes"


def test_delay_is_each_way(link, client, monkeypatch):
    waited, sleep = [], asyncio.sleep

    async def noted(seconds):
        waited.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", noted)
    link.delay(0.1)
    assert said(client, b"a") == b"a"
    assert waited == [0.1, 0.1]


def test_where_nothing_listens_a_connection_ends(link):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    link.forward_to("127.0.0.1", port)
    with socket.create_connection(("127.0.0.1", link.port), timeout=60) as client:
        assert is_ended(client)


def test_nothing_listens_once_it_has_ended():
    with Links() as links:
        port = links.add().port
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=60)
