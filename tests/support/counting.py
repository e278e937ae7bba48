"""A source that counts what it asks of the database."""

from collections import Counter
from collections.abc import Mapping, Sequence
from uuid import UUID

from harvest_lib.source import ClaimedRows, ClaimSource


class CountingSource:
    """`ClaimSource` over another one. Of the mark source a purge and the mark after it are two, and one commit."""

    def __init__(self, source: ClaimSource) -> None:
        self.statements: Counter[str] = Counter()
        """`mark`, `purge` and `reset`; a mark that found nothing is an `empty mark`."""
        self._source = source

    @property
    def worked(self) -> int:
        """Return how many statements there were for the records there were: empty marks come by the clock."""
        return self.statements.total() - self.statements["empty mark"]

    def open(self, leader_id: UUID) -> None:
        self._source.open(leader_id)

    def fetch(self, limit: int, delivered: Sequence[int] = ()) -> ClaimedRows:
        batch = self._source.fetch(limit, delivered)
        if delivered:
            self.statements["purge"] += 1
        if limit:
            self.statements["mark" if batch.rows else "empty mark"] += 1
        if batch.rows:
            self.statements["look for parked"] += 1  # one, as long as nothing is
        return batch

    def reset(self, ids: Sequence[int]) -> None:
        self.statements["reset"] += 1
        self._source.reset(ids)

    def park(self, refused: Mapping[int, str], behind: Sequence[int] = ()) -> frozenset[int]:
        self.statements["park"] += 1
        return self._source.park(refused, behind)

    def close(self) -> None:
        self._source.close()
