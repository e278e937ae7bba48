"""Chooses ports on 127.0.0.1, and reuses them in later runs unless another process has taken them.

Ports are below the ephemeral range, because a server binds its port seconds after the choice, and on a busy machine an
outgoing connection could have taken an ephemeral port by then. Until this process ends, other processes of this user
that choose ports with this module skip the ports that this process has chosen.
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
"""All ports that this process has chosen. None of them is chosen again at random."""


def keep_ports(file: Path, names: list[str]) -> dict[str, int]:
    """Return a free port for each name. The port from the file is used if it is still free, else a new port. The ports
    are written to the file."""
    known: dict[str, int] = json.loads(file.read_text()) if file.exists() else {}
    ports: dict[str, int] = {}
    with ExitStack() as held:  # each port stays bound until all are chosen, so that no port is chosen twice
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
    """Return a text about the process that listens on the port; empty if no process listens. The text lacks the name
    and id of the process if this user may not see them."""
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
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the servers: a port in TIME_WAIT is free
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen()  # with SO_REUSEADDR another process could bind the port of a socket that does not listen
    except OSError:
        listener.close()
        return None
    if port and not _reserve(port):
        listener.close()
        return None
    return listener


def _reserve(port: int) -> bool:
    """Reserve a port against other processes that use this module, until this process ends. Return False if another
    process has reserved it."""
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
    """Open the file of reservations, in which a lock on byte N reserves port N. Return the file's descriptor; None if
    the file cannot be opened or belongs to another user."""
    place = Path(tempfile.gettempdir()) / f"harvest-ports-{os.getuid()}"
    try:
        file = os.open(place, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None
    if os.fstat(file).st_uid != os.getuid():
        os.close(file)
        return None
    return file  # the file stays open, because closing it would release the locks
