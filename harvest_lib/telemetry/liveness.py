"""Signs of life for a supervisor: a file that is touched regularly, and systemd's socket.

The file exists while the process works, and is touched once a second. A supervisor can check both readiness and
liveness by the file's age. systemd gets the messages of `sd_notify(3)` if the unit has `Type=notify`.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from harvest_lib.errors import ConfigError
from harvest_lib.process import threads
from harvest_lib.telemetry.health import Verdict

_EVERY_SECONDS = 1.0
_LOOK_SECONDS = 0.2
_SOCKET = "NOTIFY_SOCKET"


class Liveness:
    """Touches the file and notifies systemd. The constructor removes a file that an earlier process left. On exit, the
    context manager notifies systemd of the stop and removes the file."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._shown_at: float | None = None
        self._remove()

    def show(self) -> None:
        """Give a sign of life, at most once a second; further calls have no effect.

        Raises ConfigError if the file cannot be written the first time. Later failures are ignored, so that a disk that
        is full for a moment does not end the harvester.
        """
        now = time.monotonic()
        if self._shown_at is not None and now - self._shown_at < _EVERY_SECONDS:
            return
        if self._file is not None:
            try:
                self._file.touch()
            except OSError as error:
                if self._shown_at is None:
                    raise ConfigError(
                        f"the alive file cannot be written: {error.strerror}",
                        source=str(self._file),
                        next_step="create its folder, writable for this user, or leave `--alive-file` out",
                    ) from error
        _tell_systemd("WATCHDOG=1" if self._shown_at is not None else "READY=1")
        self._shown_at = now

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _tell_systemd("STOPPING=1")
        self._remove()

    def _remove(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.unlink()


@contextmanager
def supervised(live: Callable[[], Verdict]) -> Iterator[None]:
    """Notify systemd, if the unit requests it: each second while `live` returns a healthy verdict, and on exit.

    A separate thread notifies systemd, so the verdict must be about the working thread. If the block ends without an
    error before the first healthy verdict, systemd is notified that the process is ready, because such an end is not a
    failure. A process may have only one such block at a time.
    """
    if not os.environ.get(_SOCKET):
        yield
        return
    ended = threading.Event()
    liveness = Liveness(None)

    def notify() -> None:
        if live().is_healthy:
            liveness.show()

    with liveness:
        thread = threads.repeat("harvest-liveness", notify, stopping=ended, pause_seconds=lambda: _LOOK_SECONDS)
        try:
            yield
        finally:
            ended.set()
            thread.join()
        liveness.show()


def _tell_systemd(state: str) -> None:
    address = os.environ.get(_SOCKET, "")
    if address:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(0)  # do not wait for a supervisor that does not read
            sender.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
