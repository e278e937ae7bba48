"""Where the thread that stands for election keeps its term, and where others wait for it."""

import threading
from collections.abc import Callable

from harvest_lib.errors import HarvestError
from harvest_lib.leadership.protocol import Term, TermEnd


class Seat:
    """One process's place at the head of its pool: empty, or held by a term.

    `wait` may be called from any thread, all else by the one that stands.
    """

    def __init__(self) -> None:
        self.term: Term | None = None
        """The term that was taken last and not vacated; its lease may have run out."""
        self._changed = threading.Condition()
        self._failure: BaseException | None = None

    def wait(self, timeout_seconds: float) -> Term | None:
        """Return the live term, after `timeout_seconds` at most. Raises what killed the election, if anything did."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure or self._live() is not None, timeout_seconds)
            if self._failure is not None:
                raise self._failure
            return self._live()

    def take(self, term: Term) -> None:
        """Begin a term."""
        with self._changed:
            self.term = term
            self._changed.notify_all()

    def vacate(self, how: TermEnd) -> Term | None:
        """End the term and return it, or None if there is none."""
        term, self.term = self.term, None
        if term is not None:
            term.end(how)
        return term

    def stand(self, election: Callable[[], None], stopping: threading.Event, unexplained: HarvestError) -> None:
        """Run an election to its end, fence what it leaves, and keep what killed it: a standby that stands no more must
        not look alive. `unexplained` is for an election that ends by itself without an exception."""
        failure: BaseException | None = unexplained
        try:
            election()
        except BaseException as error:  # noqa: BLE001 - `wait` raises it
            failure = error
        else:
            if stopping.is_set():
                failure = None
        finally:
            # confluent-kafka can raise an object that is no exception: no clause above sees it.
            self.vacate(TermEnd.FENCED)
            with self._changed:
                self._failure = failure
                self._changed.notify_all()

    def _live(self) -> Term | None:
        term = self.term
        return term if term is not None and term.is_live() else None
