"""Threads that report every error.

Promises
- Every error that ends a thread is logged, and passed to the owner of the thread. This includes SystemExit,
  KeyboardInterrupt, asyncio's CancelledError and a panic in an extension.
- Periodic work continues after an error, at its interval. The error is logged once, and again only after the work
  succeeded or if the error changes.
"""

import logging
import threading
from collections.abc import Callable

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
"""Seconds between two checks whether a periodic thread is still needed, and the minimum pause after an error."""

OnError = Callable[[BaseException], None]


class NoException(Exception):
    """Replaces a raised object that is not an exception. Some versions of confluent-kafka can raise such an object."""


def start(
    name: str, work: Callable[[], object], *, on_error: OnError | None = None, is_daemon: bool = True
) -> threading.Thread:
    """Start a thread that calls `work` once. An error of `work` is logged as `thread_died`, and passed to `on_error` on
    that thread. Without `is_daemon` the process waits for the thread's end. Raises RuntimeError if the system cannot
    start a thread."""

    def run() -> None:
        error: BaseException | None = NoException("an object was raised that is no exception")
        try:
            error = error_of(work)
        finally:  # no `except` clause catches an object that is not an exception
            if error is not None:
                _end(name, error, on_error)

    thread = threading.Thread(target=run, name=name, daemon=is_daemon)
    thread.start()
    return thread


def repeat(
    name: str,
    work: Callable[[], object],
    *,
    stopping: threading.Event,
    pause_seconds: Callable[[], float],
    is_needed: Callable[[], bool] = lambda: True,
    on_error: OnError | None = None,
    at_end: Callable[[], None] | None = None,
) -> threading.Thread:
    """Start a daemon thread that calls `work` repeatedly, with a pause after each call.

    The thread ends when `stopping` is set, or soon after `is_needed` returns False. `on_error` is called with each
    error of `work`, on that thread. Without `on_error`, and for an error of `on_error` itself, `thread_troubled` is
    logged: once until the work succeeds or the reason changes. `at_end` is called before the thread ends. With `at_end`
    the thread is no daemon, so that the process waits for the call. Such a thread also ends soon after the main thread.
    """

    def goes_on() -> bool:
        # A thread that is not a daemon keeps the process alive, but the process should only wait for `at_end`.
        return is_needed() and (at_end is None or threading.main_thread().is_alive())

    def rounds() -> None:
        complaint = ""
        while not stopping.is_set() and goes_on():
            error = error_of(work)
            left = max(pause_seconds(), _LOOK_SECONDS if error is not None else 0.0)
            if error is not None and on_error is not None:
                error = _handled(on_error, error)
            complaint = _complain(name, error, complaint)
            while left > 0 and not stopping.wait(min(left, _LOOK_SECONDS)) and goes_on():
                left -= _LOOK_SECONDS
        if at_end is not None:
            at_end()

    return start(name, rounds, is_daemon=at_end is None)


def error_of(work: Callable[[], object]) -> BaseException | None:
    """Call `work`. Return the error that it raised, of any type; None if it succeeded."""
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - the caller handles it
        return error
    return None


def reason_of(error: BaseException) -> str:
    """Return a text with the type and the message of an error."""
    try:
        text = str(error)
    except BaseException as failed:  # noqa: BLE001 - `__str__` may raise anything
        text = f"its text is unavailable ({type(failed).__name__})"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _end(name: str, error: BaseException, on_error: OnError | None) -> None:
    """Log an error that ends a thread, and pass it to the thread's owner, even if a log handler raises."""
    reason = reason_of(error)
    error_of(lambda: _log.exception("thread_died", extra={"what": name, "reason": reason}, exc_info=error))
    if on_error is not None:
        on_error(error)


def _handled(on_error: OnError, error: BaseException) -> BaseException | None:
    return error_of(lambda: on_error(error))


def _complain(name: str, error: BaseException | None, complaint: str) -> str:
    """Log the error of a round, unless its reason equals `complaint`, the reason of the previous round. Return the
    reason of this round; empty without an error."""
    if error is None:
        return ""
    if (reason := reason_of(error)) != complaint:  # `error_of`, because a log handler may raise
        error_of(lambda: _log.exception("thread_troubled", extra={"what": name, "reason": reason}, exc_info=error))
    return reason
