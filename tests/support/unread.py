"""A pipe whose reader has stopped reading, as the log of a process."""

import os
from contextlib import contextmanager, suppress


class UnreadPipe:
    """A pipe that is full: the next write to it waits, until somebody reads."""

    def __init__(self):
        self.reads, self.writes = os.pipe()
        os.set_blocking(self.reads, False)
        os.set_blocking(self.writes, False)
        for size in (4_096, 1):
            with suppress(BlockingIOError):
                while True:
                    os.write(self.writes, b"\n" * size)
        os.set_blocking(self.writes, True)

    def read(self):
        """Read what there is now; without the empty lines that filled it."""
        with suppress(BlockingIOError):
            return os.read(self.reads, 1 << 20).lstrip(b"\n").decode()
        return ""


@contextmanager
def unread_pipe():
    made = UnreadPipe()
    try:
        yield made
    finally:
        for descriptor in (made.reads, made.writes):
            os.close(descriptor)
