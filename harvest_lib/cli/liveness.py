"""Signs of life of `harvest run` for its supervisor: a file that it keeps fresh, and systemd's socket.

The file is there while the harvester runs, and is touched once a second: readiness and liveness are one check. systemd
gets the messages of `sd_notify(3)`, if it asks for them by `Type=notify`.
"""

import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from harvest_lib.errors import ConfigError

_EVERY_SECONDS = 1.0


class Liveness:
    """Removes at once a file left by an earlier process. Also a context manager, which removes its own file on exit."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._shown_at: float | None = None
        self._remove()

    def show(self) -> None:
        """Show that the process works; at most once a second, however often it is called.

        Raises ConfigError if the first sign cannot be given. A later one is then only missing for the supervisor: a
        disk that is full for a moment ends no harvester.
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


def _tell_systemd(state: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, suppress(OSError):
            sender.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
