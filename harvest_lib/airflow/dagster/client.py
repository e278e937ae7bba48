"""An asynchronous client of Dagster's GraphQL API that starts and follows runs.

Methods return plain values. An error is a DagsterError with cause, evidence and next step. Only `DagsterUnreachable`
may be temporary; after this error the caller may try again.
"""

from collections.abc import Mapping
from typing import Any

from harvest_lib.airflow.dagster import queries
from harvest_lib.airflow.dagster.answers import (
    FINISHED,
    WAITING,
    Job,
    Run,
    Work,
    check_of,
    expect,
    root_of,
    run_of,
)
from harvest_lib.airflow.dagster.endpoint import DagsterError
from harvest_lib.airflow.dagster.graphql import DagsterUnreachable, GraphQL, short


class JobMissing(DagsterError):
    """No code location has the job, or several have it: write job and location as in Dagster's UI."""


class DagsterRunNotEnded(DagsterError):
    """Dagster declines to end a run, which goes on: end it on its page in Dagster."""


class DagsterClient(GraphQL):
    """Client of a Dagster webserver, and an asynchronous context manager."""

    async def version(self) -> str:
        """Return Dagster's version."""
        return str((await self.ask(queries.VERSION))["version"])

    def run_url(self, run_id: str) -> str:
        """Return the address of the run's page."""
        return f"{self.url}/runs/{run_id}"

    async def find_job(self, name: str, location: str = "") -> Job:
        """Return the job with its repository and code location.

        Raises JobMissing if no location has the job, or if `location` is empty and several locations have the job;
        DagsterUnreachable if the job may be in a location that does not load.
        """
        answer = expect(await self.ask(queries.JOBS), "workspaceOrError", "Workspace")
        entries = [entry for entry in answer["locationEntries"] if location in {"", entry["name"]}]
        loaded = [(entry["name"], entry["locationOrLoadError"] or {}) for entry in entries]
        jobs = [
            Job(name=job["name"], repository=repository["name"], location=place)
            for place, content in loaded
            for repository in content.get("repositories", ())
            for job in repository["jobs"]
        ]
        found = [job for job in jobs if job.name == name]
        if len(found) == 1:
            return found[0]
        if found:
            raise JobMissing(
                f"more than one code location has a job {name!r}",
                evidence=", ".join(job.location for job in found),
                next_step="name the location as well",
            )
        loading = [
            f"{place}: {content.get('message', 'it is loading')}"
            for place, content in loaded
            if "repositories" not in content
        ]
        if loading:
            raise DagsterUnreachable(
                f"Dagster cannot say whether it has a job {name!r}: a code location does not load",
                evidence=short("; ".join(loading)),
                next_step=f"check {self.url}/locations",
            )
        known = sorted({job.name for job in jobs if not job.name.startswith("__")})
        raise JobMissing(
            f"Dagster has no job {name!r}" + (f" in the code location {location!r}" if location else ""),
            evidence=short(f"its jobs: {', '.join(known) or 'none'}"),
            next_step=f"check {self.url}/jobs, then correct the name or the code location",
        )

    async def runs_with(self, tags: Mapping[str, str]) -> list[Run]:
        """Return the runs that carry all the tags, the oldest first."""
        return await self._runs({"tags": _tag_list(tags)})

    async def run(self, run_id: str) -> Run | None:
        """Return the run, None if Dagster has no such run any more."""
        return next(iter(await self._runs({"runIds": [run_id]})), None)

    async def launch(self, job: Job, *, run_config: Mapping[str, Any], tags: Mapping[str, str]) -> Run:
        """Start a run. If the connection breaks, the run may have started nevertheless: search for runs with these
        tags."""
        parameters = {
            "selector": {
                "jobName": job.name,
                "repositoryName": job.repository,
                "repositoryLocationName": job.location,
            },
            "runConfigData": dict(run_config),
            "executionMetadata": {"tags": _tag_list(tags)},
        }
        answer = await self.ask(queries.LAUNCH, {"executionParams": parameters})
        return run_of(expect(answer, "launchRun", "LaunchRunSuccess")["run"])

    async def work(self, run_id: str) -> Work:
        """Return the work of a run, with the root cause of each failure."""
        planned, passed, failed, assets = set[str](), set[str](), set[str](), set[str]()
        errors: list[str] = []
        after: str | None = None
        while True:
            answer = expect(await self.ask(queries.WORK, {"runId": run_id, "after": after}), "runOrError", "Run")
            page = answer["eventConnection"]
            for event in page["events"]:
                if event["__typename"] == "AssetCheckEvaluationPlannedEvent":
                    planned.add(check_of(event))
                elif event["__typename"] == "AssetCheckEvaluationEvent":
                    (passed if event["evaluation"]["success"] else failed).add(check_of(event["evaluation"]))
                elif event.get("materialized"):
                    assets.add("/".join(event["materialized"]["path"]))
                elif event.get("error"):
                    errors.append(f"{event.get('stepKey') or 'run'}: {root_of(event['error'])}")
            after = page["cursor"]
            if not page["hasMore"]:
                break
        failed_steps = ", ".join(each["stepKey"] for each in answer["stepStats"] if each["status"] == "FAILURE")
        return Work(
            steps=sum(each["status"] == "SUCCESS" for each in answer["stepStats"]),
            planned=frozenset(planned),
            passed=frozenset(passed),
            failed=frozenset(failed),
            failures=short("; ".join(errors) or (f"failed steps: {failed_steps}" if failed_steps else "")),
            assets=sorted(assets),
        )

    async def terminate(self, run_id: str) -> None:
        """Ask Dagster to end a run. A run that has ended does not change. Raises DagsterRunNotEnded if it goes on."""
        answer = (await self.ask(queries.TERMINATE, {"runId": run_id}))["terminateRun"]
        status = answer.get("run", {}).get("status", "")
        if answer["__typename"] == "TerminateRunSuccess" or status in FINISHED:
            return
        by_force = " with `Force termination immediately`, since no process executes it" if status in WAITING else ""
        raise DagsterRunNotEnded(
            f"Dagster does not end the run {run_id}" + (f", which is {status}" if status else ""),
            evidence=short(f"{answer['__typename']}: {answer.get('message', '')}"),
            next_step=f"terminate it at {self.run_url(run_id)}{by_force}",
        )

    async def is_partitioned(self, job: Job) -> bool:
        """Return whether the job has partitions."""
        repository = {"repositoryName": job.repository, "repositoryLocationName": job.location}
        answer = await self.ask(queries.PARTITION_SETS, {"repository": repository, "job": job.name})
        return bool(expect(answer, "partitionSetsOrError", "PartitionSets")["results"])

    async def has_partition(self, job: Job, key: str) -> bool:
        """Return whether the job has a partition of this key.

        A job may have a million partitions, and Dagster has no question for one. So the question is for the partition
        after it: of an unknown key Dagster's webserver fails to find the place, with StopIteration.
        """
        try:
            await self._partition_keys(job, limit=1, after=key)
        except DagsterUnreachable as error:
            if "StopIteration" in error.evidence:
                return False
            raise
        return True

    async def newest_partitions(self, job: Job, limit: int) -> list[str]:
        """Return the last partitions of a job, in its order."""
        return await self._partition_keys(job, limit=limit, reverse=True)

    async def _partition_keys(self, job: Job, **page: Any) -> list[str]:
        selector = {
            "pipelineName": job.name,
            "repositoryName": job.repository,
            "repositoryLocationName": job.location,
        }
        answer = await self.ask(queries.PARTITION_KEYS, {"selector": selector, **page})
        return list(expect(answer, "pipelineOrError", "Pipeline")["partitionKeysOrError"]["partitionKeys"])

    async def _runs(self, filters: Mapping[str, Any]) -> list[Run]:
        answer = expect(await self.ask(queries.RUNS, {"filter": filters}), "runsOrError", "Runs")
        found = sorted(answer["results"], key=lambda run: (run["creationTime"], run["runId"]))
        return [run_of(each) for each in found]


def _tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in tags.items()]
