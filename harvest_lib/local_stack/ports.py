"""Ports on 127.0.0.1: chosen once, then kept as long as no other process takes them.

They are below the ephemeral range. A server binds its port seconds after it was chosen, and on a busy machine an
outgoing connection could have an ephemeral port by then.
"""

import json
import secrets
import socket
from contextlib import ExitStack
from pathlib import Path

from harvest_lib.local_stack.state import write_private

_LOWEST = 10_000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST_EPHEMERAL = 32_768  # Linux's default
_TRIES = 100


def keep_ports(file: Path, names: list[str]) -> dict[str, int]:
    """Return a free port for each name: the ones written in the file where still free, else new ones, written there."""
    known: dict[str, int] = json.loads(file.read_text()) if file.exists() else {}
    ports: dict[str, int] = {}
    with ExitStack() as held:  # all are held until the last is known, so that none is returned twice
        for name in names:
            listener = (_bind(known[name]) if name in known else None) or _bind_another()
            ports[name] = held.enter_context(listener).getsockname()[1]
    if ports != known:
        write_private(file, json.dumps(ports))
    return ports


def accepts(port: int) -> bool:
    """Tell whether something listens on the port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _bind_another() -> socket.socket:
    end = int(_EPHEMERAL.read_text().split()[0]) if _EPHEMERAL.exists() else _FIRST_EPHEMERAL
    for _ in range(_TRIES if end > _LOWEST else 0):
        listener = _bind(_LOWEST + secrets.randbelow(end - _LOWEST))
        if listener is not None:
            return listener
    listener = _bind(0)
    assert listener is not None  # noqa: S101 - port 0 always succeeds
    return listener


def _bind(port: int) -> socket.socket | None:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the servers do: TIME_WAIT does not count
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen()  # with SO_REUSEADDR only a listening socket keeps others from binding its port
    except OSError:
        listener.close()
        return None
    return listener
