"""Ports on 127.0.0.1: chosen once, then kept for as long as nobody else takes them."""

import json
import socket
from contextlib import ExitStack
from pathlib import Path

from infra.local.state import write_private


def keep_ports(file: Path, names: list[str]) -> dict[str, int]:
    """Return a free port for each name: the ones written in the file where still free, else new ones, written there."""
    known: dict[str, int] = json.loads(file.read_text()) if file.exists() else {}
    ports: dict[str, int] = {}
    with ExitStack() as held:  # all held until the last is known, or one could be given out twice
        for name in names:
            listener = _bind(known.get(name, 0)) or _bind(0)
            assert listener is not None  # noqa: S101 - port 0 is always to be had
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


def _bind(port: int) -> socket.socket | None:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the servers do: TIME_WAIT does not count
    try:
        listener.bind(("127.0.0.1", port))
    except OSError:
        listener.close()
        return None
    return listener
