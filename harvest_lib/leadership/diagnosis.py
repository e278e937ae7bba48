"""Diagnosis by Kafka of a member that does not lead: trouble with the leader topic, or another pool in the group.

Kafka is asked on a thread of its own: the election must not wait for the answer.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from harvest_lib.errors import PoolConflict
from harvest_lib.leadership.leader_topic import topic_trouble
from harvest_lib.leadership.other_pools import OtherPools
from harvest_lib.process import threads

_INTERVAL_SECONDS = 5.0
"""A member that has to wait asks this often whether it waits for another pool."""


class Diagnosis:
    """Query Kafka for the leader topic on request, and now and then for other pools while this member waits.

    `assigned` returns for each shard True if its partition is assigned to this member.
    """

    def __init__(self, client: Mapping[str, object], topic: str, assigned: Callable[[], Sequence[bool]]) -> None:
        self._client = client
        self._topic = topic
        self._assigned = assigned
        self._findings: queue.SimpleQueue[PoolConflict | str] = queue.SimpleQueue()
        self._requested = threading.Event()
        self._stopped = threading.Event()

    def start(self, others: OtherPools | None) -> None:
        """Start the thread. `others` finds other pools, for a member that knows its own."""
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
        """End the thread, without waiting for it."""
        self._stopped.set()
        self._requested.set()

    def findings(self) -> Iterator[PoolConflict | str]:
        """Return the findings since the last call: the pool that is in the way, or the trouble with the topic."""
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
