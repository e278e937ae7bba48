"""Signs of life for a supervisor: a file that is kept fresh, and systemd's socket.

The file exists while the process works, and is touched once a second: readiness and liveness are the same check.
systemd gets the messages of `sd_notify(3)`, if it requests them with `Type=notify`.
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
    """Removes at once a file left by an earlier process. Also a context manager, which removes its own file on exit."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._shown_at: float | None = None
        self._remove()

    def show(self) -> None:
        """Show that the process works; called more often than once a second, it does nothing.

        Raises ConfigError if the first sign cannot be given. A later failure only costs the supervisor a sign: a disk
        that is full for a moment ends no harvester.
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
    """Notify systemd, if it requests that, each second while `live` returns a healthy verdict, and on exit.

    A separate thread notifies, so the verdict must be about the working thread. The block may end in order before a
    healthy verdict: that is no failure, so systemd is notified that it was ready. A process has a single block at once.
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
            sender.settimeout(0)  # a supervisor that does not read is not waited for
            sender.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
