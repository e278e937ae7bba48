"""The thread that talks to the database, so that Kafka is served meanwhile, and a term ends while a statement hangs."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from harvest_lib.source.claim_protocol import ClaimSource

Answer = TypeVar("Answer")
Asked = TypeVar("Asked")


class CallThread(Generic[Asked]):
    """Call functions with one thing, one after the other, on a thread of its own. The thread is a daemon: a statement
    that hangs does not keep the process from ending."""

    def __init__(self, asked: Asked, name: str) -> None:
        self._asked = asked
        self._calls: SimpleQueue[tuple[Callable[[Asked], Any], Future[Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

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
            try:
                answer.set_result(call(self._asked))
            except BaseException as error:  # noqa: BLE001 - the caller gets it
                answer.set_exception(error)


class SourceThread(CallThread[ClaimSource]):
    """Ask a source on the thread `harvest-source`. Each call is made inside what `translate_errors` returns, which may
    replace an error of the call with another."""

    def __init__(
        self, source: ClaimSource, translate_errors: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        self._translate_errors = translate_errors
        super().__init__(source, "harvest-source")

    def ask(self, call: Callable[[ClaimSource], Answer]) -> "Future[Answer]":
        """See `CallThread`."""

        def call_translated(source: ClaimSource) -> Answer:
            with self._translate_errors():
                return call(source)

        return super().ask(call_translated)

    def stop(self, timeout_seconds: float) -> None:
        """Close the source after the calls asked so far, waiting up to `timeout_seconds` for that. Safe to repeat."""
        self.ask(lambda source: source.close())
        self.end(timeout_seconds)
