"""Ports on 127.0.0.1: chosen once, then kept as long as no other process takes them.

They are below the ephemeral range. A server binds its port seconds after it was chosen, and on a busy machine an
outgoing connection could have an ephemeral port by then. Other processes of this user that choose ports here pass over
the ports of this process, as long as it lives.
"""

import fcntl
import json
import os
import secrets
import socket
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import psutil

from harvest_lib.local_stack.state import write_private

_LOWEST = 10_000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST_EPHEMERAL = 32_768  # Linux's default
_TRIES = 100

_chosen: set[int] = set()
"""Ports that this process chose, for any file: not chosen again for another file."""


def keep_ports(file: Path, names: list[str]) -> dict[str, int]:
    """Return a free port for each name: the file's port if it is still free, else a new port, written to the file."""
    known: dict[str, int] = json.loads(file.read_text()) if file.exists() else {}
    ports: dict[str, int] = {}
    with ExitStack() as held:  # all are held until the last is known, so that none is returned twice
        for name in names:
            listener = (_bind(known[name]) if name in known else None) or _bind_another()
            ports[name] = held.enter_context(listener).getsockname()[1]
    _chosen.update(ports.values())
    if ports != known:
        write_private(file, json.dumps(ports))
    return ports


def accepts(port: int) -> bool:
    """Return True if something listens on the port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def occupant(port: int) -> str:
    """Return the process that listens on the port, as far as this user may know it; empty without a listener."""
    try:
        found = [each for each in psutil.net_connections("tcp") if each.laddr and each.laddr.port == port]
        listening = [each for each in found if each.status == psutil.CONN_LISTEN]
        if not listening:
            return ""
        pid = listening[0].pid
        name = psutil.Process(pid).name() if pid else ""
    except psutil.Error:
        return ""
    return f"port {port} is taken by {f'{name} (process {pid})' if pid else 'a process of another user'}"


def _bind_another() -> socket.socket:
    end = int(_EPHEMERAL.read_text().split()[0]) if _EPHEMERAL.exists() else _FIRST_EPHEMERAL
    for _ in range(_TRIES if end > _LOWEST else 0):
        port = _LOWEST + secrets.randbelow(end - _LOWEST)
        listener = None if port in _chosen else _bind(port)
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
        listener.listen()  # with SO_REUSEADDR only a listening socket keeps its port from other processes
    except OSError:
        listener.close()
        return None
    if port and not _reserve(port):
        listener.close()
        return None
    return listener


def _reserve(port: int) -> bool:
    """Keep a port from other processes that choose ports until this process ends; false when another process has it."""
    file = _reservations()
    if file is None:
        return True
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


@cache
def _reservations() -> int | None:
    """Open the file whose bytes stand for ports, a lock on a byte for a reservation; None if it cannot be opened."""
    place = Path(tempfile.gettempdir()) / f"harvest-ports-{os.getuid()}"
    try:
        file = os.open(place, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None
    if os.fstat(file).st_uid != os.getuid():
        os.close(file)
        return None
    return file  # stays open: the locks end when it is closed
