"""A thread for database calls: it reads the next page while the current page is sent."""

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from harvest_lib.process import threads

Answer = TypeVar("Answer")
Argument = TypeVar("Argument")


class CallThread(Generic[Argument]):
    """A thread that calls functions one after another, each with the same argument. The thread is a daemon: a statement
    that hangs does not prevent the process from ending."""

    def __init__(self, argument: Argument, name: str) -> None:
        self._argument = argument
        self._calls: SimpleQueue[tuple[Callable[[Argument], Any], Future[Any]] | None] = SimpleQueue()
        self._thread = threads.start(name, self._serve)

    def submit(self, call: Callable[[Argument], Answer]) -> "Future[Answer]":
        """Run `call` on the thread, after all earlier calls. Return a future of its result or error."""
        answer: Future[Answer] = Future()
        self._calls.put((call, answer))
        return answer

    def end(self, timeout_seconds: float | None = None) -> None:
        """End the thread after all submitted calls, and wait for the end up to `timeout_seconds`. Safe to repeat."""
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
