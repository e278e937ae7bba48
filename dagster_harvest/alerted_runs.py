"""Alerts about runs of an outbox: a run that failed, and a job that runs again after a failure."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import dagster as dg

from dagster_harvest.alert import Alert
from dagster_harvest.daemon import DAEMON_TAG, location_of
from dagster_harvest.settings import OutboxSettings

_PARTITION_TAG = "dagster/partition"
_EVENTS_READ = 50
"""The largest number of events of each kind that a tick reads; the next tick reads further events."""
_Kind = Literal[dg.DagsterEventType.RUN_FAILURE, dg.DagsterEventType.RUN_START]
_KINDS: tuple[_Kind, ...] = (dg.DagsterEventType.RUN_FAILURE, dg.DagsterEventType.RUN_START)


class AlertedRuns:
    """The failures and recoveries of an outbox's runs in a code location, in the order of their events."""

    def __init__(self, instance: dg.DagsterInstance, settings: OutboxSettings, location: str) -> None:
        self._instance = instance
        self._outbox = settings.name
        self._location = location
        self._jobs = {
            settings.daemon_job_name,
            settings.drain_job_name,
            settings.audit_job_name,
            settings.archive_job_name,
            settings.replay_job_name,
        }
        assets = {settings.outbox_key, settings.business_key, settings.archive_key, settings.replay_key}
        self._assets = assets | set(settings.topic_keys) | set(settings.audit_keys)

    def newest(self) -> int:
        """Return the id of the newest event, -1 without an event."""
        found = [self._instance.fetch_run_status_changes(kind, limit=1).records for kind in _KINDS]
        return max((record.storage_id for records in found for record in records), default=-1)

    def after(self, at: int) -> Iterator[tuple[int, Alert | None]]:
        """Return the id of each event after the event with the id `at`, and the alert for the event or None."""
        events = self._events_after(at)
        runs = self._runs(events)
        for record in events:
            run = runs.get(record.event_log_entry.run_id)
            yield record.storage_id, self._alert(record, run) if run is not None else None

    def _events_after(self, at: int) -> Sequence[dg.EventLogRecord]:
        """Return the next events of both kinds, ordered by id. No event between two of them is left out."""
        found = [
            record
            for kind in _KINDS
            for record in self._instance.fetch_run_status_changes(
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
        found = self._instance.get_runs(dg.RunsFilter(run_ids=list(ids)))
        return {run.run_id: run for run in found if self._concerns_us(run)}

    def _concerns_us(self, run: dg.DagsterRun) -> bool:
        is_ours = run.job_name in self._jobs or not self._assets.isdisjoint(run.asset_selection or ())
        return is_ours and location_of(run) == self._location

    def _alert(self, record: dg.EventLogRecord, run: dg.DagsterRun) -> Alert | None:
        """Return the alert for an event; None for a start that follows no failure."""
        event = record.event_log_entry.dagster_event
        if event is not None and event.event_type is dg.DagsterEventType.RUN_FAILURE:
            return failed_run(self._instance, self._outbox, run, event.message)
        return self._recovery(run)

    def _recovery(self, run: dg.DagsterRun) -> Alert | None:
        partition = {name: run.tags[name] for name in (_PARTITION_TAG,) if name in run.tags}
        found = self._instance.get_runs(dg.RunsFilter(job_name=run.job_name, tags=partition), limit=10)
        ids = [each.run_id for each in found]
        earlier = found[ids.index(run.run_id) + 1 :] if run.run_id in ids else found
        before = next((each for each in earlier if each.is_finished), None)
        if before is None or before.status is not dg.DagsterRunStatus.FAILURE:
            return None
        return Alert(
            kind="run_recovered",
            outbox=self._outbox,
            text=f"{run.job_name} runs again as {run.run_id}, after {before.run_id} had failed",
            run_id=run.run_id,
        )


def failed_run(instance: dg.DagsterInstance, outbox: str, run: dg.DagsterRun, message: str | None) -> Alert:
    """Return the alert about a failed run: the cause of each failed step, else the message of the run."""
    events: list[Any] = [
        record.event_log_entry.dagster_event
        for record in instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE).records
    ]
    stated = [data for event in events if (data := event.step_failure_data.user_failure_data) and data.description]
    steps = [str(data.metadata["next_step"].value) if "next_step" in data.metadata else "" for data in stated]
    # The description of an error of the harvester ends with its next step, which stands in a field of its own here.
    causes = [data.description.removesuffix(f"\n  next step: {step}") for data, step in zip(stated, steps, strict=True)]
    is_kept = DAEMON_TAG in run.tags
    last = "its supervisor starts the next run" if is_kept else "then launch the run again: nothing is twice"
    return Alert(
        kind="run_failed",
        outbox=outbox,
        text=f"{run.job_name} failed, run {run.run_id}: {'; '.join(causes) or message or 'Dagster has no cause'}",
        next_step="; ".join([*filter(None, steps), last]),
        run_id=run.run_id,
    )
