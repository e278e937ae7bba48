"""Sessions of processes, which show all processes that a service started, directly or indirectly.

A service leads its own session. Its child processes, such as a Dagster run or an Airflow task, may outlive it and
change their parents and process groups, but they stay in the session. Some processes open another session, such as a
command of an Airflow task. The other session can be found only while the parent of that process lives. A service has
ended when its sessions have no process left.
"""

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress

import psutil

_POLL_SECONDS = 0.05


def members(sessions: Iterable[int]) -> list[int]:
    """Return the ids of the processes in these sessions, without zombies."""
    wanted = set(sessions)
    return [pid for pid in psutil.pids() if _session(pid) in wanted and _lives(pid)]


def reach(sessions: Iterable[int]) -> set[int]:
    """Return these sessions, and the sessions of all descendants of their processes."""
    found = set(sessions)
    for pid in members(found):
        with suppress(psutil.NoSuchProcess):
            found |= {_session(child.pid) for child in psutil.Process(pid).children(recursive=True)}
    return found - {0}


def signal_all(sessions: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to every process in these sessions."""
    for pid in members(sessions):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def end(sessions: Iterable[int], *, seconds: float) -> None:
    """Send SIGTERM to every process that `reach` finds, wait until all have ended, and send SIGKILL to the processes
    that are left after `seconds`."""
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
