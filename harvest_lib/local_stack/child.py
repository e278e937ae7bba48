"""Executes a server so that it cannot outlive the process that started it.

    python -I -S child.py --parent PID [--signal N] [--user UID:GID] [--reach] -- COMMAND …

This file is run by path, not by module, so that nothing else of the library is imported, and only a bare interpreter
starts (about 20 ms). The program takes three steps before it replaces itself with COMMAND by `exec`:

1. With `--user`, it changes to that user, because Postgres refuses to run as root.
2. With `--reach`, it keeps the capability to enter folders that are closed to that user, so that a server below `/root`
   or another private folder can read its own binaries and data.
3. It requests that the kernel sends signal N (9 by default) to COMMAND when the parent dies. This step is last, because
   a change of user clears the request. The step ends with a check that the parent did not die before the request.

For the kernel the parent is a *thread*: start servers from a thread that lives as long as the servers. Step 3 exists
only on Linux. On other systems the servers of a killed parent continue to run.

Only the user that runs COMMAND can read the files that it creates. Signals that the parent ignores get their default
action.

Exit code 125 means that a step failed; standard error names the step.
"""

import argparse
import ctypes
import os
import signal
import sys
from typing import NoReturn

FAILED = 125
CAP_DAC_OVERRIDE = 1

_NOT_INHERITED = (
    *(signal.SIGPIPE, signal.SIGXFSZ),  # the Python interpreter ignores both
    *(
        signal.SIGINT,
        signal.SIGQUIT,
    ),  # a shell ignores them for commands with `&`; Dagster copies the handling of SIGINT to SIGTERM
    *(signal.SIGTERM, signal.SIGHUP),  # nohup ignores SIGHUP
)
"""Signals that get their default action: a server must not ignore a signal because its parent does."""

_OWNER_ONLY = 0o077
"""Umask of servers. Their files contain records, so only the user that runs the server can read them."""

_PR_SET_PDEATHSIG = 1
_PR_SET_SECUREBITS = 28
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_SECBIT_NO_SETUID_FIXUP = 1 << 2
_CAPABILITY_VERSION_3 = 0x20080522


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapabilitySet(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


class StepError(Exception):
    """A step before `exec` failed."""


def main(arguments: list[str]) -> NoReturn:
    """Take the steps in order, then execute the command. Exit with 125 if a step fails."""
    parser = argparse.ArgumentParser(description="become a server that ends with its parent")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--signal", type=int, default=int(signal.SIGKILL))
    parser.add_argument("--user", default="")
    parser.add_argument("--reach", action="store_true")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    try:
        if options.user:
            uid, gid = (int(part) for part in options.user.split(":"))
            become(uid, gid, reach=options.reach)
        if sys.platform == "linux":
            _prctl("end with the parent", _PR_SET_PDEATHSIG, options.signal)
        _check_parent(options.parent)
        os.umask(_OWNER_ONLY)
        for number in _NOT_INHERITED:
            signal.signal(number, signal.SIG_DFL)
        os.execv(options.command[0], options.command)  # noqa: S606 - it must not go through a shell
    except (OSError, StepError) as error:
        sys.stderr.write(f"cannot start {options.command[0]}: {error}\n")
        sys.exit(FAILED)


def _check_parent(expected: int) -> None:
    if os.getppid() != expected:
        raise StepError("the parent is gone already")


def become(uid: int, gid: int, *, reach: bool) -> None:
    """Change to a user permanently. With `reach`, keep the capability to enter folders that are closed to the user."""
    if reach:
        # PR_SET_KEEPCAPS is not enough, because Postgres examines its own binaries with access(2). Without this bit
        # access(2) checks only the user and ignores the capabilities of the process.
        _prctl("keep capabilities over a change of user", _PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if reach:
        _keep_only(CAP_DAC_OVERRIDE)
        _prctl("hand a capability on (CAP_DAC_OVERRIDE)", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, CAP_DAC_OVERRIDE)


def _keep_only(capability: int) -> None:
    # The permitted and the ambient set must be equal. If they differ, exec counts as privileged, and the kernel clears
    # the parent-death signal.
    mask = 1 << capability
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    sets = (_CapabilitySet * 2)(_CapabilitySet(mask, mask, mask), _CapabilitySet(0, 0, 0))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.capset(ctypes.byref(header), ctypes.byref(sets)) != 0:
        raise StepError(f"cannot keep CAP_DAC_OVERRIDE: {os.strerror(ctypes.get_errno())}")


def _prctl(purpose: str, operation: int, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    padded = [ctypes.c_ulong(argument) for argument in (*arguments, 0, 0, 0, 0)[:4]]
    if libc.prctl(operation, *padded) != 0:
        raise StepError(f"cannot {purpose}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main(sys.argv[1:])
