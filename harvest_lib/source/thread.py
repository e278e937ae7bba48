"""The thread that calls the database, so that the next page is read while the current page is sent."""

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from harvest_lib.process import threads

Answer = TypeVar("Answer")
Argument = TypeVar("Argument")


class CallThread(Generic[Argument]):
    """Call functions with the same argument, in turn, on a thread of its own. The thread is a daemon: a statement that
    hangs does not keep the process from ending."""

    def __init__(self, argument: Argument, name: str) -> None:
        self._argument = argument
        self._calls: SimpleQueue[tuple[Callable[[Argument], Any], Future[Any]] | None] = SimpleQueue()
        self._thread = threads.start(name, self._serve)

    def submit(self, call: Callable[[Argument], Answer]) -> "Future[Answer]":
        """Call `call` after all earlier calls; its result or error is the answer."""
        answer: Future[Answer] = Future()
        self._calls.put((call, answer))
        return answer

    def end(self, timeout_seconds: float | None = None) -> None:
        """End the thread after the calls made so far; wait up to `timeout_seconds` for the end. Safe to repeat."""
        self._calls.put(None)
        self._thread.join(timeout_seconds)

    def _serve(self) -> None:
        while (queued := self._calls.get()) is not None:
            call, answer = queued
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                answer.set_result(call(self._argument))
            except BaseException as error:  # noqa: BLE001 - the caller gets it
                answer.set_exception(error)
