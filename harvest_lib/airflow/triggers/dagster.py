"""The trigger that waits for a Dagster run.

The process of the trigger reads Dagster's address and credentials from the Airflow connection `conn_id`. The trigger's
arguments have only the name of the connection, so that no secret gets into Airflow's database.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from harvest_lib.airflow.dagster.wait import Request, TaskAttempt, end, failure, outcome
from harvest_lib.airflow.hooks.dagster import DagsterHook
from harvest_lib.airflow.provider import DAGSTER_ID
from harvest_lib.errors import HarvestError


class DagsterRunTrigger(BaseTrigger):
    """The trigger that waits for a Dagster run, and fires once, with the result of `wait.outcome`."""

    def __init__(self, *, attempt: Mapping[str, Any], conn_id: str = DAGSTER_ID, **request: Any) -> None:
        """Make a trigger. `attempt` has the fields of `TaskAttempt`; `request` are the other fields of `Request`."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.conn_id = conn_id
        self.request = Request(attempt=TaskAttempt(**attempt), **request)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and arguments that recreate this trigger in another process."""
        return f"{__name__}.{type(self).__name__}", {**asdict(self.request), "conn_id": self.conn_id}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for the run, and yield a single event."""
        try:
            async with await DagsterHook(self.conn_id).client() as client:
                event = await outcome(client, self.request)
        except HarvestError as error:
            event = failure(error)
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """End the run in Dagster, since a user ended the task in Airflow."""
        async with await DagsterHook(self.conn_id).client() as client:
            await end(client, self.request.attempt)
