"""Turns errors of the machine, such as a full disk or a folder without write permission, into StackError."""

import errno
import os
from pathlib import Path

from harvest_lib.errors import StackError

_NO_ROOM = os.strerror(errno.ENOSPC)
_NO_ROOM_ERRORS = {errno.ENOSPC, errno.EDQUOT}


def explained(error: OSError | StackError, state: Path) -> StackError:
    """Return the StackError that explains why a stack in the state folder could not be started."""
    evidence = error.evidence if isinstance(error, StackError) else str(error)
    if _NO_ROOM in evidence or (isinstance(error, OSError) and error.errno in _NO_ROOM_ERRORS):
        cause = f"{error.cause}, since the disk is full" if isinstance(error, StackError) else "the disk is full"
        return StackError(
            cause,
            evidence=evidence,
            next_step=f"make room where {state} is, or name another folder in HARVEST_HOME",
        )
    if isinstance(error, StackError):
        return error
    return StackError(
        "the local stack may not do what it must on this machine",
        evidence=evidence,
        next_step="run it as the owner of the state folder, or name another folder in HARVEST_HOME",
    )
