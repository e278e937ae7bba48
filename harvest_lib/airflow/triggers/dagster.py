"""The trigger that waits for a Dagster run.

The process of the trigger reads Dagster's address and credentials from the Airflow connection `conn_id`. The trigger's
arguments have only the name of the connection, so that no secret gets into Airflow's database.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from harvest_lib.airflow.compat import MINOR
from harvest_lib.airflow.dagster.request import Request, TaskAttempt
from harvest_lib.airflow.dagster.wait import end, failure, outcome
from harvest_lib.airflow.hooks.dagster import DagsterHook
from harvest_lib.airflow.links.dagster import publish
from harvest_lib.airflow.provider import DAGSTER_ID
from harvest_lib.errors import HarvestError


class DagsterRunTrigger(BaseTrigger):
    """The trigger that waits for a Dagster run, and fires once, with the result of `wait.outcome`."""

    def __init__(
        self,
        *,
        attempt: Mapping[str, Any],
        conn_id: str = DAGSTER_ID,
        task_instance: Mapping[str, Any] | None = None,
        **request: Any,
    ) -> None:
        """Make a trigger. `attempt` has the fields of `TaskAttempt`; `request` are the other fields of `Request`. The
        task instance that `task_instance` names gets the link to the run."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.conn_id = conn_id
        self.linked = task_instance
        self.request = Request(attempt=TaskAttempt(**attempt), **request)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and arguments that recreate this trigger in another process."""
        arguments = {**asdict(self.request), "conn_id": self.conn_id, "task_instance": self.linked}
        return f"{__name__}.{type(self).__name__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for the run, and yield a single event."""
        yield TriggerEvent(await self.outcome())  # type: ignore[no-untyped-call]

    async def outcome(self) -> dict[str, Any]:
        """Wait for the run, and return the result of `wait.outcome`."""
        known = partial(publish, self.linked) if self.linked and MINOR >= 3 else None  # noqa: PLR2004 - a trigger stores none before
        try:
            async with await DagsterHook(self.conn_id).client() as client:
                return await outcome(client, self.request, known)
        except HarvestError as error:
            return {**failure(error)}

    async def on_kill(self) -> None:
        """End the run in Dagster, since a user ended the task in Airflow. The log shows an error if the run goes on."""
        try:
            async with await DagsterHook(self.conn_id).client() as client:
                await end(client, self.request.attempt)
        except HarvestError as error:
            self.log.error("the Dagster run of this task goes on: %s", error)  # noqa: TRY400 - a trace says no more
