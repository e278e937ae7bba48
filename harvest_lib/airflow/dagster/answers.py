"""The answers of Dagster as values: jobs, runs and the work of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harvest_lib.airflow.dagster.endpoint import DagsterRefused
from harvest_lib.airflow.dagster.graphql import short

FINISHED = frozenset({"SUCCESS", "FAILURE", "CANCELED"})
WAITING = frozenset({"NOT_STARTED", "MANAGED", "QUEUED", "STARTING"})
"""Statuses of a run that no process executes yet."""


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

    @property
    def canceled(self) -> bool:
        """True if the run was canceled: a person or a program asked for its end."""
        return self.status == "CANCELED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of a run. `steps` is the number of steps that succeeded. `planned`, `passed` and `failed` are checks,
    each named `asset:check`. `failures` describes all failures in a single line. `assets` are the keys of the assets
    that the run materialized, in order, with a slash between the parts of a key."""

    steps: int
    planned: frozenset[str]
    passed: frozenset[str]
    failed: frozenset[str]
    failures: str
    assets: Sequence[str]

    @property
    def not_evaluated(self) -> Sequence[str]:
        """The checks that were planned and not evaluated."""
        return sorted(self.planned - self.passed - self.failed)


def expect(answer: Any, field: str, kind: str) -> Any:
    """Return the content of a field if its GraphQL type is `kind`, else raise DagsterRefused with Dagster's message."""
    content = answer[field]
    if content["__typename"] == kind:
        return content
    said = content.get("message") or "; ".join(each["message"] for each in content.get("errors", ()))
    raise DagsterRefused(
        "Dagster refuses the run" if field == "launchRun" else "Dagster cannot answer the question",
        evidence=short(f"{content['__typename']}: {said}"),
        next_step="correct the run's configuration" if "errors" in content else "check the job in Dagster's UI",
    )


def run_of(content: Mapping[str, Any]) -> Run:
    """Return the run that an answer describes."""
    tags = {tag["key"]: tag["value"] for tag in content["tags"]}
    return Run(run_id=content["runId"], status=content["status"], tags=tags)


def check_of(content: Mapping[str, Any]) -> str:
    """Return the name `asset:check` of a check."""
    return f"{'/'.join(content['assetKey']['path'])}:{content['checkName']}"


def root_of(error: Mapping[str, Any]) -> str:
    """Return the message of the innermost cause: the outer causes report only that a step failed."""
    chain = [error, *error.get("causes", ())]
    return " ".join(str(chain[-1]["message"]).split())
