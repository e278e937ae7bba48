"""Decides the supervisor's next step, so that exactly one run harvests. Pure functions of runs, heartbeat and time.

A run counts as alive as long as it sends heartbeats, whatever its status in Dagster. The status is no proof, because
the default launcher never notices that a run's process is gone, and the run stays STARTED for ever. If a run is STARTED
in Dagster and has sent no heartbeat for `stale_after_seconds`, the supervisor gives it up and starts the next
generation. The delay before a start grows with the number of runs that failed in a row. A run that has delivered for
some time resets that number, and so does a changed version of the code or the configuration.

A living run is requested to end in order if it was started with another version, or `rotate_after_hours` ago. The next
generation begins with the present version.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dagster_harvest.heartbeat import Heartbeat
from dagster_harvest.settings import DaemonSettings

Phase = Literal["queued", "starting", "started", "canceling", "failed", "canceled", "succeeded"]

_PENDING = ("queued", "starting")
_ACTIVE = ("queued", "starting", "started", "canceling")


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonRun:
    """A run with its status in Dagster. `changed_at` is the Unix time at which the run entered its phase."""

    run_id: str
    generation: int
    phase: Phase
    changed_at: float
    began_at: float | None = None
    has_worked: bool = False
    """True if the run has delivered for `healthy_after_working_seconds`."""
    version: str | None = None
    """Version of the library and digest of the configuration, both as of the start of the run."""
    is_leaving: bool = False
    """True if the supervisor has requested the run to hand over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """The database of the heartbeats could not be queried."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """One run is or may be alive: nothing to do."""

    run_id: str
    reason: str
    is_alive: bool = False
    """True if the run's heartbeat is recent, and Dagster is not terminating the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """A living run harvests with an outdated version, or has lived long enough: request it to stop in order."""

    run_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """No run is alive, and it is too early to start the next."""

    seconds: float
    failures: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """No run is alive: start the next generation now."""

    generation: int
    failures: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """A run is dead: report that to Dagster, then decide again."""

    run_id: str
    was_canceled: bool
    reason: str


Decision = Keep | HandOver | Wait | Start | GiveUp


def decide(
    runs: Sequence[DaemonRun],
    heartbeat: Heartbeat | Unknown | None,
    *,
    now: float,
    settings: DaemonSettings,
    version: str | None = None,
) -> Decision:
    """Return the next step. `runs` are the runs of the same heartbeat row, in any order; `now` is in Unix seconds;
    `version` is the version of a run that would be started now, None if it is unknown."""
    newest_first = sorted(runs, key=lambda run: (run.generation, run.changed_at), reverse=True)
    for run in newest_first:
        if run.phase in _ACTIVE:
            decision = _of_active(run, heartbeat, now, settings)
            return _handed_over(run, decision, now, settings, version) if isinstance(decision, Keep) else decision
    known = heartbeat if isinstance(heartbeat, Heartbeat) else None
    generation = 1 + max([*(run.generation for run in runs), known.generation if known else 0])
    finished = {run.run_id for run in runs}
    if known and not known.is_stopped and known.age_seconds < settings.stale_after_seconds:
        # The run was reported as failed or canceled while its process lives, or Dagster has deleted the run.
        whose = "which Dagster believes ended" if known.run_id in finished else "which Dagster does not know"
        return Wait(
            seconds=settings.stale_after_seconds - known.age_seconds,
            failures=failures_in_a_row(newest_first, settings, version),
            reason=f"run {known.run_id}, {whose}, still sends heartbeats from {known.host}, pid {known.pid}",
        )
    failures = failures_in_a_row(newest_first, settings, version)
    if failures:
        delay = backoff_seconds(failures, settings)
        # A dead run counts as failed since its last heartbeat, so the backoff begins then.
        died = now - known.age_seconds if known and known.run_id == newest_first[0].run_id else now
        waited = now - min(newest_first[0].changed_at, died)
        if waited < delay:
            return Wait(
                seconds=delay - waited, failures=failures, reason=f"{failures} failed in a row, backing off {delay:g} s"
            )
        return Start(generation=generation, failures=failures, reason=f"after {failures} failed in a row")
    return Start(generation=generation, failures=0, reason=_start_reason(newest_first, version))


def backoff_seconds(failures: int, settings: DaemonSettings) -> float:
    """Return the delay in seconds before the next run, after a number of failures in a row."""
    doubled: float = settings.first_backoff_seconds * 2.0 ** min(failures - 1, 64)
    return min(doubled, settings.longest_backoff_seconds)


def failures_in_a_row(newest_first: Sequence[DaemonRun], settings: DaemonSettings, version: str | None) -> int:
    """Return the number of failed runs in a row, from the newest run back. A run that did not fail, or that had another
    version than `version`, ends the row. A failed run that lived or delivered for long enough is the last one counted.

    A run that was started while the configuration could not be read has no version. For the row this is a version too.
    """
    count = 0
    for run in newest_first:
        if run.phase != "failed" or run.version != version:
            break
        count += 1
        if run.has_worked:
            break
        if run.began_at is not None and run.changed_at - run.began_at >= settings.healthy_after_seconds:
            break
    return count


def is_at_work(*, leads: bool, delivered: int, waiting: int | None) -> bool:
    """Return True if a run has done its work since the last report: the run leads, and either has delivered records or
    has no records to deliver.

    `waiting` is None if the size of the backlog is unknown.
    """
    return leads and (delivered > 0 or waiting == 0)


def _start_reason(newest_first: Sequence[DaemonRun], version: str | None) -> str:
    if not newest_first:
        return "no run has begun yet"
    last = newest_first[0]
    if last.phase == "failed":
        return f"the last run has failed by {_shown(last.version)}; code or configuration are {_shown(version)} now"
    return f"the last run has {last.phase}"


def _shown(version: str | None) -> str:
    return version or "unreadable"


def _handed_over(
    run: DaemonRun, kept: Keep, now: float, settings: DaemonSettings, version: str | None
) -> Keep | HandOver:
    """Return HandOver if a living run has another version than `version`, or has lived for long enough; else `kept`.
    While the configuration cannot be read, the run is kept, because its successor could not start."""
    if not kept.is_alive or version is None:
        return kept
    lived_hours = 0.0 if run.began_at is None else (now - run.began_at) / 3600
    if run.version is not None and run.version != version:
        reason = f"it harvests by {run.version}, and code or configuration are {version} now"
    elif settings.rotate_after_hours is not None and lived_hours >= settings.rotate_after_hours:
        reason = f"the run began {lived_hours:.1f} hours ago"
    else:
        return kept
    if run.is_leaving:
        return Keep(run_id=run.run_id, reason=f"was asked to hand over: {reason}")
    return HandOver(run_id=run.run_id, reason=reason)


def _of_active(run: DaemonRun, heartbeat: Heartbeat | Unknown | None, now: float, settings: DaemonSettings) -> Decision:
    since = now - run.changed_at
    if run.phase in _PENDING:
        # A queued run may wait for as long as the deployment's limits demand; a launched run must start in time.
        if run.phase == "starting" and since >= settings.start_within_seconds:
            return GiveUp(run_id=run.run_id, was_canceled=False, reason=f"launched {since:.0f} s ago and not there")
        waits = f"{run.phase} for {since:.0f} s"
        if run.phase == "queued" and since >= settings.start_within_seconds:
            waits += (
                ": Dagster has not launched it. Raise `max_concurrent_runs` of the run queue, or the run's tag "
                "`dagster/priority`; if no run is launched, check that dagster-daemon runs"
            )
        return Keep(run_id=run.run_id, reason=waits)
    if isinstance(heartbeat, Unknown):
        return Keep(
            run_id=run.run_id, reason=f"believed {run.phase}; it is unknown whether it lives: {heartbeat.reason}"
        )
    own = heartbeat if heartbeat is not None and heartbeat.run_id == run.run_id else None
    was_canceled = run.phase == "canceling"
    if own is None:
        if since >= 2 * settings.stale_after_seconds:
            return GiveUp(
                run_id=run.run_id, was_canceled=was_canceled, reason=f"has sent no heartbeat in {since:.0f} s"
            )
        return Keep(run_id=run.run_id, reason=f"{run.phase}, no heartbeat yet")
    if own.age_seconds < settings.stale_after_seconds:
        reason = f"alive: last heartbeat {own.age_seconds:.1f} s ago"
        return Keep(run_id=run.run_id, reason=reason, is_alive=not was_canceled)
    silence = f"last heartbeat {own.age_seconds:.1f} s ago on {own.host}, process {own.pid}"
    return GiveUp(run_id=run.run_id, was_canceled=was_canceled or own.is_stopped, reason=silence)
