"""Leadership of a process that is configured to run alone. Nothing checks that it runs alone."""

import uuid
from collections.abc import Collection

from harvest_lib.leadership.protocol import Term, TermEnd
from harvest_lib.leadership.term_registry import ElectedLeadership


class Solo(ElectedLeadership):
    """`Leadership` that leads all shards from start to stop. If a term ends before the stop, a new term begins, because
    no other process would lead."""

    def __init__(self, shards: int = 1) -> None:
        super().__init__()
        self._shards = shards

    def start(self) -> None:
        self._registry.take(*(Term(uuid.uuid4(), shard=shard) for shard in range(self._shards)))

    def terms(self, timeout_seconds: float, known: Collection[Term] = ()) -> tuple[Term, ...]:
        over = [term.shard for term in self._registry.terms.values() if not term.is_live()]
        self._registry.take(*(Term(uuid.uuid4(), shard=shard) for shard in over))
        return self._registry.wait(timeout_seconds, known)

    def stop(self, timeout_seconds: float) -> None:  # noqa: ARG002 - there is no thread to wait for
        self._registry.vacate(TermEnd.REVOKED)
