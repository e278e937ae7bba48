"""Rights of a loop under its term: whether it may send more records, and whether it may wait for sent records."""

import threading

from harvest_lib.clock import Deadline
from harvest_lib.leadership import Term


class Rights:
    """The rights of a loop under a term. The end of the term or a stop ends them. Both checks are cheap, as they are
    made for each slice of a batch."""

    def __init__(self, term: Term, stopping: threading.Event, drain_interval_seconds: float) -> None:
        self._term = term
        self._stopping = stopping
        self._drain_interval_seconds = drain_interval_seconds
        self._finish: Deadline | None = None  # set once the wait at the end has begun

    def may_go_on(self) -> bool:
        """Return True if more may be read and sent: the term is live, and no stop is requested."""
        return self._term.is_live() and not self._stopping.is_set()

    def may_finish(self) -> bool:
        """Return True if the loop may wait for sent records. It may wait while it leads, and for up to `drainInterval`
        after a stop is requested or the term is revoked. A successor waits for as long before it leads."""
        if self.may_go_on():
            return True
        self._finish = self._finish or Deadline(self._drain_interval_seconds)
        return self._term.may_finish() and not self._finish.passed
