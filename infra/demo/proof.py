"""The third act of `make demo`: a day of flights in Dagster, with a run that harvests, and all checks of the result.

stack ─► Dagster ─► its supervisor starts the run that harvests
                 ─► flights_load: Spark writes a day ─► it is delivered ─► flights_audit ─► checks
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harvest_lib.local_stack import Stack
from harvest_lib.local_stack.state import default_state
from infra.demo.dagster_api import ENDED, CheckResult, DagsterApi
from infra.demo.place import is_delivered
from infra.demo.progress import DAY, Progress
from infra.platform.platform import Platform
from infra.waiting import until

_DAEMON, _LOAD, _AUDIT = "flights_harvester_daemon", "flights_load", "flights_audit"
_DAEMON_SECONDS, _JOB_SECONDS, _DELIVERY_SECONDS = 180.0, 600.0, 120.0
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Results in Dagster at the end of the act. `checks` has the result of each check under `asset:check`;
    `never_made` has the assets that were never materialized."""

    url: str
    checks: Mapping[str, CheckResult]
    never_made: tuple[str, ...]
    daemon_runs: bool
    failed: tuple[str, ...] = ()
    """Jobs that did not succeed, each with its status and the address of its run."""

    @property
    def ok(self) -> bool:
        """True if every asset was made, every check passes, no job failed and the daemon runs."""
        passed = all(each.verdict == "passed" for each in self.checks.values())
        return bool(self.checks) and passed and not self.never_made and not self.failed and self.daemon_runs

    def document(self) -> dict[str, Any]:
        """Return the results as values for `report.json`."""
        return {"ok": self.ok, **{name: value for name, value in asdict(self).items() if name != "url"}}


@contextmanager
def proof(folder: Path, progress: Progress) -> Iterator[Proof]:
    """Run the third act on its own servers, which run until the context ends. Raises HarvestError."""
    state = default_state()
    with ExitStack() as ending:
        ending.enter_context(_own_settings())
        progress.say("third act: Dagster, with a stack of its own", "bold")
        stack = ending.enter_context(Stack(folder, fresh=True, parts=state))
        platform = Platform(folder, parts=state, airflow=False)
        ending.callback(platform.stop)
        platform.start(dsn=stack.dsn, bootstrap_servers=stack.bootstrap_servers)
        dagster = DagsterApi(platform.dagster_url)
        progress.say(f"Dagster is at {dagster.url}; its supervisor starts the run that harvests")
        _wait(lambda: _runs(dagster), _DAEMON_SECONDS, f"no run of {_DAEMON}", folder)
        progress.say(f"it harvests; Spark writes the flights of {DAY}")
        failed = _run(dagster, _LOAD, {"dagster/partition": DAY}, folder)
        _wait(lambda: is_delivered(stack.dsn, "harvest-local"), _DELIVERY_SECONDS, "the day is not delivered", folder)
        progress.say("all delivered; an audit compares Kafka with Postgres")
        failed += _run(dagster, _AUDIT, {}, folder)
        checks = {f"{path}:{name}": found for (path, name), found in sorted(dagster.checks().items())}
        yield Proof(
            url=dagster.url,
            checks=checks,
            never_made=tuple(dagster.never_made()),
            daemon_runs=_runs(dagster),
            failed=failed,
        )
        progress.say("ending what was started")


def _runs(dagster: DagsterApi) -> bool:
    return "STARTED" in dagster.runs(_DAEMON).values()


def _run(dagster: DagsterApi, job: str, tags: Mapping[str, str], folder: Path) -> tuple[str, ...]:
    """Run a job to its end. Return an empty tuple if the job succeeded. Otherwise, for example if a check failed, the
    tuple has a sentence about the job."""
    mine = dagster.launch(job, tags)
    _wait(lambda: dagster.runs(job).get(mine) in ENDED, _JOB_SECONDS, f"{job} does not end", folder)
    status = dagster.runs(job)[mine]
    return () if status == "SUCCESS" else (f"{job} {status}: {dagster.url}/runs/{mine}",)


@contextmanager
def _own_settings() -> Iterator[None]:
    """Hide the variables of other harvesters from Dagster."""
    ours = {"HARVEST_CACHE", "HARVEST_HOME", "HARVEST_SPARK_JARS"}
    others = {name: value for name, value in os.environ.items() if name.startswith("HARVEST_") and name not in ours}
    for name in others:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(others)


def _wait(condition: Callable[[], bool], seconds: float, trouble: str, folder: Path) -> None:
    next_step = f"read the logs in {folder / 'logs'}"
    until(condition, seconds, f"{trouble} after {seconds:.0f} s", next_step=next_step, tick_seconds=_LOOK_SECONDS)
