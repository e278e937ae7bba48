"""Become a server that cannot outlive the process that started it.

    python -I -S child.py --parent PID [--signal N] [--user UID:GID] [--reach] -- COMMAND …

Run by path, not by module, so that it costs a bare interpreter start (about 20 ms) and imports nothing of the library.
Before it becomes COMMAND by `exec` it

1. takes the user's identity, when a user is given (a Postgres refuses to run as root);
2. with `--reach`, keeps the capability that lets that user pass folders closed to it, so that a server below
   `/root` or another private folder reaches its own binaries and data;
3. requests signal N from the kernel (9 by default) when the parent dies. This comes last, as a change of identity
clears
   it, and the parent is checked afterwards, as it may have died in between.

The kernel means the parent *thread*: start servers from a thread that lives as long as they shall. Elsewhere than on
Linux step 3 does not exist and a killed parent leaves its servers behind.

Files of the command are for its user alone, and signals that the parent ignores get their default action.

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
    *(signal.SIGPIPE, signal.SIGXFSZ),  # the interpreter ignores them
    *(
        signal.SIGINT,
        signal.SIGQUIT,
    ),  # a shell does, for commands with `&`; Dagster takes SIGTERM as it finds SIGINT
    *(signal.SIGTERM, signal.SIGHUP),  # nohup does
)
"""Signals that get their default action: a server must not ignore them because its parent does."""

_OWNER_ONLY = 0o077
"""Umask of servers: their files, records among them, are for their user alone."""

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
    """One of the steps before exec was refused."""


def main(arguments: list[str]) -> NoReturn:
    """Take the steps in order and become the command."""
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
    """Take the identity of a user permanently, with `reach` keeping the right to pass folders closed to it."""
    if reach:
        # Not merely PR_SET_KEEPCAPS: without this bit access(2), with which Postgres examines its own binaries, goes by
        # the user alone and disregards capabilities of the process.
        _prctl("keep capabilities over a change of user", _PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if reach:
        _keep_only(CAP_DAC_OVERRIDE)
        _prctl("hand a capability on (CAP_DAC_OVERRIDE)", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, CAP_DAC_OVERRIDE)


def _keep_only(capability: int) -> None:
    # Permitted and ambient must be the same set: if one is larger, exec counts as privileged and forgets
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
