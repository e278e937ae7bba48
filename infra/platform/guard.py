"""Ends the sessions of a process that has died, however it died.

    python -m infra.platform.guard

reads session ids from its standard input, one in a line (`-` before it when the session is over), and ends the sessions
when the input is closed.
"""

import signal
import sys
from typing import TextIO

from infra.platform.sessions import end

_SECONDS = 10


def guard(lines: TextIO) -> None:
    """Read sessions until the input is closed, then end them."""
    sessions: set[int] = set()
    for line in lines:
        if line.startswith("-"):
            sessions.discard(int(line[1:]))  # its id may be reused
        else:
            sessions.add(int(line))
    end(sessions, seconds=_SECONDS)


if __name__ == "__main__":
    # The holder ends this process last; a signal to the whole group must not end it earlier.
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    guard(sys.stdin)
