"""The operator that starts a Dagster job once and waits for it without occupying a worker.

The operator defers to the trigger at once. The trigger follows the steps of the module `wait`; Airflow may move, kill
and restart the trigger at any point. If Airflow retries the task, the new try adopts a run that has not ended or has
succeeded; if the run of an earlier try failed, the new try starts a new run. Clearing the task also starts a new run,
because the run's tag includes the number of tries before the task was cleared. Killing the task in Airflow ends the run
in Dagster; a timeout of the task does not end the run.
"""

import json
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from harvest_lib.airflow.dagster.request import TaskAttempt
from harvest_lib.airflow.dagster.wait import DagsterRunFailed
from harvest_lib.airflow.operators.raised import raise_outcome
from harvest_lib.airflow.outcomes import SUCCEEDED
from harvest_lib.airflow.provider import DAGSTER_ID
from harvest_lib.airflow.triggers.dagster import DagsterRunTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

_BACKSTOP = timedelta(minutes=2)


class DagsterJobOperator(BaseOperator):
    """Start a Dagster job, once for all tries of this task, and wait for it in the triggerer.

    Returns the run's id and address. Raises DagsterRunFailed, with cause, evidence and next step, if the run fails or
    does not finish within `wait`, or if Dagster is unreachable for `patience`. Fails permanently, without another try,
    if Dagster has no such job or refuses the run, or if the run executes nothing.
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
        conn_id: str = DAGSTER_ID,
        wait: timedelta = timedelta(hours=1),
        patience: timedelta = timedelta(minutes=5),
        poll: timedelta = timedelta(seconds=5),
        allow_empty: bool = False,
        **arguments: Any,
    ) -> None:
        """Make the task. `location` is needed only if several code locations have a job of this name.

        `partition` is the partition to run, if the job is partitioned. `conn_id` names an Airflow connection of type
        `dagster`; if there is no connection `dagster_default`, the address in DAGSTER_URL is used. If `allow_empty` is
        False, a run that succeeds without executing a step, or without evaluating a planned check, fails the task.
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
        """Hand over to the trigger. The worker is then free for other tasks."""
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
        # Airflow's own timeout raises an error without a cause. So this timeout is longer than `wait`: it only ends the
        # wait if no triggerer runs at all.
        self.defer(trigger=trigger, method_name="completed", timeout=self.wait + _BACKSTOP)

    def on_kill(self) -> None:
        """End this process: a worker's process, or the process of `dag.test()`, in which the trigger runs too.

        Airflow's own handler of SIGTERM only calls this method, and does not end the process.
        """
        raise SystemExit(128 + signal.SIGTERM)

    def completed(self, context: "Context", event: dict[str, str]) -> dict[str, str]:  # noqa: ARG002 - Airflow's
        """Return the id and the address of a run that succeeded. Raise the error for any other outcome."""
        if event["outcome"] != SUCCEEDED:
            raise_outcome(event, DagsterRunFailed)
        self.log.info("the Dagster run succeeded: %s", event["url"])
        return {"run_id": event["run_id"], "url": event["url"]}


def _attempt(context: "Context") -> TaskAttempt:
    instance: Any = context["ti"]
    before = instance.max_tries - (instance.task.retries or 0)  # tries before the task was last cleared
    parts = [instance.dag_id, instance.run_id, instance.task_id]
    if instance.map_index is not None and instance.map_index >= 0:
        parts.append(str(instance.map_index))
    return TaskAttempt(task="/".join([*parts, str(max(before, 0))]), number=instance.try_number)
