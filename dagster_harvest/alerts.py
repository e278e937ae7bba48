"""Reports failed runs, with cause and next step, in one line, and recoveries.

Sensors, not hooks: a hook runs inside the run, and nothing calls it when the run's process was killed. `tell` can be
replaced to page operators; the default writes to the logs of the code location and of the sensor.
"""

import logging
from collections.abc import Callable, Sequence

import dagster as dg

from dagster_harvest.daemon import DAEMON_TAG
from dagster_harvest.settings import RESULTS, OutboxSettings

Tell = Callable[[str], None]

_log = logging.getLogger(__name__)
_PARTITION_TAG = "dagster/partition"


def log_alert(text: str) -> None:
    """Log the alert in the code location."""
    _log.error("dagster_alert", extra={"reason": text})


def alert_sensors(settings: OutboxSettings, tell: Tell = log_alert) -> Sequence[dg.SensorDefinition]:
    """Return the sensor of failures and that of recoveries, over all runs that touch the outbox, on by default."""
    jobs = {
        settings.daemon_job_name,
        settings.audit_job_name,
        settings.archive_job_name,
        settings.replay_job_name,
    }
    assets = {settings.outbox_key, settings.business_key, settings.archive_key, settings.replay_key}
    assets |= set(map(settings.audit_key, RESULTS))

    def concerns_us(run: dg.DagsterRun) -> bool:
        return run.job_name in jobs or not assets.isdisjoint(run.asset_selection or ())

    @dg.run_failure_sensor(
        name=f"{settings.name}_failures",
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=10,
        description="Says of a failed run what failed, why, and what to do next.",
    )
    def failures(context: dg.RunFailureSensorContext) -> dg.SkipReason | None:
        if not concerns_us(context.dagster_run):
            return dg.SkipReason("a run that does not touch this outbox")
        text = told_failure(context)
        context.log.error(text)
        tell(text)
        return None

    @dg.run_status_sensor(
        run_status=dg.DagsterRunStatus.STARTED,
        name=f"{settings.name}_recoveries",
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=10,
        description="Says that a job whose last run failed runs again.",
    )
    def recoveries(context: dg.RunStatusSensorContext) -> dg.SkipReason | None:
        run = context.dagster_run
        if not concerns_us(run):
            return dg.SkipReason("a run that does not touch this outbox")
        partition = {name: run.tags[name] for name in (_PARTITION_TAG,) if name in run.tags}
        earlier = context.instance.get_runs(dg.RunsFilter(job_name=run.job_name, tags=partition), limit=10)
        before = next((each for each in earlier if each.run_id != run.run_id and each.is_finished), None)
        if before is None or before.status is not dg.DagsterRunStatus.FAILURE:
            return dg.SkipReason("the run before it had not failed")
        text = f"{run.job_name} runs again as {run.run_id}, after {before.run_id} had failed"
        context.log.info(text)
        tell(text)
        return None

    return [failures, recoveries]


def told_failure(context: dg.RunFailureSensorContext) -> str:
    """Return the text about a failed run: the message of each failed step, else that of the run."""
    run = context.dagster_run
    causes = [
        data.user_failure_data.description
        for event in context.get_step_failure_events()
        if (data := event.step_failure_data).user_failure_data is not None and data.user_failure_data.description
    ]
    cause = "; ".join(causes) or context.failure_event.message or "Dagster does not say why"
    is_kept = DAEMON_TAG in run.tags
    step = "its supervisor starts the next one" if is_kept else "correct it, then launch it again: nothing is twice"
    return f"{run.job_name} failed, run {run.run_id}: {cause}\n  then: {step}"
