"""A network path between a harvester and its servers: two network namespaces, and a pair of devices between them.

The harvester is at the far end and has no other network. Listeners for it are made at the near end, as sockets belong
to the network they were made in. Packets are lost by a wrong hardware address: the kernel sends them, and their
receiver drops them; each direction can be cut alone. Neither end is connected to the machine's own network. The kernel
removes both when no process holds them, however the run ends.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from infra.chaos.link import Direction
from infra.chaos.namespaces import Network

NEAR, FAR = "198.18.0.1", "198.18.0.2"
"""Addresses for measuring networks (RFC 2544)."""
_HARDWARE = {NEAR: "02:00:00:00:00:01", FAR: "02:00:00:00:00:02"}
_NOBODY = "02:00:00:00:00:99"
_DEVICE = "path"
_NARROW = ("tbf", "rate", "256kbit", "burst", "8kb", "latency", "200ms")
_SLOW = ("netem", "delay", "80ms", "40ms", "loss", "2%")


class NetworkPath:
    """One network path. Raises CalledProcessError or OSError where it cannot be made."""

    def __init__(self) -> None:
        self._near, self._far = Network(), Network()
        self._is_shaped = False
        self._ends = ((self._near, NEAR, FAR), (self._far, FAR, NEAR))
        self._near.ip("link", "add", _DEVICE, "type", "veth", "peer", "name", "far")
        self._far.adopt("far", of=self._near)
        self._far.ip("link", "set", "far", "name", _DEVICE)
        for network, own, other in self._ends:
            network.ip("link", "set", "lo", "up")
            network.ip("link", "set", _DEVICE, "address", _HARDWARE[own], "up")
            network.ip("address", "add", f"{own}/30", "dev", _DEVICE)
            _send(network, other, _HARDWARE[other])

    def at_servers(self) -> AbstractContextManager[None]:
        """Put the calling thread at the near end, for listeners."""
        return self._near.inside()

    def at_harvester(self) -> AbstractContextManager[None]:
        """Put the calling thread at the far end, for processes it starts."""
        return self._far.inside()

    def lose(self, direction: Direction = Direction.BOTH) -> None:
        """Drop all packets in these directions."""
        if Direction.TO_SERVER in direction:
            _send(self._far, NEAR, _NOBODY)
        if Direction.TO_CLIENT in direction:
            _send(self._near, FAR, _NOBODY)

    def narrow(self) -> None:
        """Queue packets at 32 KB/s in each direction, and drop packets that would wait longer than 200 ms."""
        self._shape(_NARROW)

    def slow(self) -> None:
        """Delay packets by 80 ms, give or take 40, in each direction, and drop every fiftieth."""
        self._shape(_SLOW)

    def heal(self) -> None:
        """Undo all of it."""
        for network, _, other in self._ends:
            _send(network, other, _HARDWARE[other])
        if self._is_shaped:
            self._shape(("pfifo",))
            self._is_shaped = False

    def close(self) -> None:
        """Let go of it."""
        self._near.close()
        self._far.close()

    def _shape(self, how: tuple[str, ...]) -> None:
        self._is_shaped = True
        for network, _, _ in self._ends:
            network.tc("qdisc", "replace", "dev", _DEVICE, "root", *how)


@contextmanager
def network_paths(count: int) -> Iterator[list[NetworkPath]]:
    """Make `count` network paths."""
    made: list[NetworkPath] = []
    try:
        for _ in range(count):
            made.append(NetworkPath())
        yield made
    finally:
        for path in made:
            path.close()


def _send(network: Network, address: str, hardware: str) -> None:
    """Send packets for the address to this hardware."""
    network.ip("neighbour", "replace", address, "lladdr", hardware, "dev", _DEVICE, "nud", "permanent")
