"""A server's answer that is needed rarely, and without waiting for it."""

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
    """Queries a server only while its answer is read, once a minute at most, on a thread that ends with the answer."""

    def __init__(self, ask: Callable[[], T], unknown: T, *, name: str) -> None:
        """`unknown` is returned before the first answer, and after a failed query. `name` is the thread's."""
        self._ask_server, self._unknown, self._name = ask, unknown, name
        self._seen = unknown
        self._asking = threading.Lock()
        self._ask_at = 0.0

    def seen(self) -> T:
        """Return the last answer; query again if it is old. For any thread."""
        if boot_seconds() >= self._ask_at and self._asking.acquire(blocking=False):
            self._ask_at = boot_seconds() + _EVERY_SECONDS
            try:
                threads.start(self._name, self._ask)
            except RuntimeError:  # no thread can be started
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
