"""End what a process held, however that process dies.

    python -m harvest_lib.local_stack.guard

guards the sessions named on its standard input, one id a line (`-` before it when the session is over), and ends them
once that is closed.
"""

import signal
import sys
from typing import TextIO

from harvest_lib.local_stack.sessions import end

_SECONDS = 10


def guard(told: TextIO) -> None:
    """Learn sessions until nobody is left to tell of any, then end them."""
    sessions: set[int] = set()
    for line in told:
        if line.startswith("-"):
            sessions.discard(int(line[1:]))  # by and by its id may be that of somebody else's
        else:
            sessions.add(int(line))
    end(sessions, seconds=_SECONDS)


if __name__ == "__main__":
    # The holder ends us when all is over; a signal to everybody must not make us leave before.
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    guard(sys.stdin)
