"""Protection against errors of observers, which are user code: span processors, event handlers and log handlers.

Promises
- If an observer raises, only its own observation is lost. The observed work continues, before and after a commit.
- Each type of error is reported once. Keyboard interrupts are raised to the caller, because they are meant for the
  process.
"""

import logging
import sys
import traceback
from contextlib import suppress
from types import TracebackType

_PACKAGE = "harvest_lib"


class Harmless:
    """Context manager for calls of an observer. It suppresses the observer's errors, and logs each type of error once,
    as `event`. Any thread may use it, repeatedly."""

    def __init__(self, logger: logging.Logger, event: str) -> None:
        self._logger, self._event = logger, event
        self._told: set[type[BaseException]] = set()

    def __enter__(self) -> None:
        """Begin the context."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> bool:
        if kind is None or error is None or isinstance(error, KeyboardInterrupt):
            return False
        if kind not in self._told:
            self._told.add(kind)
            self._logger.error(self._event, exc_info=error)
        return True


class _Guarded(logging.Logger):
    """A logger that does not raise the errors of its handlers and filters to the code that logs."""

    def handle(self, record: logging.LogRecord) -> None:
        """Pass a record to the handlers. Their errors are written to standard error."""
        try:
            super().handle(record)
        except Exception as error:  # noqa: BLE001 - the user's handlers and filters raise anything
            _tell_of_handler(error)


_told_of: set[type[BaseException]] = set()


def _tell_of_handler(error: Exception) -> None:
    """Write an error of a handler or filter to standard error. Each type of error is written once. `logging` also
    writes errors that it catches to standard error."""
    if type(error) not in _told_of:
        _told_of.add(type(error))
        with suppress(Exception):
            print("--- Logging error: a log handler or filter raised; it is not reported again", file=sys.stderr)  # noqa: T201
            traceback.print_exception(error, file=sys.stderr)


def guard_loggers() -> None:
    """Protect the code that logs from errors of the handlers and filters of this package's loggers. Repeated calls have
    no further effect. Loggers remain the same objects, with their levels, handlers and filters."""
    for name, logger in list(logging.Logger.manager.loggerDict.items()):
        is_ours = name == _PACKAGE or name.startswith(f"{_PACKAGE}.")
        if is_ours and isinstance(logger, logging.Logger) and not isinstance(logger, _Guarded):
            logger.__class__ = type("GuardedLogger", (_Guarded, type(logger)), {})
