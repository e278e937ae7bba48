"""Ends the sessions that another process started, after the death of that process from any cause.

    python -m infra.platform.guard

It reads session ids from its standard input, one per line; a `-` before the id means that the session has ended. When
the input is closed, it ends the remaining sessions.
"""

import signal
import sys
from typing import TextIO

from infra.platform.sessions import end

_SECONDS = 10


def guard(lines: TextIO) -> None:
    """Read session ids until the input is closed, then end the sessions that remain."""
    sessions: set[int] = set()
    for line in lines:
        if line.startswith("-"):
            sessions.discard(int(line[1:]))  # the id of an ended session may be reused
        else:
            sessions.add(int(line))
    end(sessions, seconds=_SECONDS)


if __name__ == "__main__":
    # The process that runs the platform ends the guard last. A signal to the whole group must not end the guard before.
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    guard(sys.stdin)
