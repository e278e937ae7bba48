"""Find the Dagster run of a task, or start a run once, and wait for its end. This module knows nothing of Airflow.

    1. search for a run with the task's tag `airflow/task`; if there is none, start a run with that tag
    2. search again, since another process may have started a run too: the older run counts, the newer run is ended
    3. query the run until it has finished, Dagster refuses, Dagster is unreachable for too long, or the deadline passes

All state is in the arguments and in Dagster, so the process may be killed and restarted at any point. The log shows
each change of the run's status, and once a minute that the run waits for its start.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from harvest_lib.airflow import outcomes
from harvest_lib.airflow.dagster.answers import WAITING, Run, Work
from harvest_lib.airflow.dagster.client import DagsterClient, JobMissing
from harvest_lib.airflow.dagster.endpoint import DagsterError, DagsterRefused
from harvest_lib.airflow.dagster.graphql import DagsterUnreachable
from harvest_lib.airflow.dagster.partitions import PartitionRefused, require_partition
from harvest_lib.airflow.dagster.request import TASK_TAG, Request, TaskAttempt
from harvest_lib.errors import HarvestError

_LOG_SECONDS = 60.0

_log = logging.getLogger(__name__)


class DagsterRunFailed(DagsterError):
    """The Dagster run of the task did not succeed: its page in Dagster has the reason."""


class DagsterRunCanceled(DagsterRunFailed):
    """The Dagster run of the task was canceled in Dagster: clear the task to start another."""


class DagsterRunEmpty(DagsterError):
    """The Dagster run succeeded without a step, or without evaluating a check: check the selection of its job."""


class DagsterRunUnfinished(DagsterError):
    """The Dagster run has not finished in the given time: check the run in Dagster, or give it more time."""


async def outcome(
    client: DagsterClient, request: Request, known: Callable[[str], Awaitable[None]] | None = None
) -> dict[str, Any]:
    """Wait for the run, and return its outcome. `known` is called with the run's address once the run is known.

    The key `outcome` is `succeeded`, with the key `assets`: the keys of the assets that the run materialized. Or it is
    `failed` or `refused`, with the keys `cause`, `evidence` and `next_step`; no retry changes the outcome `refused`.
    If the run is known, it has the keys `run_id` and `url`.
    """
    wait = _Wait(client, request, known)
    try:
        event: dict[str, Any] = {"outcome": outcomes.SUCCEEDED, "assets": list((await wait.succeeded()).assets)}
    except DagsterError as error:
        event = {**failure(error)}
    if wait.run is None:
        return event
    return {**event, "run_id": wait.run.run_id, "url": client.run_url(wait.run.run_id)}


def failure(error: HarvestError) -> dict[str, str]:
    """Return the mapping that `outcome` returns for an error."""
    return outcomes.failure(error, JobMissing, DagsterRefused, DagsterRunCanceled, DagsterRunEmpty, PartitionRefused)


async def end(client: DagsterClient, attempt: TaskAttempt) -> None:
    """End the unfinished runs of a task in Dagster. The log shows an error if a run may go on."""
    try:
        runs = await client.runs_with({TASK_TAG: attempt.task})
    except DagsterError as error:
        _log.error("a Dagster run of this task may go on: %s", error)
        return
    for run in runs:
        if not run.finished:
            await _end(client, run)


async def _end(client: DagsterClient, run: Run) -> None:
    try:
        await client.terminate(run.run_id)
    except DagsterError as error:
        _log.error("a Dagster run goes on: %s", error)
    else:
        _log.info("Dagster ends the run %s", client.run_url(run.run_id))


class _Wait:
    """The wait for one run. `run` is the run as it was last seen, None while it is unknown."""

    def __init__(self, client: DagsterClient, request: Request, known: Callable[[str], Awaitable[None]] | None) -> None:
        self.run: Run | None = None
        self._client = client
        self._request = request
        self._known = known
        self._status = ""
        self._since = self._logged = 0.0

    async def succeeded(self) -> Work:
        """Wait, and return the work of a run that succeeded. Raises DagsterError."""
        answered = time.monotonic()
        while True:
            try:
                run = await self._seen()
                answered = time.monotonic()
                self._log_status(run, answered)
                if run.finished:
                    return await self._work(run)
            except DagsterUnreachable:
                if time.monotonic() - answered > self._request.patience_seconds:
                    raise
            if time.time() > self._request.deadline:
                raise self._unfinished()
            await asyncio.sleep(self._request.poll_seconds)

    async def _seen(self) -> Run:
        if self.run is None:
            self.run = await self._found_or_launched()
            if self._known is not None:
                await self._known(self._client.run_url(self.run.run_id))
        else:
            self.run = await self._refreshed(self.run)
        return self.run

    async def _found_or_launched(self) -> Run:
        client, request = self._client, self._request
        mine = {TASK_TAG: request.attempt.task}
        found = request.choose(await client.runs_with(mine))
        if found is not None:
            _log.info("found the Dagster run of this task: %s", client.run_url(found.run_id))
            return found
        job = await client.find_job(request.job_name, request.location)
        await require_partition(client, job, request.partition)
        started = await client.launch(job, run_config=request.run_config, tags=request.tags)
        _log.info("started the Dagster run %s", client.run_url(started.run_id))
        found = request.choose(await client.runs_with(mine)) or started
        if found.run_id != started.run_id:
            _log.warning("another process had started a run already: %s", client.run_url(found.run_id))
            await _end(client, started)
        return found

    async def _refreshed(self, run: Run) -> Run:
        found = await self._client.run(run.run_id)
        if found is None:
            raise DagsterRunFailed(
                "the Dagster run was deleted while it was waited for",
                evidence=f"{self._request.job_name}: {run.run_id}",
                next_step="clear the task to start another",
            )
        return found

    def _log_status(self, run: Run, now: float) -> None:
        url = self._client.run_url(run.run_id)
        if run.status != self._status:
            self._status, self._since, self._logged = run.status, now, now
            _log.info("the Dagster run is %s: %s", run.status, url)
        elif run.status in WAITING and now - self._logged >= _LOG_SECONDS:
            self._logged = now
            _log.info("the Dagster run is %s for %d s, and no step has begun: %s", run.status, now - self._since, url)

    async def _work(self, run: Run) -> Work:
        client, request = self._client, self._request
        url = client.run_url(run.run_id)
        work = await client.work(run.run_id)
        if run.canceled and not request.restart_canceled:
            raise DagsterRunCanceled(
                f"the Dagster job {request.job_name} was canceled in Dagster",
                evidence=f"no retry starts it again; {url} says when and by what",
                next_step="clear the task to start another run; set restart_canceled to have retries do so",
            )
        if run.failed:
            raise DagsterRunFailed(
                f"the Dagster job {request.job_name} " + ("was canceled" if run.canceled else "failed"),
                evidence=work.failures or f"its status is {run.status}",
                next_step=f"check {url}",
            )
        evaluated = len(work.passed) + len(work.failed)
        _log.info("%d steps succeeded, %d checks were evaluated, %d failed", work.steps, evaluated, len(work.failed))
        if request.allow_empty or (work.steps and not work.not_evaluated):
            return work
        left = ", ".join(work.not_evaluated)
        raise DagsterRunEmpty(
            f"the Dagster job {request.job_name} succeeded "
            + ("and left checks unevaluated" if work.steps else "and ran no step"),
            evidence=f"{work.steps} steps succeeded; checks not evaluated: {left or 'none'}",
            next_step=f"check {url} and what the job selects; where that is expected, set allow_empty",
        )

    def _unfinished(self) -> DagsterRunUnfinished:
        if self.run is None:
            return DagsterRunUnfinished(
                f"the Dagster job {self._request.job_name} was not started in the time given",
                evidence=f"{self._client.url} did not answer",
                next_step="check that dagster-webserver runs there",
            )
        return DagsterRunUnfinished(
            f"the Dagster job {self._request.job_name} is not finished in the time given",
            evidence=f"its status is {self.run.status}",
            next_step=f"check {self._client.run_url(self.run.run_id)}; it goes on, and a retry of this task waits "
            "for it again",
        )
