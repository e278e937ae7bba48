"""The audit and its report, as tasks that several DAGs use.

The audit is Spark's (`python -m spark_jobs.audit`) and leaves one row of numbers in `harvest_audit.summary`. The report
reads that row, shows it, and fails when the numbers say that something is wrong: lost, reordered, or never committed.
"""

import os
import shlex
import sys
from datetime import timedelta
from typing import Any

import psycopg
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import task
from psycopg.rows import dict_row

from harvest_lib.database import connect
from harvest_lib.errors import ConfigError, HarvestError

_WRONG = {
    "lost": "committed, and not in Kafka",
    "reordered": "in Kafka in another order than their key's records were committed",
    "unknown": "in Kafka, and never committed",
}
"""Columns of the summary that must be zero, and what a number in them means."""

_SUMMARY = """
    SELECT * FROM harvest_audit.summary
    WHERE at >= %(since)s
    ORDER BY at DESC
    LIMIT 1
"""


class AuditFailed(HarvestError):
    """The audit found records that were lost, reordered or never committed: its tables name each of them."""


class AuditMissing(HarvestError):
    """There is no summary of the audit that just ran: its own log says why."""


@task(task_id="begin", retries=2, retry_delay=timedelta(seconds=10))
def begin() -> str:
    """Ask Postgres for the time, which also shows, before Spark starts, that it answers."""
    with connect(_dsn()) as connection:
        row = connection.execute("SELECT clock_timestamp()::text").fetchone()
    return str(row[0]) if row else ""


def run_audit() -> BashOperator:
    """Compare Kafka with what was committed, in a Spark of its own that ends with the task."""
    return BashOperator(
        task_id="audit",
        bash_command=f"exec {shlex.quote(sys.executable)} -m spark_jobs.audit",
        append_env=True,
        execution_timeout=timedelta(hours=2),
        retries=1,
        retry_delay=timedelta(minutes=1),
    )


@task(task_id="report")
def report(since: str) -> dict[str, Any]:
    """Show the numbers of the audit that ran since then. Raises AuditFailed when they are wrong, naming them."""
    numbers = _summary(since)
    print(_page(numbers))  # noqa: T201 - a task's output is its log
    wrong = {column: numbers[column] for column in _WRONG if numbers[column]}
    if wrong:
        raise AuditFailed(
            "the audit found " + ", ".join(f"{count} {column}" for column, count in wrong.items()),
            evidence="; ".join(f"{column}: {_WRONG[column]}" for column in wrong)
            + f"; of {numbers['committed']} committed and {numbers['records']} in Kafka, audit {numbers['audit_id']}",
            next_step=f"read harvest_audit.{next(iter(wrong)) if 'reordered' not in wrong else 'reorderings'}"
            f" WHERE audit_id = '{numbers['audit_id']}'",
        )
    return {name: value if isinstance(value, int | float | str) else str(value) for name, value in numbers.items()}


def audit_and_report() -> None:
    """Put the tasks in order, inside a DAG."""
    since = begin()
    audit = run_audit()
    numbers = report(since)  # type: ignore[arg-type]  # what a task returns stands for its value
    since >> audit >> numbers


def _summary(since: str) -> dict[str, Any]:
    with connect(_dsn()) as connection, connection.cursor(row_factory=dict_row) as cursor:
        try:
            row = cursor.execute(_SUMMARY, {"since": since}).fetchone()
        except psycopg.errors.UndefinedTable:
            row = None
    if row is None:
        raise AuditMissing(
            "the audit left no summary",
            evidence=f"harvest_audit.summary has no row since {since}",
            next_step="read the log of the task `audit`",
        )
    return row


def _page(numbers: dict[str, Any]) -> str:
    width = max(map(len, numbers))
    return "\n".join(["audit", *(f"  {name:<{width}}  {_shown(value)}" for name, value in numbers.items())])


def _shown(value: object) -> str:
    return "-" if value is None else f"{value:,.1f}" if isinstance(value, float) else str(value)


def _dsn() -> str:
    dsn = os.environ.get("HARVEST_DSN", "")
    if not dsn:
        raise ConfigError(
            "it is not known where the outbox is", field="HARVEST_DSN", next_step="set it where Airflow's tasks run"
        )
    return dsn
