"""Delivery at least once with any number of records of a key on the way.

Promises
- What `AtLeastOnce` promises of acknowledgements, retries, timestamps and refusals.
- No gaps: when a record fails, no later one of its partition is in Kafka before it comes again
  (`enable.gapless.guarantee`, and no `message.timeout.ms`: with one, records 0-49, 150-199, 50-199 were seen).
- The first failure halts the delivery. What is queued is thrown away, what is on the wire is waited for, and only when
  nothing is outstanding any more are the failures reported, all together. So all of them are marked again, in order.
- A record that has not landed within the delivery timeout halts it as well; then what is on the wire is given up.

What it does not promise: after a failure, or under the next leader, a *run* of a key's records may come again, R0 R1 R2
R0 R1 R2, where the barrier allows R0 R1 R1 R2 at most. And as nothing in its queue expires, a leader that thaws after a
freeze may send what it had queued; see docs/operations.md, "Topics that refuse the late".
"""

from collections import deque
from collections.abc import Callable
from uuid import UUID

from harvest_lib.deadline import Deadline, boot_seconds
from harvest_lib.delivery.at_least_once import AtLeastOnce, LaneSettings
from harvest_lib.delivery.protocol import Failure, Reports
from harvest_lib.delivery.topics import Topics
from harvest_lib.record import Row


class Pipelined(AtLeastOnce):
    """`Delivery` that keeps order per partition, not per key in flight."""

    _halts = True

    def __init__(self, settings: LaneSettings, topics: Topics | None = None) -> None:
        super().__init__(settings, topics)
        self._failures: list[Failure] = []  # kept back until nothing is outstanding
        self._is_told = False  # that it halted
        self._give_up: Deadline | None = None
        """Set while halted: until then what is on the wire is waited for."""

    def begin(self, leader_id: UUID) -> None:
        self._is_told = False
        if self._give_up is not None:
            self._give_up = None
            self._dead = True
        super().begin(leader_id)

    def send(self, rows: deque[Row], may_send: Callable[[], bool]) -> None:
        if self._give_up is None:
            super().send(rows, may_send)

    def poll(self, timeout_seconds: float) -> Reports:
        reports = super().poll(timeout_seconds)
        if self._give_up is None:
            if not reports.failed and not self._is_overdue():
                return reports
            self._halt()
            reports.failed.extend(self._reports.failed)
            reports.acknowledged.extend(self._reports.acknowledged)
            self._reports = Reports()
        elif self._flying and self._give_up.passed:
            self._discard()
            last = super().poll(0)
            reports.acknowledged.extend(last.acknowledged)
            reports.failed.extend(last.failed)
        self._failures.extend(reports.failed)
        reports.failed = []
        if not self._flying:  # all may have landed after all: it has to begin again nevertheless
            reports.failed, self._failures = self._failures, []
            reports.halted, self._is_told = not self._is_told, True
        return reports

    def abandon(self) -> Reports:
        self._give_up = self._give_up or Deadline(0)
        self._discard()
        reports = self.poll(0)
        reports.halted = False  # it begins again, or not at all
        return reports

    def _own_settings(self) -> dict[str, object]:
        return {"enable.gapless.guarantee": True, "message.timeout.ms": 0}

    def _is_overdue(self) -> bool:
        oldest, _ = next(iter(self._flying.values()), (None, None))
        return oldest is not None and boot_seconds() - oldest > self._settings.delivery_timeout_seconds

    def _halt(self) -> None:
        """Throw away what has not left; what has is waited for as long as it may take."""
        oldest, _ = next(iter(self._flying.values()), (boot_seconds(), None))
        self._give_up = Deadline(oldest + self._settings.delivery_timeout_seconds - boot_seconds())
        self._reports.failed.extend(Failure(row=row, reason="never left") for row in self._queue)
        self._queue.clear()
        if (producer := self._producer) is not None:
            producer.purge(in_queue=True, in_flight=False, blocking=True)
            self._serve(lambda: producer.poll(0))
