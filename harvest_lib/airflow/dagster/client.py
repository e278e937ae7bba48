"""An asynchronous client of Dagster's GraphQL API that starts and follows runs.

Methods return plain values. An error is a DagsterError with cause, evidence and next step. Only `DagsterUnreachable`
may be temporary; after this error the caller may try again.
"""

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from harvest_lib.airflow.dagster import queries
from harvest_lib.airflow.dagster.endpoint import URL_VARIABLE, DagsterError, DagsterRefused, Endpoint

FINISHED = frozenset({"SUCCESS", "FAILURE", "CANCELED"})

_REQUEST_SECONDS = 30
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_EVIDENCE = 500


class DagsterUnreachable(DagsterError):
    """Dagster does not answer at present: check its address, and whether the webserver runs."""


class JobMissing(DagsterError):
    """No code location has the job, or several have it: write job and location as in Dagster's UI."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job, with its repository and code location."""

    name: str
    repository: str
    location: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run at the time of the query."""

    run_id: str
    status: str
    tags: Mapping[str, str]

    @property
    def finished(self) -> bool:
        """True if the run will not change any more."""
        return self.status in FINISHED

    @property
    def failed(self) -> bool:
        """True if the run ended without success."""
        return self.finished and self.status != "SUCCESS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of a run. `steps` is the number of steps that succeeded. `planned`, `passed` and `failed` are checks,
    each named `asset:check`. `failures` describes all failures in a single line."""

    steps: int
    planned: frozenset[str]
    passed: frozenset[str]
    failed: frozenset[str]
    failures: str

    @property
    def not_evaluated(self) -> Sequence[str]:
        """The checks that were planned and not evaluated."""
        return sorted(self.planned - self.passed - self.failed)


class DagsterClient:
    """Client of a Dagster webserver."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Make a client. It reads and sends nothing before the first request."""
        self.url = endpoint.url
        self._endpoint = endpoint
        self._http: httpx.AsyncClient | None = None

    async def version(self) -> str:
        """Return Dagster's version."""
        return str((await self._ask(queries.VERSION))["version"])

    def run_url(self, run_id: str) -> str:
        """Return the address of the run's page."""
        return f"{self.url}/runs/{run_id}"

    async def find_job(self, name: str, location: str = "") -> Job:
        """Return the job with its repository and code location.

        Raises JobMissing if no location has the job, or if `location` is empty and several locations have the job;
        DagsterUnreachable if the job may be in a location that does not load.
        """
        answer = _expect(await self._ask(queries.JOBS), "workspaceOrError", "Workspace")
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
                evidence=_short("; ".join(loading)),
                next_step=f"check {self.url}/locations",
            )
        known = sorted({job.name for job in jobs if not job.name.startswith("__")})
        raise JobMissing(
            f"Dagster has no job {name!r}" + (f" in the code location {location!r}" if location else ""),
            evidence=_short(f"its jobs: {', '.join(known) or 'none'}"),
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
        answer = await self._ask(queries.LAUNCH, {"executionParams": parameters})
        return _run(_expect(answer, "launchRun", "LaunchRunSuccess")["run"])

    async def work(self, run_id: str) -> Work:
        """Return the work of a run, with the root cause of each failure."""
        planned, passed, failed = set[str](), set[str](), set[str]()
        errors: list[str] = []
        after: str | None = None
        while True:
            answer = _expect(await self._ask(queries.WORK, {"runId": run_id, "after": after}), "runOrError", "Run")
            page = answer["eventConnection"]
            for event in page["events"]:
                if event["__typename"] == "AssetCheckEvaluationPlannedEvent":
                    planned.add(_check(event))
                elif event["__typename"] == "AssetCheckEvaluationEvent":
                    (passed if event["evaluation"]["success"] else failed).add(_check(event["evaluation"]))
                elif event.get("error"):
                    errors.append(f"{event.get('stepKey') or 'run'}: {_root(event['error'])}")
            after = page["cursor"]
            if not page["hasMore"]:
                break
        failed_steps = ", ".join(each["stepKey"] for each in answer["stepStats"] if each["status"] == "FAILURE")
        return Work(
            steps=sum(each["status"] == "SUCCESS" for each in answer["stepStats"]),
            planned=frozenset(planned),
            passed=frozenset(passed),
            failed=frozenset(failed),
            failures=_short("; ".join(errors) or (f"failed steps: {failed_steps}" if failed_steps else "")),
        )

    async def terminate(self, run_id: str) -> None:
        """Ask Dagster to end a run. A run that has ended does not change."""
        await self._ask(queries.TERMINATE, {"runId": run_id})

    async def _runs(self, filters: Mapping[str, Any]) -> list[Run]:
        answer = _expect(await self._ask(queries.RUNS, {"filter": filters}), "runsOrError", "Runs")
        found = sorted(answer["results"], key=lambda run: (run["creationTime"], run["runId"]))
        return [_run(each) for each in found]

    async def _ask(self, query: str, variables: Mapping[str, Any] | None = None) -> Any:
        source = self._endpoint.source
        if self._http is None:
            # In a thread, because reading certificates from files would block the event loop.
            verify = await asyncio.to_thread(self._endpoint.tls)
            self._http = httpx.AsyncClient(headers=self._endpoint.headers, timeout=_REQUEST_SECONDS, verify=verify)
        try:
            response = await self._http.post(
                f"{self.url}/graphql", json={"query": query, "variables": dict(variables or {})}
            )
        except httpx.TransportError as error:
            if next_step := _tls_trouble(error, source):
                raise DagsterRefused(
                    "no encrypted connection to Dagster can be made",
                    evidence=f"{self.url}: {error}",
                    next_step=next_step,
                ) from error
            raise DagsterUnreachable(
                "Dagster does not answer",
                evidence=f"{self.url}: {type(error).__name__} {error}".strip(),
                next_step=f"check {source}, and that dagster-webserver runs there and speaks {self.url.split(':')[0]}",
            ) from error
        if response.status_code in _TRANSIENT:
            raise DagsterUnreachable(
                "Dagster cannot answer",
                evidence=f"{self.url}: HTTP {response.status_code}: {_short(response.text)}",
                next_step="read the log of dagster-webserver",
            )
        answer = _json(response)
        if not response.is_success or "data" not in answer or answer.get("errors"):
            said = "; ".join(error["message"] for error in answer.get("errors") or ()) or response.text
            raise DagsterRefused(
                "Dagster refuses the request",
                evidence=f"{self.url}: HTTP {response.status_code}: {_short(said)}",
                next_step=_after_refusal(response, source),
            )
        return answer["data"]

    async def __aenter__(self) -> Self:
        """Return the client."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.aclose()

    def __repr__(self) -> str:
        """Show the address, without user and password."""
        return f"DagsterClient({self.url!r})"


def _tls_trouble(error: BaseException, source: str) -> str:
    """Return the next step after a TLS failure, an empty text after any other failure. No retry can cure a TLS
    failure."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            where = "an Airflow connection dagster_default" if source == URL_VARIABLE else source
            return f"if that certificate is right, name its CA by ca_file in {where}"
        if isinstance(cause, ssl.SSLError):
            return f"check the scheme in {source}: the server may speak http, not https"
        cause = cause.__cause__ or cause.__context__
    return ""


def _after_refusal(response: httpx.Response, source: str) -> str:
    if response.status_code in {401, 403}:
        return f"check the credentials in {source}"
    if response.is_redirect:
        return f"the address in {source} leads to another: check its scheme, host and path"
    return f"check scheme, port and path in {source}, and that a dagster-webserver of version 1.13 is there"


def _json(response: httpx.Response) -> dict[str, Any]:
    try:
        answer = response.json()
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _expect(answer: Any, field: str, kind: str) -> Any:
    """Return the content of a field if its GraphQL type is `kind`, else raise DagsterRefused with Dagster's message."""
    content = answer[field]
    if content["__typename"] == kind:
        return content
    said = content.get("message") or "; ".join(each["message"] for each in content.get("errors", ()))
    raise DagsterRefused(
        "Dagster refuses the run" if field == "launchRun" else "Dagster cannot answer the question",
        evidence=_short(f"{content['__typename']}: {said}"),
        next_step="correct the run's configuration" if "errors" in content else "check the job in Dagster's UI",
    )


def _run(content: Mapping[str, Any]) -> Run:
    tags = {tag["key"]: tag["value"] for tag in content["tags"]}
    return Run(run_id=content["runId"], status=content["status"], tags=tags)


def _check(content: Mapping[str, Any]) -> str:
    return f"{'/'.join(content['assetKey']['path'])}:{content['checkName']}"


def _root(error: Mapping[str, Any]) -> str:
    """Return the message of the innermost cause: the outer causes report only that a step failed."""
    chain = [error, *error.get("causes", ())]
    return " ".join(str(chain[-1]["message"]).split())


def _tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in tags.items()]


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _EVIDENCE else f"{words[:_EVIDENCE]}…"
