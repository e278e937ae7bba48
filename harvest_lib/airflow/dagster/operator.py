"""Start a Dagster job from Airflow and wait for it, holding no worker and starting it once.

The operator defers to the trigger at once. The trigger keeps the promises of `wait`; it may be moved, killed and
restarted at any point. A task that Airflow retries adopts a run that goes on or has succeeded; if a run failed under an
earlier try, a new run is started. Clearing a task in Airflow starts a new run: the tag holds the try it began with.
Killing the task in Airflow ends the run in Dagster; a timeout does not.

Dagster's address and credentials are read where the trigger runs, from the Airflow connection `conn_id`. The trigger's
arguments name the connection only, so that no secret goes through them into Airflow's database.
"""

import json
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from harvest_lib.airflow.dagster.endpoint import DagsterError
from harvest_lib.airflow.dagster.hook import DagsterHook
from harvest_lib.airflow.dagster.wait import DagsterRunFailed, Request, TaskAttempt, end, failure, outcome
from harvest_lib.airflow.provider import CONN_ID

if TYPE_CHECKING:
    from airflow.sdk import Context

_BACKSTOP = timedelta(minutes=2)


class DagsterRunTrigger(BaseTrigger):
    """Trigger that fires once, with the result of `wait.outcome`, when there is nothing more to wait for."""

    def __init__(self, *, attempt: Mapping[str, Any], conn_id: str = CONN_ID, **request: Any) -> None:
        """Prepare. The arguments are the fields of `Request`, the attempt as a mapping, and the connection's name."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.conn_id = conn_id
        self.request = Request(attempt=TaskAttempt(**attempt), **request)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and arguments that recreate this trigger in another process."""
        return f"{__name__}.{type(self).__name__}", {**asdict(self.request), "conn_id": self.conn_id}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, and fire once."""
        try:
            async with await DagsterHook(self.conn_id).client() as client:
                event = await outcome(client, self.request)
        except DagsterError as error:
            event = failure(error)
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """End the run in Dagster, since a user ended the task in Airflow."""
        async with await DagsterHook(self.conn_id).client() as client:
            await end(client, self.request.attempt)


class DagsterJobOperator(BaseOperator):
    """Start a Dagster job, once for all tries of this task, and wait for it in the triggerer.

    Returns the run's id and address. Raises DagsterRunFailed (with cause, evidence and next step) when the run failed,
    was not finished within `wait`, or Dagster was unreachable for `patience`; fails permanently, without another try,
    when Dagster has no such job, refuses the run, or ran nothing in it.
    """

    template_fields: Sequence[str] = ("job_name", "location", "partition", "run_config", "conn_id")
    template_fields_renderers = {"run_config": "json"}  # noqa: RUF012 - Airflow reads a plain class attribute

    def __init__(
        self,
        *,
        job_name: str,
        location: str = "",
        partition: str = "",
        run_config: Mapping[str, Any] | str | None = None,
        conn_id: str = CONN_ID,
        wait: timedelta = timedelta(hours=1),
        patience: timedelta = timedelta(minutes=5),
        poll: timedelta = timedelta(seconds=5),
        allow_empty: bool = False,
        **arguments: Any,
    ) -> None:
        """Prepare. `location` is needed only when several code locations have a job of this name.

        `partition` is the one to run of a partitioned job. `conn_id` names an Airflow connection of type `dagster`;
        without a connection `dagster_default` the address in DAGSTER_URL is used. A run that succeeds without having
        run a step, or with a check that was planned and not evaluated, fails the task unless `allow_empty`.
        """
        super().__init__(**arguments)
        self.job_name = job_name
        self.location = location
        self.partition = partition
        self.run_config = run_config or {}
        self.conn_id = conn_id
        self.wait = wait
        self.patience = patience
        self.poll = poll
        self.allow_empty = allow_empty

    def execute(self, context: "Context") -> None:
        """Hand over to the trigger; the worker is free from here on."""
        trigger = DagsterRunTrigger(
            conn_id=self.conn_id,
            job_name=self.job_name,
            location=self.location,
            partition=self.partition,
            run_config=json.loads(self.run_config) if isinstance(self.run_config, str) else self.run_config,
            attempt=asdict(_attempt(context)),
            deadline=time.time() + self.wait.total_seconds(),
            poll_seconds=self.poll.total_seconds(),
            patience_seconds=self.patience.total_seconds(),
            allow_empty=self.allow_empty,
        )
        # Airflow's own timeout knows no cause; it is there for the case that no triggerer runs at all.
        self.defer(trigger=trigger, method_name="completed", timeout=self.wait + _BACKSTOP)

    def on_kill(self) -> None:
        """End this process: the worker's, or the one of `dag.test()`, where the trigger waits too.

        Airflow has put a handler in place of SIGTERM's own effect that does no more than call this.
        """
        raise SystemExit(128 + signal.SIGTERM)

    def completed(self, context: "Context", event: dict[str, str]) -> dict[str, str]:  # noqa: ARG002 - Airflow's
        """Return or raise the outcome that the trigger found."""
        if event["outcome"] == "succeeded":
            self.log.info("the Dagster run succeeded: %s", event["url"])
            return {"run_id": event["run_id"], "url": event["url"]}
        error = DagsterRunFailed(event["cause"], evidence=event["evidence"], next_step=event["next_step"])
        if event["outcome"] == "refused":
            raise AirflowFailException(str(error)) from error
        raise error


def _attempt(context: "Context") -> TaskAttempt:
    instance: Any = context["ti"]
    before = instance.max_tries - (instance.task.retries or 0)  # tries before the task was last cleared
    parts = [instance.dag_id, instance.run_id, instance.task_id]
    if instance.map_index is not None and instance.map_index >= 0:
        parts.append(str(instance.map_index))
    return TaskAttempt(task="/".join([*parts, str(max(before, 0))]), number=instance.try_number)
