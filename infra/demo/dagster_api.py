"""A client of Dagster's GraphQL API: it starts jobs, and reads status of runs, results of checks and missing assets."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from harvest_lib.errors import StackError

ENDED = frozenset({"SUCCESS", "FAILURE", "CANCELED"})

_REQUEST_SECONDS = 120
_EVIDENCE = 2_000

_LOCATIONS = """
{ workspaceOrError { ... on Workspace { locationEntries { name locationOrLoadError {
  ... on RepositoryLocation { repositories { name jobs { name } } } } } } } }
"""

_LAUNCH = """
mutation Launch($parameters: ExecutionParams!) { launchRun(executionParams: $parameters) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on Error { message }
} }
"""

_RUNS = """
query Runs($job: String!) { runsOrError(filter: {pipelineName: $job}, limit: 20) { ... on Runs {
  results { runId status } } } }
"""

_ASSETS = """
{ assetNodes { assetKey { path } isMaterializable assetMaterializations(limit: 1) { timestamp }
  assetChecksOrError { ... on AssetChecks { checks {
    name executionForLatestMaterialization { status evaluation { success severity description } }
  } } }
} }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Last result of a check. `verdict` is `passed`, or the severity of the failure (`WARN` or `ERROR`). Without a
    result it is the status of the execution, and `never` if the check was never executed."""

    verdict: str
    description: str = ""


class DagsterApi:
    """Client of a webserver with a single code location. Its methods raise StackError for a refused request."""

    def __init__(self, url: str) -> None:
        """Prepare; nothing is sent yet."""
        self.url = url
        self._http = httpx.Client(base_url=url, trust_env=False, timeout=_REQUEST_SECONDS)

    def ask(self, query: str, **variables: object) -> Any:
        """Send a query, and return the data of the answer."""
        try:
            answer = self._http.post("/graphql", json={"query": query, "variables": variables})
            said = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise self._refused(repr(error)) from error
        if answer.is_error or said.get("errors"):
            raise self._refused(json.dumps(said.get("errors"))[:_EVIDENCE])
        return said["data"]

    def place(self) -> tuple[str, str]:
        """Return the names of the code location and of its repository."""
        (entry,) = self.ask(_LOCATIONS)["workspaceOrError"]["locationEntries"]
        repositories = (entry["locationOrLoadError"] or {}).get("repositories")
        if not repositories:
            raise self._refused(f"the code location {entry['name']} does not load")
        return entry["name"], repositories[0]["name"]

    def launch(self, job: str, tags: Mapping[str, str] | None = None, **selection: object) -> str:
        """Start a job, or the part of it that `selection` names, and return the id of the run."""
        location, repository = self.place()
        selector = {"jobName": job, "repositoryName": repository, "repositoryLocationName": location, **selection}
        parameters = {
            "selector": selector,
            "runConfigData": {},
            "executionMetadata": {"tags": [{"key": key, "value": value} for key, value in (tags or {}).items()]},
        }
        answer = self.ask(_LAUNCH, parameters=parameters)["launchRun"]
        if answer["__typename"] != "LaunchRunSuccess":
            raise self._refused(str(answer))
        return str(answer["run"]["runId"])

    def runs(self, job: str) -> dict[str, str]:
        """Return the status of the job's last 20 runs, by run id, the newest first."""
        return {run["runId"]: run["status"] for run in self.ask(_RUNS, job=job)["runsOrError"]["results"]}

    def never_made(self) -> list[str]:
        """Return the paths of the materializable assets that were never materialized, sorted."""
        return sorted(
            _path(node)
            for node in self.ask(_ASSETS)["assetNodes"]
            if node["isMaterializable"] and not node["assetMaterializations"]
        )

    def checks(self) -> dict[tuple[str, str], CheckResult]:
        """Return the last result of each check, by the path of its asset and the name of the check."""
        return {
            (_path(node), check["name"]): _verdict(check["executionForLatestMaterialization"])
            for node in self.ask(_ASSETS)["assetNodes"]
            for check in node["assetChecksOrError"].get("checks", ())
        }

    def _refused(self, evidence: str) -> StackError:
        return StackError(
            "Dagster refuses a request", evidence=evidence, next_step="read the logs of dagster-webserver and its code"
        )


def _path(node: Mapping[str, Any]) -> str:
    return "/".join(node["assetKey"]["path"])


def _verdict(execution: Mapping[str, Any] | None) -> CheckResult:
    if execution is None:
        return CheckResult(verdict="never")
    if (found := execution["evaluation"]) is None:
        return CheckResult(verdict=execution["status"])
    return CheckResult(
        verdict="passed" if found["success"] else found["severity"], description=found["description"] or ""
    )
