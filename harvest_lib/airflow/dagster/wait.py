"""Find the Dagster run of a task, or start a run once, and wait for its end. This module knows nothing of Airflow.

    1. search for a run with the task's tag `airflow/task`; if there is none, start a run with that tag
    2. search again, since another process may have started a run too: the older run counts, the newer run is ended
    3. query the run until it has finished, Dagster refuses, Dagster is unreachable for too long, or the deadline passes

All state is in the arguments and in Dagster, so the process may be killed and restarted at any point.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harvest_lib.airflow import outcomes
from harvest_lib.airflow.dagster.answers import Run
from harvest_lib.airflow.dagster.client import DagsterClient, JobMissing
from harvest_lib.airflow.dagster.endpoint import DagsterError, DagsterRefused
from harvest_lib.airflow.dagster.graphql import DagsterUnreachable
from harvest_lib.errors import HarvestError

TASK_TAG = "airflow/task"
TRY_TAG = "airflow/try"
PARTITION_TAG = "dagster/partition"

_log = logging.getLogger(__name__)


class DagsterRunFailed(DagsterError):
    """The Dagster run of the task did not succeed: its page in Dagster has the reason."""


class DagsterRunEmpty(DagsterError):
    """The Dagster run succeeded without a step, or without evaluating a check: check the selection of its job."""


class DagsterRunUnfinished(DagsterError):
    """The Dagster run has not finished in the given time: check the run in Dagster, or give it more time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAttempt:
    """One try of an Airflow task: the task's path, and the number of the try."""

    task: str
    number: int

    @property
    def tags(self) -> dict[str, str]:
        """The tags of a run that this attempt starts."""
        return {TASK_TAG: self.task, TRY_TAG: str(self.number)}

    def choose(self, runs: Sequence[Run]) -> Run | None:
        """Return the run that counts for this attempt, None if a run has to be started. `runs` begin with the oldest.

        A run that has not failed counts for every try of the task; a failed run counts only for the try that started
        it. The oldest run that has not failed takes precedence.
        """
        ours = [run for run in runs if not run.failed or run.tags.get(TRY_TAG) == str(self.number)]
        # A run that was ended as the newer of two must not count as the attempt's failure.
        return next((run for run in ours if not run.failed), ours[0] if ours else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The request for a run: the job, the attempt, and how long to wait.

    `location` may be empty if a single code location has the job. `partition` is empty if the job has no partitions.
    `deadline` is Unix time, so that a restart does not move it; `patience_seconds` is the longest time for which
    Dagster may be unreachable. A run that succeeded without a step, or with a check that was not evaluated, counts as a
    success only with `allow_empty`.
    """

    job_name: str
    location: str
    partition: str
    run_config: Mapping[str, Any]
    attempt: TaskAttempt
    deadline: float
    poll_seconds: float
    patience_seconds: float
    allow_empty: bool = False

    @property
    def tags(self) -> dict[str, str]:
        """The tags of a run that is started for this request."""
        return {**self.attempt.tags, **({PARTITION_TAG: self.partition} if self.partition else {})}


async def outcome(client: DagsterClient, request: Request) -> dict[str, str]:
    """Wait for the run, and return its outcome as a mapping of texts.

    The key `outcome` is `succeeded`, with the keys `run_id` and `url`; or it is `failed` or `refused`, with the keys
    `cause`, `evidence` and `next_step`. No retry changes the outcome `refused`.
    """
    try:
        run = await _followed(client, request)
    except DagsterError as error:
        return failure(error)
    return {"outcome": outcomes.SUCCEEDED, "run_id": run.run_id, "url": client.run_url(run.run_id)}


def failure(error: HarvestError) -> dict[str, str]:
    """Return the mapping that `outcome` returns for an error."""
    return outcomes.failure(error, JobMissing, DagsterRefused, DagsterRunEmpty)


async def end(client: DagsterClient, attempt: TaskAttempt) -> None:
    """End the unfinished runs of a task in Dagster."""
    for run in await client.runs_with({TASK_TAG: attempt.task}):
        if not run.finished:
            await client.terminate(run.run_id)


async def _followed(client: DagsterClient, request: Request) -> Run:
    run: Run | None = None
    answered = time.monotonic()
    while True:
        try:
            run = await (_found_or_launched(client, request) if run is None else _refreshed(client, request, run))
            if run.finished:
                return await _succeeded(client, request, run)
            answered = time.monotonic()
        except DagsterUnreachable:
            if time.monotonic() - answered > request.patience_seconds:
                raise
        if time.time() > request.deadline:
            raise _unfinished(client, request, run)
        await asyncio.sleep(request.poll_seconds)


async def _found_or_launched(client: DagsterClient, request: Request) -> Run:
    mine = {TASK_TAG: request.attempt.task}
    found = request.attempt.choose(await client.runs_with(mine))
    if found is not None:
        _log.info("found the Dagster run of this task: %s", client.run_url(found.run_id))
        return found
    job = await client.find_job(request.job_name, request.location)
    started = await client.launch(job, run_config=request.run_config, tags=request.tags)
    _log.info("started the Dagster run %s", client.run_url(started.run_id))
    found = request.attempt.choose(await client.runs_with(mine)) or started
    if found.run_id != started.run_id:
        _log.warning("another process had started a run already: %s", client.run_url(found.run_id))
        await client.terminate(started.run_id)
    return found


async def _refreshed(client: DagsterClient, request: Request, run: Run) -> Run:
    found = await client.run(run.run_id)
    if found is None:
        raise DagsterRunFailed(
            "the Dagster run was deleted while it was waited for",
            evidence=f"{request.job_name}: {run.run_id}",
            next_step="clear the task to start another",
        )
    return found


async def _succeeded(client: DagsterClient, request: Request, run: Run) -> Run:
    work = await client.work(run.run_id)
    if run.failed:
        ended = "was cancelled" if run.status == "CANCELED" else "failed"
        raise DagsterRunFailed(
            f"the Dagster job {request.job_name} {ended}",
            evidence=work.failures or f"its status is {run.status}",
            next_step=f"check {client.run_url(run.run_id)}",
        )
    evaluated = len(work.passed) + len(work.failed)
    _log.info("%d steps succeeded, %d checks were evaluated, %d failed", work.steps, evaluated, len(work.failed))
    if request.allow_empty or (work.steps and not work.not_evaluated):
        return run
    left = ", ".join(work.not_evaluated)
    raise DagsterRunEmpty(
        f"the Dagster job {request.job_name} succeeded "
        + ("and left checks unevaluated" if work.steps else "and ran no step"),
        evidence=f"{work.steps} steps succeeded; checks not evaluated: {left or 'none'}",
        next_step=f"check {client.run_url(run.run_id)} and what the job selects; "
        "where that is expected, set allow_empty",
    )


def _unfinished(client: DagsterClient, request: Request, run: Run | None) -> DagsterRunUnfinished:
    if run is None:
        return DagsterRunUnfinished(
            f"the Dagster job {request.job_name} was not started in the time given",
            evidence=f"{client.url} did not answer",
            next_step="check that dagster-webserver runs there",
        )
    return DagsterRunUnfinished(
        f"the Dagster job {request.job_name} is not finished in the time given",
        evidence=f"its status is {run.status}",
        next_step=f"check {client.run_url(run.run_id)}; it goes on, and a retry of this task waits for it again",
    )
