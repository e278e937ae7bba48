"""The operator that starts a run of a DAG for each event of an asset.

A DAG that is scheduled by an asset has a single run for all events that arrive before Airflow's scheduler looks. And of
a burst, Airflow gives that run the first events alone: later ones get a run when yet another event arrives. So a DAG
with this operator is the one that the asset schedules; the operator reads the asset's events itself, and starts a run
of another DAG for each.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, BaseOperator
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse, TriggerDagRun

from harvest_lib.airflow.compat import AirflowException
from harvest_lib.airflow.event_progress import EventProgress

if TYPE_CHECKING:
    from airflow.sdk import Context

_PAGE_EVENTS = 200
_MOST_REFUSED = 100


class RunPerEventOperator(BaseOperator):
    """Start a run of `trigger_dag_id` for each event of `asset`, once, and return how many this task started.

    The run's id is the `id` in the event's payload, which the triggers of this package set, so that an event that is
    repeated starts no second run. The run's `conf` is the payload. An event without an `id` has the run
    `event:<number>`.

    The task looks at the events of the DAG run that it is in, and at all since the last task that succeeded. Schedule
    its DAG by `asset`, with `max_active_runs=1`. Every try of the task goes on where the last one stopped.
    """

    template_fields: Sequence[str] = ("trigger_dag_id",)

    def __init__(self, *, asset: Asset, trigger_dag_id: str, **arguments: Any) -> None:
        """Make the task."""
        super().__init__(inlets=[asset], **arguments)
        self.asset = asset
        self.trigger_dag_id = trigger_dag_id

    def execute(self, context: "Context") -> int:
        """Start the runs."""
        store, key = context["asset_state_store"][self.asset], f"runs/{self.dag_id}/{self.task_id}"
        progress = EventProgress.of_json(store.get(key), [each.timestamp for each in self._triggering(context)])
        started, there, refused = 0, 0, []
        for event in self._events(context, progress):
            try:
                is_new = self._start(event)
            except AirflowRuntimeError as error:
                # One event that the DAG refuses must not keep the others from their runs.
                self.log.error("the event %s starts no run of %s: %s", event.id, self.trigger_dag_id, error)  # noqa: TRY400
                refused.append(event.id)
                if len(refused) == _MOST_REFUSED:
                    break
                continue
            started, there = started + is_new, there + (not is_new)
            if progress.note(event.id, event.timestamp) % _PAGE_EVENTS == 0 and not refused:
                store.set(key, progress.as_json())
        if progress.until is not None and not refused:
            store.set(key, progress.as_json())
        self.log.info("started %d runs of %s; %d events had their run before", started, self.trigger_dag_id, there)
        if refused:
            raise AirflowException(
                f"{self.trigger_dag_id} refused the runs of {len(refused)} events, the first of them {refused[0]}: see "
                "the log; correct the DAG's parameters, or clear this task afterwards"
            )
        return started

    def _triggering(self, context: "Context") -> Sequence[Any]:
        found: Sequence[Any] = context["triggering_asset_events"].get(self.asset, ())
        return found

    def _events(self, context: "Context", progress: EventProgress) -> Iterator[Any]:
        """Yield the events that no task has looked at, the first ones first."""
        at, seen = progress.begin, set(progress.recent)
        while at is not None:
            page = [*context["inlet_events"][self.asset].after(at.isoformat()).limit(_PAGE_EVENTS)]
            new = [event for event in page if event.id not in seen]
            seen.update(event.id for event in new)
            yield from new
            at = page[-1].timestamp if len(page) == _PAGE_EVENTS and page[-1].timestamp > at else None

    def _start(self, event: Any) -> bool:
        """Start the run of an event. Return False if there is one."""
        from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS  # noqa: PLC0415 - set when a task begins

        payload = event.extra.get("payload") if event.extra else None
        conf = payload if isinstance(payload, dict) else {"payload": payload}
        run_id = str(conf.get("id") or f"event:{event.id}")
        answer = SUPERVISOR_COMMS.send(TriggerDagRun(dag_id=self.trigger_dag_id, run_id=run_id, conf=conf))
        if isinstance(answer, ErrorResponse):
            if answer.error != ErrorType.DAGRUN_ALREADY_EXISTS:
                raise AirflowRuntimeError(answer)
            return False
        return True
