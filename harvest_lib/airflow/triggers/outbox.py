"""The trigger that waits until an outbox is delivered.

The process of the trigger reads the Airflow connection `conn_id`. The trigger's arguments have only its name. All other
state is in Postgres, so the process may be killed and restarted at any point; `until=start` counts from the restart.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from harvest_lib.airflow.awaited import Awaited, NotDelivered, Reading
from harvest_lib.airflow.hooks.outbox import HarvestHook
from harvest_lib.airflow.outcomes import LATE, SUCCEEDED, failure
from harvest_lib.errors import DatabaseUnavailable, HarvestError

_LOG_SECONDS = 60.0


class OutboxDrainedTrigger(BaseTrigger):
    """The trigger that reads an outbox until it is delivered, and fires once, with an outcome of `outcomes`.

    The class `Awaited` describes `until`. `deadline` is Unix time. Postgres may be unreachable for `patience_seconds`.
    """

    def __init__(
        self, *, conn_id: str, until: str, deadline: float, poll_seconds: float, patience_seconds: float
    ) -> None:
        """Make a trigger. It reads nothing."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.conn_id = conn_id
        self.until = until
        self.deadline = deadline
        self.poll_seconds = poll_seconds
        self.patience_seconds = patience_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and arguments that recreate this trigger in another process."""
        names = ("conn_id", "until", "deadline", "poll_seconds", "patience_seconds")
        return f"{__name__}.{type(self).__name__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for the delivery, and yield a single event."""
        try:
            event = {"outcome": SUCCEEDED, **(await self._delivered()).as_xcom()}
        except NotDelivered as error:
            event = {**failure(error), "outcome": LATE}
        except HarvestError as error:
            event = failure(error)
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    async def _delivered(self) -> Reading:
        awaited, config = Awaited(self.until), await HarvestHook(self.conn_id).aconfig()
        answered, logged, last = time.monotonic(), float("-inf"), "the outbox was not read"
        while True:
            try:
                found = await asyncio.to_thread(awaited.read, config)
                if found.is_done:
                    return found
                answered, last = time.monotonic(), str(found)
            except DatabaseUnavailable:
                if time.monotonic() - answered > self.patience_seconds:
                    raise
            if time.time() > self.deadline:
                raise NotDelivered.in_time(last)
            if time.monotonic() - logged >= _LOG_SECONDS:
                logged = time.monotonic()
                self.log.info("%s", last)
            await asyncio.sleep(self.poll_seconds)
