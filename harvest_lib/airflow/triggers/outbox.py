"""The triggers that wait until an outbox is as a sensor wants it.

The process of a trigger reads the Airflow connection `conn_id`. The trigger's arguments have only its name. All other
state is in Postgres, so the process may be killed and restarted at any point; the word `start` counts from the restart.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from harvest_lib.airflow.audited import AuditFailed, AwaitedAudit
from harvest_lib.airflow.awaited import AwaitedDelivery, AwaitedLeader, Awaiting, NotInTime, Reading
from harvest_lib.airflow.hooks.outbox import HarvestHook
from harvest_lib.airflow.outcomes import LATE, SUCCEEDED, failure
from harvest_lib.errors import DatabaseUnavailable, HarvestError, NothingChecked

_LOG_SECONDS = 60.0


class OutboxTrigger(BaseTrigger):
    """A trigger that reads an outbox until a condition holds, and fires once, with an outcome of `outcomes`.

    `condition` has the arguments of the class that reads. `deadline` is Unix time. Postgres may be unreachable for
    `patience_seconds`.
    """

    reads: ClassVar[Callable[..., Awaiting]]
    """The class that reads the outbox."""

    def __init__(
        self, *, conn_id: str, deadline: float, poll_seconds: float, patience_seconds: float, **condition: Any
    ) -> None:
        """Make a trigger. It reads nothing."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.conn_id = conn_id
        self.deadline = deadline
        self.poll_seconds = poll_seconds
        self.patience_seconds = patience_seconds
        self.condition = condition

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and arguments that recreate this trigger in another process."""
        names = ("conn_id", "deadline", "poll_seconds", "patience_seconds")
        arguments = {name: getattr(self, name) for name in names}
        return f"{__name__}.{type(self).__name__}", {**arguments, **self.condition}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for the condition, and yield a single event."""
        try:
            event = {"outcome": SUCCEEDED, **(await self._awaited()).as_xcom()}
        except NotInTime as error:
            event = {**failure(error), "outcome": LATE}
        except HarvestError as error:
            event = failure(error, AuditFailed, NothingChecked)
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    async def _awaited(self) -> Reading:
        reads = type(self).reads(**self.condition)
        config = await HarvestHook(self.conn_id).aconfig()
        answered, logged, last = time.monotonic(), float("-inf"), "the outbox was not read"
        while True:
            try:
                found = await asyncio.to_thread(reads.read, config)
                if found.is_done:
                    return found
                answered, last = time.monotonic(), str(found)
            except DatabaseUnavailable:
                if time.monotonic() - answered > self.patience_seconds:
                    raise
            if time.time() > self.deadline:
                raise reads.late(last)
            if time.monotonic() - logged >= _LOG_SECONDS:
                logged = time.monotonic()
                self.log.info("%s", last)
            await asyncio.sleep(self.poll_seconds)


class OutboxDrainedTrigger(OutboxTrigger):
    """The trigger that waits for the delivery. The class `AwaitedDelivery` describes its condition."""

    reads = AwaitedDelivery


class LeaderDrainedTrigger(OutboxTrigger):
    """The trigger that waits for another process's delivery. The class `AwaitedLeader` describes its condition."""

    reads = AwaitedLeader


class AuditPassedTrigger(OutboxTrigger):
    """The trigger that waits for an audit. The class `AwaitedAudit` describes its condition."""

    reads = AwaitedAudit
