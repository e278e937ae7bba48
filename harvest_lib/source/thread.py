"""The thread that talks to the database, so that the next page is read while one is sent."""

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from harvest_lib import threads

Answer = TypeVar("Answer")
Asked = TypeVar("Asked")


class CallThread(Generic[Asked]):
    """Call functions with one thing, one after the other, on a thread of its own. The thread is a daemon: a statement
    that hangs does not keep the process from ending."""

    def __init__(self, asked: Asked, name: str) -> None:
        self._asked = asked
        self._calls: SimpleQueue[tuple[Callable[[Asked], Any], Future[Any]] | None] = SimpleQueue()
        self._thread = threads.start(name, self._serve)

    def ask(self, call: Callable[[Asked], Answer]) -> "Future[Answer]":
        """Have `call` called after all calls asked before; its result or error is the answer."""
        answer: Future[Answer] = Future()
        self._calls.put((call, answer))
        return answer

    def end(self, timeout_seconds: float | None = None) -> None:
        """End the thread after the calls asked so far, waiting up to `timeout_seconds` for that. Safe to repeat."""
        self._calls.put(None)
        self._thread.join(timeout_seconds)

    def _serve(self) -> None:
        while (asked := self._calls.get()) is not None:
            call, answer = asked
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                answer.set_result(call(self._asked))
            except BaseException as error:  # noqa: BLE001 - the caller gets it
                answer.set_exception(error)
