"""Diagnosis of a member that does not lead: queries Kafka for trouble with the leader topic and for other pools.

Kafka is queried on a separate thread, because the election must not wait for the answer.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from harvest_lib.errors import PoolConflict
from harvest_lib.leadership.leader_topic import topic_trouble
from harvest_lib.leadership.other_pools import OtherPools
from harvest_lib.process import threads

_INTERVAL_SECONDS = 5.0
"""Interval at which a member that has to wait queries Kafka for another pool."""


class Diagnosis:
    """Queries Kafka about the leader topic on request, and about other pools every few seconds while this member waits.

    `assigned` returns, for each shard, True if the shard's partition is assigned to this member.
    """

    def __init__(self, client: Mapping[str, object], topic: str, assigned: Callable[[], Sequence[bool]]) -> None:
        self._client = client
        self._topic = topic
        self._assigned = assigned
        self._findings: queue.SimpleQueue[PoolConflict | str] = queue.SimpleQueue()
        self._requested = threading.Event()
        self._stopped = threading.Event()

    def start(self, others: OtherPools | None) -> None:
        """Start the thread. `others` finds other pools; None if this member's own pool is unknown."""
        threads.repeat(
            "harvest-neli-diagnosis",
            lambda: self._look(others, requested=self._requested.wait(_INTERVAL_SECONDS)),
            stopping=self._stopped,
            pause_seconds=lambda: 0.0,
        )

    def request(self) -> None:
        """Request a check of the leader topic now."""
        self._requested.set()

    def stop(self) -> None:
        """Stop the thread, without a wait for its end."""
        self._stopped.set()
        self._requested.set()

    def findings(self) -> Iterator[PoolConflict | str]:
        """Yield the findings since the last call: conflicts with another pool, and troubles with the topic."""
        while not self._findings.empty():
            yield self._findings.get()

    def _look(self, others: OtherPools | None, *, requested: bool) -> None:
        if self._stopped.is_set():
            return
        self._requested.clear()
        assigned = self._assigned()
        if requested and (trouble := topic_trouble(self._client, self._topic, len(assigned))):
            self._findings.put(trouble)
        if others is None or all(assigned) or (conflict := others.find()) is None:
            return
        if not (any(assigned) and others.is_first(conflict)):
            others.tell(conflict)
            self._findings.put(conflict)
