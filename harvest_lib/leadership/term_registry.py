"""The terms that a process holds, kept by its election thread and waited for by other threads; and that thread."""

import logging
import threading
from collections.abc import Callable, Collection
from types import MappingProxyType

from harvest_lib.errors import HarvestError
from harvest_lib.leadership.protocol import Term, TermEnd

_log = logging.getLogger(__name__)


class TermRegistry:
    """The terms that a process holds in its pool, at most one for each shard.

    Any thread may call `wait` and read `terms`; everything else is for the election thread only.
    """

    def __init__(self) -> None:
        self._terms: dict[int, Term] = {}
        self._changed = threading.Condition()
        self._failure: BaseException | None = None

    @property
    def terms(self) -> MappingProxyType[int, Term]:
        """The terms by shard that were taken last and not vacated; their leases may have run out."""
        return MappingProxyType(self._terms)

    def wait(self, timeout_seconds: float, known: Collection[Term] = ()) -> tuple[Term, ...]:
        """Return the live terms by shard, once they differ from the known terms, after `timeout_seconds` at most.

        Raises the error that ended the election, if any.
        """
        known = set(known)
        with self._changed:
            self._changed.wait_for(lambda: self._failure or set(self._live()) != known, timeout_seconds)
            if self._failure is not None:
                raise self._failure
            return self._live()

    def take(self, *terms: Term) -> None:
        """Begin terms, all at once."""
        with self._changed:
            self._terms.update({term.shard: term for term in terms})
            self._changed.notify_all()

    def vacate(self, how: TermEnd, shards: Collection[int] | None = None) -> list[Term]:
        """End the terms of some shards, or of all, and return them."""
        with self._changed:
            left = [self._terms.pop(shard) for shard in sorted(self._terms) if shards is None or shard in shards]
            for term in left:
                term.end(how)
            self._changed.notify_all()
        return left

    def run_election(self, election: Callable[[], None], stopping: threading.Event, unexplained: HarvestError) -> None:
        """Run an election to its end, fence the terms that are left, and keep the error that ended it.

        `wait` raises that error, so that a standby whose election has ended does not look alive. `unexplained` is
        for an election that ends without an exception and without a stop.
        """
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

    def _live(self) -> tuple[Term, ...]:
        return tuple(term for _, term in sorted(self._terms.items()) if term.is_live())


class ElectedLeadership:
    """The part of `Leadership` that is the same however the leader is elected."""

    def __init__(self) -> None:
        self._registry = TermRegistry()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def term(self, timeout_seconds: float) -> Term | None:
        return next(iter(self.terms(timeout_seconds)), None)

    def terms(self, timeout_seconds: float, known: Collection[Term] = ()) -> tuple[Term, ...]:
        return self._registry.wait(timeout_seconds, known)

    @property
    def trouble(self) -> str:
        """Return the trouble that would keep this process from leading; empty if none is known. From any thread."""
        return ""

    def stop(self, timeout_seconds: float) -> None:
        self._stopping.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(timeout_seconds)
            if thread.is_alive():
                _log.warning("leadership_release_timed_out", extra={"timeout_seconds": round(timeout_seconds, 1)})

    def _elect(self, election: Callable[[], None], thread_name: str, unexplained: HarvestError) -> None:
        """Start a thread that runs an election, as `TermRegistry.run_election` does."""
        self._thread = threading.Thread(
            target=self._registry.run_election,
            args=(election, self._stopping, unexplained),
            name=thread_name,
            daemon=True,
        )
        self._thread.start()
