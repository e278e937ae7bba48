"""Rules for the records to park, and those to hold behind a parked one. Pure, no I/O.

A record that Kafka rejects permanently is *parked*. Under the policy `hold_key` its key is then held in its topic:
later records of the key for that topic are parked behind it, in order, until somebody retries or drops the parked one.
Other topics go on: nobody who may not write to a topic can hold its keys. Under `skip` all go on without it. Under
`stop` the harvester stops instead.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from harvest_lib.config.limits import Policy
from harvest_lib.errors import RecordError
from harvest_lib.record import Row

_log = logging.getLogger(__name__)

Refusals = Callable[[Sequence[Row]], Mapping[int, str]]
"""Return those of the rows that can never be sent, id and reason."""

_SHOWN = 10

HeldKey = tuple[str, str]
"""A topic and a key in it."""


class ParkingRules:
    """Records that one term has to park. `begin` it whenever the rows are marked under a new leader id.

    The keys with a parked record come with each batch, since others may park and release: a fenced leader, operators.
    """

    def __init__(self, policy: Policy, refusals: Refusals) -> None:
        self._policy = policy
        self._refusals = refusals
        self._refused_keys: dict[HeldKey, int] = {}  # of refused records: the lowest id of each key in its topic
        self._refused: dict[int, str] = {}
        self._topics: dict[int, str] = {}  # of refused records
        self._behind: set[int] = set()

    def begin(self) -> None:
        """Start over: records found before come again."""
        self._refused_keys.clear()
        self._refused.clear()
        self._topics.clear()
        self._behind.clear()

    def filter(self, rows: Sequence[Row], parked: Mapping[HeldKey, int]) -> Sequence[Row]:
        """Return the rows that may be sent, and keep the others to be parked: those that are refused, and those of a
        key that has a parked record of its topic before them. Raises RecordError under `stop`."""
        refusals = self._refusals(rows)
        if not refusals and not self._refused_keys and not parked:
            return rows
        good: list[Row] = []
        for row in rows:
            if self._is_behind(row, parked):
                self._behind.add(row[0])
            elif row[0] in refusals:
                self.refuse(row, refusals[row[0]])
            else:
                good.append(row)
        return good

    def refuse(self, row: Row, reason: str) -> None:
        """Park a record; under `hold_key` its key is held from now on. Raises RecordError under `stop`."""
        if self._policy == "stop":
            raise RecordError(
                f"record {row[0]} for topic {row[1][:80]!r} can never be sent",
                evidence=reason,
                next_step="correct it in the outbox or delete it there; `parking: hold_key` would park it",
            )
        self._refused[row[0]] = reason
        self._topics[row[0]] = row[1]
        if self._policy == "hold_key":
            self._refused_keys[row[1:3]] = min(row[0], self._refused_keys.get(row[1:3], row[0]))

    @property
    def refused_keys(self) -> dict[HeldKey, int]:
        """Return the keys of records that are refused and not parked yet, with the lowest id of each."""
        return dict(self._refused_keys)

    @property
    def has_work(self) -> bool:
        return bool(self._refused or self._behind)

    def work(self) -> tuple[dict[int, str], list[int]]:
        """Return the records to park: refused ones with reasons, and the ids of those behind them."""
        return dict(self._refused), sorted(self._behind)

    def done(self, refused: Mapping[int, str], behind: Sequence[int], released: Collection[int]) -> bool:
        """Note that the work was done, but for `released`, which nothing parked is before any more; return True if
        there are any."""
        for record_id in refused:
            self._refused.pop(record_id, None)
        if not self._refused:
            self._refused_keys.clear()
        for record_id in behind:
            self._behind.discard(record_id)
        if refused:
            reasons = sorted(set(refused.values()))[:_SHOWN]
            topics = sorted({self._topics.pop(each) for each in refused if each in self._topics})[:_SHOWN]
            ids = list(refused)[:_SHOWN]
            _log.warning(
                "records_parked", extra={"ids": ids, "topics": topics, "count": len(refused), "reasons": reasons}
            )
        if held := len(behind) - len(released):
            _log.info("records_held", extra={"count": held})
        return bool(released)

    def _is_behind(self, row: Row, parked: Mapping[HeldKey, int]) -> bool:
        if self._policy != "hold_key":
            return False
        first = min(parked.get(row[1:3], row[0]), self._refused_keys.get(row[1:3], row[0]))
        return row[0] > first
