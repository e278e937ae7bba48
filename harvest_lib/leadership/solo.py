"""Leadership of a process that knows it is alone. Nothing checks that it is."""

import threading
import uuid

from harvest_lib.leadership.protocol import Term, TermEnd


class Solo:
    """`Leadership` that leads from start to stop, in one term."""

    def __init__(self) -> None:
        self._term: Term | None = None
        self._started = threading.Event()

    def start(self) -> None:
        self._term = Term(uuid.uuid4())
        self._started.set()

    def term(self, timeout_seconds: float) -> Term | None:
        self._started.wait(timeout_seconds)
        term = self._term
        return term if term is not None and term.is_live() else None

    def stop(self, timeout_seconds: float) -> None:  # noqa: ARG002 - there is nobody to wait for
        if self._term is not None:
            self._term.end(TermEnd.REVOKED)
        self._started.clear()
