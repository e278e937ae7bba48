"""A network path between a harvester and its servers: two network namespaces, connected by a pair of devices.

The harvester is at the far end and has no other network. The links to servers listen at the near end; a socket belongs
to the network in which it was made. Packets are lost through a wrong hardware address: the kernel sends them, and the
receiver drops them, so each direction can be cut alone. Neither end is connected to the machine's own network. The
kernel removes both ends when no process holds them, however the run ends.
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
    """One network path. Raises CalledProcessError or OSError if it cannot be made."""

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
        """Return a context in which the calling thread is at the near end, to make listeners there."""
        return self._near.inside()

    def at_harvester(self) -> AbstractContextManager[None]:
        """Return a context in which the calling thread is at the far end, to start processes there."""
        return self._far.inside()

    def lose(self, direction: Direction = Direction.BOTH) -> None:
        """Drop all packets in these directions."""
        if Direction.TO_SERVER in direction:
            _send(self._far, NEAR, _NOBODY)
        if Direction.TO_CLIENT in direction:
            _send(self._near, FAR, _NOBODY)

    def narrow(self) -> None:
        """Limit each direction to 32 KB/s, and drop packets that would wait longer than 200 ms."""
        self._shape(_NARROW)

    def slow(self) -> None:
        """In each direction, delay packets by 80 ± 40 ms, and drop 2 % of them."""
        self._shape(_SLOW)

    def heal(self) -> None:
        """Undo all faults of this path."""
        for network, _, other in self._ends:
            _send(network, other, _HARDWARE[other])
        if self._is_shaped:
            self._shape(("pfifo",))
            self._is_shaped = False

    def close(self) -> None:
        """Release both namespaces."""
        self._near.close()
        self._far.close()

    def _shape(self, how: tuple[str, ...]) -> None:
        self._is_shaped = True
        for network, _, _ in self._ends:
            network.tc("qdisc", "replace", "dev", _DEVICE, "root", *how)


@contextmanager
def network_paths(count: int) -> Iterator[list[NetworkPath]]:
    """Make `count` network paths, and release them at the end of the context."""
    made: list[NetworkPath] = []
    try:
        for _ in range(count):
            made.append(NetworkPath())
        yield made
    finally:
        for path in made:
            path.close()


def _send(network: Network, address: str, hardware: str) -> None:
    """Make a network send packets for `address` to the hardware address `hardware`."""
    network.ip("neighbour", "replace", address, "lladdr", hardware, "dev", _DEVICE, "nud", "permanent")
