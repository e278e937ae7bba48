"""The sensor that reports failed runs, with cause and next step, and jobs that run again after a failure.

A hook would not do: it runs inside the run, so nothing calls it after the run's process was killed. Dagster's
run-status sensor would not do either: it cannot skip a run and report another in the same tick, and it writes an event
to every run that it evaluates. So this is a plain sensor with its own cursor. A project can replace `tell` to page
operators; the default writes to the log of the code location.

Each alert is reported once. If `tell` raises, the next ticks call `tell` again with the same alert, up to three times
in all. Later alerts wait until then. If a tick is killed, the next tick repeats at most the alerts of the killed tick.
"""

import json
import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal

import dagster as dg

from dagster_harvest.daemon import DAEMON_TAG, location_of
from dagster_harvest.settings import OutboxSettings

Tell = Callable[[str], None]

_log = logging.getLogger(__name__)
_PARTITION_TAG = "dagster/partition"
_EVENTS_READ = 50
"""The largest number of events of each kind that a tick reads; the next tick reads further events."""
_MOST_TRIES = 3
_Kind = Literal[dg.DagsterEventType.RUN_FAILURE, dg.DagsterEventType.RUN_START]
_KINDS: tuple[_Kind, ...] = (dg.DagsterEventType.RUN_FAILURE, dg.DagsterEventType.RUN_START)


def log_alert(text: str) -> None:
    """Write the alert to the log of the code location."""
    _log.error("dagster_alert", extra={"reason": text})


def alert_sensor(settings: OutboxSettings, tell: Tell = log_alert) -> dg.SensorDefinition:
    """Return the sensor that reports failures and recoveries of all runs of the outbox. It is on by default."""

    @dg.sensor(
        name=f"{settings.name}_alerts",
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=10,
        description="Reports failed runs with cause and next step, and jobs that run again after a failure.",
    )
    def alerts(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return _Tick(context, settings, tell).result()

    return alerts


class _Tick:
    """One tick of the sensor. The cursor has the id of the last handled event, and how often reporting the next event
    failed."""

    def __init__(self, context: dg.SensorEvaluationContext, settings: OutboxSettings, tell: Tell) -> None:
        self._context = context
        self._tell = tell
        self._jobs = {
            settings.daemon_job_name,
            settings.audit_job_name,
            settings.archive_job_name,
            settings.replay_job_name,
        }
        assets = {settings.outbox_key, settings.business_key, settings.archive_key, settings.replay_key}
        self._assets = assets | set(settings.audit_keys)
        origin = context.code_location_origin
        self._location = origin.location_name if origin is not None else "in-process"

    def result(self) -> dg.SensorResult:
        if self._context.cursor is None:
            return self._done(self._newest(), 0, "begins with later runs")
        at, tries = json.loads(self._context.cursor)
        told: list[str] = []
        events = self._events_after(at)
        runs = self._runs(events)
        for record in events:
            run = runs.get(record.event_log_entry.run_id)
            if run is not None and (text := self._text(record, run)) is not None:
                if (problem := self._told(text)) is not None and tries + 1 < _MOST_TRIES:
                    return self._done(at, tries + 1, f"{problem}; it is tried again")
                told.append(text)
            at, tries = record.storage_id, 0
        return self._done(at, tries, "; ".join(told) or "nothing failed")

    def _done(self, at: int, tries: int, words: str) -> dg.SensorResult:
        return dg.SensorResult(skip_reason=words, cursor=json.dumps([at, tries]))

    def _told(self, text: str) -> str | None:
        """Call `tell`; return the problem if it raises, else None."""
        try:
            self._tell(text)
        except Exception as error:  # noqa: BLE001 - a function of the user's: its error must not end other alerts
            problem = f"the alert could not be reported ({type(error).__name__}): {text}"
            self._context.log.error(problem)  # noqa: TRY400 - what it raises may hold the address of a pager
            return problem
        self._context.log.info(text)
        return None

    # -- events

    def _newest(self) -> int:
        found = [self._context.instance.fetch_run_status_changes(kind, limit=1).records for kind in _KINDS]
        return max((record.storage_id for records in found for record in records), default=-1)

    def _events_after(self, at: int) -> Sequence[dg.EventLogRecord]:
        """Return the next events of both kinds after the event with the id `at`, ordered by id. No event between two of
        them is left out."""
        found = [
            record
            for kind in _KINDS
            for record in self._context.instance.fetch_run_status_changes(
                dg.RunStatusChangeRecordsFilter(event_type=kind, after_storage_id=at),
                limit=_EVENTS_READ,
                ascending=True,
            ).records
        ]
        return sorted(found, key=lambda record: record.storage_id)[:_EVENTS_READ]

    def _runs(self, events: Sequence[dg.EventLogRecord]) -> dict[str, dg.DagsterRun]:
        """Return the runs of the events that belong to the outbox, keyed by run id."""
        if not (ids := {record.event_log_entry.run_id for record in events}):
            return {}
        found = self._context.instance.get_runs(dg.RunsFilter(run_ids=list(ids)))
        return {run.run_id: run for run in found if self._concerns_us(run)}

    def _text(self, record: dg.EventLogRecord, run: dg.DagsterRun) -> str | None:
        """Return the alert for an event; None for a start that follows no failure."""
        event = record.event_log_entry.dagster_event
        if event is not None and event.event_type is dg.DagsterEventType.RUN_FAILURE:
            return told_failure(self._context.instance, run, event.message)
        return self._recovery(run)

    def _concerns_us(self, run: dg.DagsterRun) -> bool:
        is_ours = run.job_name in self._jobs or not self._assets.isdisjoint(run.asset_selection or ())
        return is_ours and location_of(run) == self._location

    def _recovery(self, run: dg.DagsterRun) -> str | None:
        partition = {name: run.tags[name] for name in (_PARTITION_TAG,) if name in run.tags}
        found = self._context.instance.get_runs(dg.RunsFilter(job_name=run.job_name, tags=partition), limit=10)
        ids = [each.run_id for each in found]
        earlier = found[ids.index(run.run_id) + 1 :] if run.run_id in ids else found
        before = next((each for each in earlier if each.is_finished), None)
        if before is None or before.status is not dg.DagsterRunStatus.FAILURE:
            return None
        return f"{run.job_name} runs again as {run.run_id}, after {before.run_id} had failed"


def told_failure(instance: dg.DagsterInstance, run: dg.DagsterRun, message: str | None) -> str:
    """Return the text about a failed run: the message of each failed step, else the message of the run."""
    steps: list[Any] = [
        record.event_log_entry.dagster_event
        for record in instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE).records
    ]
    causes = [
        data.user_failure_data.description
        for event in steps
        if (data := event.step_failure_data).user_failure_data is not None and data.user_failure_data.description
    ]
    cause = "; ".join(causes) or message or "Dagster has no cause"
    is_kept = DAEMON_TAG in run.tags
    step = "its supervisor starts the next one" if is_kept else "correct it, then launch it again: nothing is twice"
    return f"{run.job_name} failed, run {run.run_id}: {cause}\n  then: {step}"
