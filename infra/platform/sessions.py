"""Sessions of processes: everything that a service started, directly or indirectly.

A service is the leader of a session of its own. Its children may outlive it and change parents and process groups,
but stay in the session (a Dagster run, an Airflow task), unless one opens a session of its own (a command that such a
task runs), which is found as long as its parent lives. So a service is over when these sessions have no member left.
"""

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress

import psutil

_POLL_SECONDS = 0.05


def members(sessions: Iterable[int]) -> list[int]:
    """Return the ids of the living processes of the sessions."""
    wanted = set(sessions)
    return [pid for pid in psutil.pids() if _session(pid) in wanted and _lives(pid)]


def reach(sessions: Iterable[int]) -> set[int]:
    """Return the sessions, and those that their processes or their children have opened."""
    found = set(sessions)
    for pid in members(found):
        with suppress(psutil.NoSuchProcess):
            found |= {_session(child.pid) for child in psutil.Process(pid).children(recursive=True)}
    return found - {0}


def signal_all(sessions: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to every process of the sessions."""
    for pid in members(sessions):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def end(sessions: Iterable[int], *, seconds: float) -> None:
    """Ask every process within reach to end, and kill those that have not ended within the time."""
    wanted = reach(sessions)
    signal_all(wanted, signal.SIGTERM)
    deadline = time.monotonic() + seconds
    while members(wanted):
        if time.monotonic() > deadline:
            signal_all(wanted, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
