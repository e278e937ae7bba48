"""Decides when a topic is materialized, and with how many records. Pure: totals and times are passed in.

Promises
- A topic is materialized only if records were delivered to it since its last materialization.
- The sum over all materializations is the number of delivered records, if each materialization was written
  (`materialized`) and the pending records of a run are materialized at its end.
- Two materializations of a topic are at least `every_seconds` apart, except at the end of a run. Records that come
  after a pause are gathered for `gather_seconds`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class _Account:
    """The records of a topic. `since` is the time of the first pending record, None without a record. `at` is the time
    of the last materialization, None before the first."""

    total: int = 0
    materialized: int = 0
    since: float | None = None
    at: float | None = None

    @property
    def pending(self) -> int:
        return self.total - self.materialized


class TopicLedger:
    """The records of topics that were delivered and not materialized yet. Times are in seconds of the same clock."""

    def __init__(self, topics: Iterable[str], *, every_seconds: float, gather_seconds: float) -> None:
        self._accounts = {topic: _Account() for topic in topics}
        self._every_seconds = every_seconds
        self._gather_seconds = min(gather_seconds, every_seconds)

    def count(self, totals: Mapping[str, int], now: float) -> None:
        """Note the totals of delivered records. Topics without an account are ignored."""
        for topic, account in self._accounts.items():
            account.total = totals.get(topic, account.total)
            if account.pending and account.since is None:
                account.since = now

    def begin_after(self, topic: str, at: float) -> None:
        """Note the time of the last materialization by an earlier run."""
        self._accounts[topic].at = at

    def pending(self, topic: str) -> int:
        """Return the number of records that were delivered and not materialized yet."""
        return self._accounts[topic].pending

    def total(self, topic: str) -> int:
        """Return the number of records that were delivered."""
        return self._accounts[topic].total

    def due(self, now: float) -> list[str]:
        """Return the topics to materialize now."""
        return [topic for topic, account in self._accounts.items() if self._is_due(account, now)]

    @property
    def unfinished(self) -> list[str]:
        """Return the topics with pending records."""
        return [topic for topic, account in self._accounts.items() if account.pending]

    def materialized(self, topic: str, records: int, now: float) -> None:
        """Note a materialization with a number of records; 0 if the materialization could not be
        written, so that the next attempt comes after the interval."""
        account = self._accounts[topic]
        account.materialized += records
        account.at = now
        account.since = now if account.pending else None

    def _is_due(self, account: _Account, now: float) -> bool:
        if account.since is None or now - account.since < self._gather_seconds:
            return False
        return account.at is None or not 0 <= now - account.at < self._every_seconds  # a clock may have been set back
