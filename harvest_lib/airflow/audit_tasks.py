"""The audit and its report, as tasks that several DAGs use.

The audit is a Spark job (`python -m harvest_lib.spark.audit`). It writes a row of numbers to `harvest_audit.summary`.
The row's id is made from the DAG run, so that a retry replaces the row. The report shows the row, and fails if a number
shows an anomaly.
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

from harvest_lib.errors import FOUND_EXIT_CODE, ConfigError, HarvestError, NothingChecked
from harvest_lib.postgres.database import connect

ALLOW_EMPTY_VARIABLE = "HARVEST_AUDIT_ALLOW_EMPTY"
"""If this variable is set, an audit that finds no committed record succeeds, because an outbox may be new."""

AUDIT_ID = "{{ dag.dag_id }}/{{ run_id }}"

_WRONG = {
    "lost": ("committed, and not in Kafka", "lost"),
    "reordered": ("in Kafka in another order than their key's records were committed", "reorderings"),
    "unknown": ("in Kafka, and never committed", "unknown"),
    "duplicates_adjacent": ("sent twice in a row by one term", "duplicates"),
    "duplicates_separated": ("sent twice by one term, with other records of their key between", "duplicates"),
}
"""Columns of the summary that must be zero. Each column is mapped to the meaning of its number, and to the table that
lists the records."""


class AuditFailed(HarvestError):
    """The audit found records that were lost, reordered, repeated or never committed: its tables list the records."""


class AuditSummaryMissing(HarvestError):
    """The audit that has just run left no summary: the log of the task `audit` has the reason."""


def run_audit() -> BashOperator:
    """Return the task that compares Kafka with the committed records, in a Spark session that ends with the task."""
    command = f'{shlex.quote(sys.executable)} -m harvest_lib.spark.audit --audit-id "$HARVEST_AUDIT_ID"'
    command += f" ${{{ALLOW_EMPTY_VARIABLE}:+--allow-empty}}"
    return BashOperator(
        task_id="audit",
        bash_command=f"{command} || test $? -eq {FOUND_EXIT_CODE}",
        env={"HARVEST_AUDIT_ID": AUDIT_ID},  # not in the command, since a run's id may be any text
        append_env=True,
        execution_timeout=timedelta(hours=2),
        retries=1,
        retry_delay=timedelta(minutes=1),
    )


@task(task_id="report")
def report(audit_id: str) -> dict[str, Any]:
    """Show the numbers of an audit.

    Raises AuditFailed when they are wrong, naming them, and NothingChecked when no committed record was found.
    """
    numbers = _summary(audit_id)
    print(_page(numbers))  # noqa: T201 - a task's output is its log
    wrong = {column: numbers[column] for column in _WRONG if numbers[column]}
    if wrong:
        counts = ", ".join(f"{count} {column}" for column, count in wrong.items())
        meanings = "; ".join(f"{column}: {_WRONG[column][0]}" for column in wrong)
        tables = dict.fromkeys(_WRONG[column][1] for column in wrong)
        raise AuditFailed(
            f"the audit found {counts}",
            evidence=f"{meanings}; of {numbers['committed']} committed, with {numbers['records']} in Kafka",
            next_step=f"query {', '.join(f'harvest_audit.{table}' for table in tables)}"
            f" WHERE audit_id = '{numbers['audit_id']}'",
        )
    if not numbers["committed"] and not os.environ.get(ALLOW_EMPTY_VARIABLE):
        raise NothingChecked(
            "the audit found no committed record, so it proves nothing",
            evidence=f"0 records committed, {numbers['records']} messages in the topics",
            next_step="check the outbox, the business table and the topics; where they may be empty, "
            f"set {ALLOW_EMPTY_VARIABLE}=1 where Airflow's tasks run",
        )
    return {name: value if isinstance(value, int | float | None) else str(value) for name, value in numbers.items()}


def audit_and_report() -> None:
    """Add both tasks to the current DAG: first the audit, then the report."""
    run_audit() >> report(AUDIT_ID)


def _summary(audit_id: str) -> dict[str, Any]:
    dsn = os.environ.get("HARVEST_DSN", "")
    if not dsn:
        raise ConfigError(
            "it is not known where the outbox is", field="HARVEST_DSN", next_step="set it where Airflow's tasks run"
        )
    with connect(dsn) as connection, connection.cursor(row_factory=dict_row) as cursor:
        try:
            row = cursor.execute("SELECT * FROM harvest_audit.summary WHERE audit_id = %s", (audit_id,)).fetchone()
        except psycopg.errors.UndefinedTable:
            row = None
    if row is None:
        raise AuditSummaryMissing(
            "the audit left no summary",
            evidence=f"harvest_audit.summary has no row of {audit_id}",
            next_step="read the log of the task `audit`",
        )
    return row


def _page(numbers: dict[str, Any]) -> str:
    width = max(map(len, numbers))
    return "\n".join(
        ["the audit's numbers", *(f"  {name:<{width}}  {_shown(value)}" for name, value in numbers.items())]
    )


def _shown(value: object) -> str:
    return "-" if value is None else f"{value:,.1f}" if isinstance(value, float) else str(value)
