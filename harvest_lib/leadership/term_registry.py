"""The terms that a process holds: its election thread changes them, and other threads wait for changes."""

import logging
import threading
from collections.abc import Callable, Collection
from types import MappingProxyType

from harvest_lib.errors import HarvestError
from harvest_lib.leadership.protocol import Term, TermEnd

_log = logging.getLogger(__name__)


class TermRegistry:
    """The terms that a process holds in its pool, at most one for each shard.

    Any thread may call `wait` and read `terms`. Only the election thread calls the other methods.
    """

    def __init__(self) -> None:
        self._terms: dict[int, Term] = {}
        self._changed = threading.Condition()
        self._failure: BaseException | None = None

    @property
    def terms(self) -> MappingProxyType[int, Term]:
        """The terms that were taken and not vacated: a dictionary from shard to term. Their leases may have run out."""
        return MappingProxyType(self._terms)

    def wait(self, timeout_seconds: float, known: Collection[Term] = ()) -> tuple[Term, ...]:
        """Wait until the live terms differ from the `known` terms, for at most `timeout_seconds`. Return the live terms
        in order of their shards.

        Raises the error that ended the election, if any.
        """
        known = set(known)
        with self._changed:
            self._changed.wait_for(lambda: self._failure or set(self._live()) != known, timeout_seconds)
            if self._failure is not None:
                raise self._failure
            return self._live()

    def take(self, *terms: Term) -> None:
        """Add terms. Waiting threads see all of them at once."""
        with self._changed:
            self._terms.update({term.shard: term for term in terms})
            self._changed.notify_all()

    def vacate(self, how: TermEnd, shards: Collection[int] | None = None) -> list[Term]:
        """End and remove the terms of `shards`, or of all shards if `shards` is None. Return the removed terms."""
        with self._changed:
            left = [self._terms.pop(shard) for shard in sorted(self._terms) if shards is None or shard in shards]
            for term in left:
                term.end(how)
            self._changed.notify_all()
        return left

    def run_election(self, election: Callable[[], None], stopping: threading.Event, unexplained: HarvestError) -> None:
        """Run an election to its end. Then fence the remaining terms, and store the error that ended the election.

        `wait` raises the stored error, so that a standby whose election has ended does not look alive. `unexplained` is
        stored if the election ends without an exception and without a stop.
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
            # confluent-kafka can raise an object that is not an exception, which no clause above catches.
            self.vacate(TermEnd.FENCED)
            with self._changed:
                self._failure = failure
                self._changed.notify_all()

    def _live(self) -> tuple[Term, ...]:
        return tuple(term for _, term in sorted(self._terms.items()) if term.is_live())


class ElectedLeadership:
    """Common base of `Leadership` implementations, independent of how the leader is elected."""

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
        """Return the trouble that would keep this process from leading; empty if no trouble is known. Any thread may
        read this property."""
        return ""

    def stop(self, timeout_seconds: float) -> None:
        self._stopping.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(timeout_seconds)
            if thread.is_alive():
                _log.warning("leadership_release_timed_out", extra={"timeout_seconds": round(timeout_seconds, 1)})

    def _elect(self, election: Callable[[], None], thread_name: str, unexplained: HarvestError) -> None:
        """Start a thread that runs an election by `TermRegistry.run_election`."""
        self._thread = threading.Thread(
            target=self._registry.run_election,
            args=(election, self._stopping, unexplained),
            name=thread_name,
            daemon=True,
        )
        self._thread.start()
