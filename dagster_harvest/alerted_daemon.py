"""Alerts about a daemon that is missing: its run is queued for too long, or there is no run."""

import time
from collections.abc import Iterator, Sequence
from datetime import UTC

import dagster as dg

from dagster_harvest.alert import Alert
from dagster_harvest.alerted_checks import Told
from dagster_harvest.daemon import DAEMON_TAG, SLOT_TAG, location_of
from dagster_harvest.settings import OutboxSettings

_RUNS_READ = 10
"""The number of runs that a tick reads for each slot."""
_THERE = {
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.MANAGED,
    dg.DagsterRunStatus.CANCELING,
}


def daemon_changes(
    instance: dg.DagsterInstance, settings: OutboxSettings, location: str, told: Told, *, since: float
) -> Iterator[tuple[Alert, Told]]:
    """Return the alerts about daemons that are missing for `start_within_seconds`, and about daemons that are there
    again. `since` is the Unix time at which the sensor began: before its first run a daemon is missing since then."""
    if settings.daemon.mode != "run":
        return
    found = instance.get_run_records(
        dg.RunsFilter(job_name=settings.daemon_job_name, tags={DAEMON_TAG: settings.name}),
        limit=_RUNS_READ * settings.daemon.runs,
    )
    for slot in range(settings.daemon.runs):
        name = f"daemon {slot}"
        records = [
            each
            for each in found
            if location_of(each.dagster_run) == location and each.dagster_run.tags.get(SLOT_TAG, "0") == str(slot)
        ]
        there = next((each.dagster_run for each in records if each.dagster_run.status in _THERE), None)
        if there is not None:
            if told.get(name):
                text = f"{settings.name}: {settings.daemon_job_name} is there again, run {there.run_id}"
                alert = Alert(kind="daemon_recovered", outbox=settings.name, text=text, run_id=there.run_id)
                yield alert, {name: 0}
        elif not told.get(name) and (missing := _missing(settings, records, since)) is not None:
            yield missing, {name: 1}


def _missing(settings: OutboxSettings, records: Sequence[dg.RunRecord], since: float) -> Alert | None:
    """Return the alert about a slot without a run that is there; None if it is too early. `records` are the runs of the
    slot, the newest first."""
    newest = records[0] if records else None
    seconds = time.time() - (since if newest is None else _changed_at(newest))
    if seconds < settings.daemon.start_within_seconds:
        return None
    job = settings.daemon_job_name
    step = f"turn on the sensor {settings.name}_supervisor, or read the message of its last tick"
    if newest is None:
        text = f"no run of {job} has begun for {seconds:.0f} s"
    elif newest.dagster_run.is_finished:
        run = newest.dagster_run
        text = f"there is no run of {job} for {seconds:.0f} s: the last, {run.run_id}, is {run.status.value}"
    else:
        text = f"run {newest.dagster_run.run_id} of {job} is queued for {seconds:.0f} s"
        step = "raise `max_concurrent_runs` of the queue by a run for each outbox, or end a run that is not needed"
    return Alert(
        kind="daemon_missing",
        outbox=settings.name,
        text=f"{settings.name}: {text}; this code location delivers no records",
        next_step=step,
        run_id=newest.dagster_run.run_id if newest is not None else None,
        severity="ERROR",
    )


def _changed_at(record: dg.RunRecord) -> float:
    """Return the Unix time at which a run ended, or was created if it is queued."""
    # All storages return UTC, but some return it without a time zone.
    created = record.create_timestamp
    return record.end_time or (created if created.tzinfo else created.replace(tzinfo=UTC)).timestamp()
