"""The operator that starts a Dagster job once and waits for it without occupying a worker.

The operator defers to the trigger at once. The trigger follows the steps of the module `wait`; Airflow may move, kill
and restart the trigger at any point. If Airflow retries the task, the new try adopts a run that has not ended or has
succeeded; if the run of an earlier try failed, the new try starts a new run. Clearing the task also starts a new run,
because the run's tag includes the number of tries before the task was cleared. Killing the task in Airflow ends the run
in Dagster; a timeout of the task does not end the run. Without `deferrable` the worker itself runs the trigger.
"""

import asyncio
import json
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, BaseOperatorLink

from harvest_lib.airflow.dagster.request import TaskAttempt
from harvest_lib.airflow.dagster.wait import DagsterRunFailed
from harvest_lib.airflow.links.dagster import DagsterRunLink, task_instance
from harvest_lib.airflow.operators.raised import raise_outcome
from harvest_lib.airflow.operators.typed import typed
from harvest_lib.airflow.outcomes import SUCCEEDED
from harvest_lib.airflow.provider import DAGSTER_ID
from harvest_lib.airflow.tasks import task_path, tell_outlets
from harvest_lib.airflow.triggers.dagster import DagsterRunTrigger

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import Context

_BACKSTOP = timedelta(minutes=2)


class DagsterJobOperator(BaseOperator):
    """Start a Dagster job, once for all tries of this task, and wait for it in the triggerer.

    Returns the run's id and address, and the keys of the assets that it materialized (`run_id`, `url`, `assets`); the
    events of the task's outlets get them as `extra`. Raises DagsterRunFailed, with cause, evidence and next step, if
    the run fails or does not finish within `wait`. Raises AirflowFailException if no retry would change the outcome: a
    job that Dagster does not have, a partition that the job does not have, credentials that Dagster refuses, a
    configuration that Dagster does not accept, a run that was canceled in Dagster, or a run that succeeded without
    proving anything. The button "Dagster run" leads to the run once it is known.

    All parameters are named as Airflow's own are: `partial`, `expand` and `default_args` take each of them.
    """

    template_fields: Sequence[str] = ("job_name", "location", "partition", "run_config", "conn_id")
    template_fields_renderers = {"run_config": "json"}  # noqa: RUF012 - Airflow reads a plain class attribute
    operator_extra_links: Collection[BaseOperatorLink] = (DagsterRunLink(),)

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
        restart_canceled: bool = False,
        deferrable: bool = True,
        **arguments: Any,
    ) -> None:
        """Make the task. `location` is needed only if several code locations have a job of this name.

        `partition` is the partition to run, if the job is partitioned. In a mapping `run_config`, a text that is one
        expression, such as `"{{ params.seconds }}"`, becomes the value of the expression with its type. `conn_id` names
        an Airflow connection of type `dagster`; if there is no connection `dagster_default`, the address in DAGSTER_URL
        is used. If `allow_empty` is False, a run that succeeds without executing a step, or without evaluating a
        planned check, fails the task. If `restart_canceled` is False, a run that was canceled in Dagster is not started
        again by a retry. If `deferrable` is False, the worker waits, and ends the run when the worker's process is
        ended. Airflow's setting `operators.default_deferrable` does not count, because Airflow itself sets it to False.
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
        self.restart_canceled = restart_canceled
        self.deferrable = deferrable
        self._is_ending = False

    def render_template(
        self,
        content: Any,
        context: "Context",
        jinja_env: "jinja2.Environment | None" = None,
        seen_oids: set[int] | None = None,
    ) -> Any:
        """Render a template. In a mapping, which only `run_config` can be, values keep their types."""
        if isinstance(content, dict):
            jinja_env = jinja_env or self.get_template_env()
            content = typed(content, jinja_env)
        return super().render_template(content, context, jinja_env, seen_oids)

    def execute(self, context: "Context") -> dict[str, Any]:
        """Hand over to the trigger: the worker is then free for other tasks. Without `deferrable`, wait here."""
        self._leave_the_link()
        instance: Any = context["ti"]
        trigger = DagsterRunTrigger(
            conn_id=self.conn_id,
            job_name=self.job_name,
            location=self.location,
            partition=self.partition,
            run_config=json.loads(self.run_config) if isinstance(self.run_config, str) else self.run_config,
            attempt=asdict(_attempt(instance)),
            deadline=time.time() + self.wait.total_seconds(),
            poll_seconds=self.poll.total_seconds(),
            patience_seconds=self.patience.total_seconds(),
            allow_empty=self.allow_empty,
            restart_canceled=self.restart_canceled,
            is_in_worker=not self.deferrable,
            task_instance=task_instance(instance),
        )
        if not self.deferrable:
            return self.completed(context, self._waited(trigger))
        # Airflow's own timeout raises an error without a cause. So this timeout is longer than `wait`: it only ends the
        # wait if no triggerer runs at all.
        return self.defer(trigger=trigger, method_name="completed", timeout=self.wait + _BACKSTOP)

    def _leave_the_link(self) -> None:
        """Keep Airflow from storing the link at the end of this process. The trigger stores the link, and at a
        deferral Airflow may be later, and would overwrite the link with an empty text."""
        self.operator_extra_links = ()

    def _waited(self, trigger: DagsterRunTrigger) -> dict[str, Any]:
        try:
            return asyncio.run(trigger.outcome())
        except BaseException:  # SIGTERM, by `on_kill`, or the task's execution_timeout
            self._is_ending = True
            asyncio.run(trigger.on_kill())
            raise

    def on_kill(self) -> None:
        """End this process: a worker's process, or the process of `dag.test()`, in which the trigger runs too.

        Airflow's own handler of SIGTERM only calls this method, and does not end the process.
        """
        if not self._is_ending:
            raise SystemExit(128 + signal.SIGTERM)

    def completed(self, context: "Context", event: dict[str, Any]) -> dict[str, Any]:
        """Return the id, the address and the assets of a run that succeeded. Raise the error for any other outcome."""
        self._leave_the_link()
        if event["outcome"] != SUCCEEDED:
            raise_outcome(event, DagsterRunFailed)
        self.log.info("the Dagster run succeeded: %s", event["url"])
        result = {name: event[name] for name in ("run_id", "url", "assets")}
        tell_outlets(self, context, {**result, **({"partition": self.partition} if self.partition else {})})
        return result


def _attempt(instance: Any) -> TaskAttempt:
    return TaskAttempt(task=task_path(instance, with_clears=True), number=instance.try_number)
