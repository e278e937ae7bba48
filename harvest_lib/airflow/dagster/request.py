"""The request of an Airflow task to Dagster: a run, once for all tries of the task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harvest_lib.airflow.dagster.answers import Run

TASK_TAG = "airflow/task"
TRY_TAG = "airflow/try"
PARTITION_TAG = "dagster/partition"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAttempt:
    """One try of an Airflow task: the task's path, and the number of the try."""

    task: str
    number: int

    @property
    def tags(self) -> dict[str, str]:
        """The tags of a run that this attempt starts."""
        return {TASK_TAG: self.task, TRY_TAG: str(self.number)}

    def choose(self, runs: Sequence[Run], *, adopts_canceled: bool = False) -> Run | None:
        """Return the run that counts for this attempt, None if a run has to be started. `runs` begin with the oldest.

        A run that has not failed counts for every try of the task; a failed run counts only for the try that started
        it. With `adopts_canceled`, a run that was canceled counts for every try too. The oldest run that has not
        failed takes precedence.
        """
        # The newer of two runs of a try was ended by this package: it counts neither as failed nor as canceled.
        of_tries: dict[str, Run] = {}
        for run in runs:
            of_tries.setdefault(run.tags.get(TRY_TAG, ""), run)
        canceled = [run for run in of_tries.values() if run.canceled] if adopts_canceled else []
        going = (run for run in runs if not run.failed)
        return next(going, None) or of_tries.get(str(self.number)) or next(iter(canceled), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The request for a run: the job, the attempt, and how long to wait.

    `location` may be empty if a single code location has the job. `partition` is empty if the job has no partitions.
    `deadline` is Unix time, so that a restart does not move it; `patience_seconds` is the longest time for which
    Dagster may be unreachable. A run that succeeded without a step, or with a check that was not evaluated, counts as a
    success only with `allow_empty`. A run that was canceled in Dagster is started again by the next try only with
    `restart_canceled`. `is_in_worker`: the process that waits ends its run when it is ended, so that a canceled run of
    an earlier try need not have been canceled by a person.
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
    restart_canceled: bool = False
    is_in_worker: bool = False

    @property
    def tags(self) -> dict[str, str]:
        """The tags of a run that is started for this request."""
        return {**self.attempt.tags, **({PARTITION_TAG: self.partition} if self.partition else {})}

    def choose(self, runs: Sequence[Run]) -> Run | None:
        """Return the run that counts for this request, None if a run has to be started."""
        return self.attempt.choose(runs, adopts_canceled=not (self.restart_canceled or self.is_in_worker))
