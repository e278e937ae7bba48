"""The runs of a daemon, as Dagster stores them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC

import dagster as dg

from dagster_harvest.daemon import (
    DAEMON_TAG,
    GENERATION_TAG,
    LEAVING_TAG,
    SLOT_TAG,
    VERSION_TAG,
    WORKED_TAG,
    location_of,
)
from dagster_harvest.decisions import DaemonRun, Phase
from dagster_harvest.settings import OutboxSettings

_RUNS_READ = 25

_PHASES: dict[dg.DagsterRunStatus, Phase] = {
    dg.DagsterRunStatus.QUEUED: "queued",
    dg.DagsterRunStatus.NOT_STARTED: "starting",
    dg.DagsterRunStatus.MANAGED: "started",
    dg.DagsterRunStatus.STARTING: "starting",
    dg.DagsterRunStatus.STARTED: "started",
    dg.DagsterRunStatus.CANCELING: "canceling",
    dg.DagsterRunStatus.CANCELED: "canceled",
    dg.DagsterRunStatus.FAILURE: "failed",
    dg.DagsterRunStatus.SUCCESS: "succeeded",
}


def daemon_runs(
    instance: dg.DagsterInstance, settings: OutboxSettings, *, location: str
) -> Mapping[int, Sequence[DaemonRun]]:
    """Return the last runs of a code location, by slot."""
    records = instance.get_run_records(
        dg.RunsFilter(job_name=settings.daemon_job_name, tags={DAEMON_TAG: settings.name}),
        limit=_RUNS_READ * settings.daemon.runs,
    )
    found: dict[int, list[DaemonRun]] = defaultdict(list)
    for record in records:
        if location_of(record.dagster_run) == location and record.dagster_run.status in _PHASES:
            found[int(record.dagster_run.tags.get(SLOT_TAG, "0"))].append(_seen(record))
    return found


def _seen(record: dg.RunRecord) -> DaemonRun:
    run = record.dagster_run
    phase = _PHASES[run.status]
    updated = record.update_timestamp
    # All storages return UTC, but some return it without a time zone.
    updated_at = (updated if updated.tzinfo else updated.replace(tzinfo=UTC)).timestamp()
    return DaemonRun(
        run_id=run.run_id,
        generation=int(run.tags.get(GENERATION_TAG, "0")),
        phase=phase,
        changed_at=record.end_time or (record.start_time if phase == "started" else None) or updated_at,
        began_at=record.start_time,
        has_worked=WORKED_TAG in run.tags,
        version=run.tags.get(VERSION_TAG),
        is_leaving=LEAVING_TAG in run.tags,
    )
