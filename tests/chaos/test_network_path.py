"""The network path between a harvester and its servers."""

import json
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from support.machine import require
from support.waiting import eventually

from infra.chaos.faults import FAULTS
from infra.chaos.link import Direction
from infra.chaos.namespaces import networks_lacking, run
from infra.chaos.network_path import FAR, NEAR, network_paths

pytestmark = pytest.mark.full

SHORT = 0.3
LONG = 10  # lost packets are sent again, at intervals that double


@pytest.fixture(autouse=True)
def possible():
    require(networks_lacking(), "ip")


@pytest.fixture
def path():
    with network_paths(1) as (made,):
        yield made


@pytest.fixture
def ends(path):
    """The two ends of a connection: the harvester's, and the servers'."""
    with ExitStack() as opened:
        with path.at_servers():
            listener = opened.enter_context(socket.create_server((NEAR, 0)))
        with path.at_harvester():
            far = opened.enter_context(socket.create_connection(listener.getsockname(), timeout=5))
        near = opened.enter_context(listener.accept()[0])
        yield far, near


def arrives(sender, receiver, text, *, seconds):
    sender.sendall(text)
    receiver.settimeout(seconds)
    try:
        return receiver.recv(100) == text
    except TimeoutError:
        return False


def test_it_leads_there_and_nowhere_else(path, ends):
    far, near = ends
    assert far.getsockname()[0] == FAR
    assert arrives(far, near, b"a", seconds=LONG)
    assert arrives(near, far, b"b", seconds=LONG)
    with socket.create_server(("127.0.0.1", 0)) as ours, path.at_harvester(), pytest.raises(OSError, match="refused"):
        socket.create_connection(ours.getsockname(), timeout=5)


@pytest.mark.parametrize("direction", [Direction.TO_SERVER, Direction.TO_CLIENT, Direction.BOTH])
def test_packets_are_lost_and_come_again_once_it_is_healed(path, ends, direction):
    far, near = ends
    path.lose(direction)
    lost = [(far, near)] if Direction.TO_SERVER in direction else []
    lost += [(near, far)] if Direction.TO_CLIENT in direction else []
    for sender, receiver in lost:
        assert not arrives(sender, receiver, b"lost", seconds=SHORT)
    if direction is Direction.TO_SERVER:
        assert arrives(near, far, b"not lost", seconds=LONG)
    path.heal()
    for _, receiver in lost:
        receiver.settimeout(LONG)
        assert receiver.recv(100) == b"lost"


def test_where_it_is_narrow_much_queues(path, ends):
    require(FAULTS["network-narrow"].needs(), "tc")
    far, near = ends
    path.narrow()
    large, found = bytes(64_000), 0
    sender = threading.Thread(target=far.sendall, args=(large,))
    sender.start()
    near.settimeout(LONG)
    while found < len(large):
        found += len(near.recv(100_000))
    sender.join()
    (queue,) = shaping(path)
    assert (queue["kind"], queue["overlimits"] > 0) == ("tbf", True)
    path.heal()
    (queue,) = shaping(path)
    assert queue["kind"] == "pfifo"


def shaping(path):
    """Return what shapes the packets that leave the far end, as `tc` counts it."""
    with path.at_harvester():
        said = run("tc", "-s", "-j", "qdisc", "show", "dev", "path")
    return json.loads(said)


HOLDER = """
import os, time
from infra.chaos.network_path import NetworkPath
path = NetworkPath()
with path.at_harvester():
    print(os.readlink("/proc/thread-self/ns/net"), flush=True)
time.sleep(60)
"""


def test_nothing_is_left_of_it_when_we_are_killed():
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True) as holder:
        namespace = holder.stdout.readline().strip()
        assert namespace.startswith("net:[")
        assert namespace in listed(), "it is there as long as it is held"
        holder.send_signal(signal.SIGKILL)
    eventually(lambda: namespace not in listed(), "the kernel has taken it down")


def listed():
    """Return the network namespaces that somebody is in or holds."""
    found = set()
    for pattern in ("[0-9]*/ns/net", "[0-9]*/fd/*"):
        for place in Path("/proc").glob(pattern):
            with suppress(OSError):
                found.add(str(place.readlink()))
    return found
