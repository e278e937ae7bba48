"""Cache of a server's answer. A background thread refreshes the answer, so that readers never wait for the server."""

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from harvest_lib.clock import boot_seconds
from harvest_lib.process import threads

_log = logging.getLogger(__name__)

_EVERY_SECONDS = 60.0

T = TypeVar("T")


class RareAnswer(Generic[T]):
    """Cache of a server's answer. A read starts a new query if the last query began at least a minute ago. Each query
    has a thread of its own, which ends after the query."""

    def __init__(self, ask: Callable[[], T], unknown: T, *, name: str) -> None:
        """`ask` queries the server. `unknown` is returned before the first answer and after a failed query. `name` is
        the name of the query's thread."""
        self._ask_server, self._unknown, self._name = ask, unknown, name
        self._seen = unknown
        self._asking = threading.Lock()
        self._ask_at = 0.0

    def seen(self) -> T:
        """Return the last answer without waiting. If the last query began at least a minute ago, start another. Any
        thread may call this."""
        if boot_seconds() >= self._ask_at and self._asking.acquire(blocking=False):
            self._ask_at = boot_seconds() + _EVERY_SECONDS
            try:
                threads.start(self._name, self._ask)
            except RuntimeError:  # the process cannot start another thread
                self._asking.release()
        return self._seen

    def _ask(self) -> None:
        try:
            self._seen = self._ask_server()
        except BaseException as error:  # noqa: BLE001 - after any error the numbers are unknown
            self._seen = self._unknown
            if isinstance(error, Exception):
                _log.debug("numbers_unknown", extra={"what": self._name, "reason": type(error).__name__})
            else:
                _log.warning("numbers_unknown", extra={"what": self._name, "reason": type(error).__name__})
        finally:
            self._asking.release()
