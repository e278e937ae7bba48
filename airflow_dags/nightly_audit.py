"""A DAG that audits every night and reports: it fails, and names the numbers, when a record was lost."""

from datetime import UTC, datetime

from airflow.sdk import dag

from harvest_lib.airflow.audit_tasks import audit_and_report


@dag(
    dag_id="harvest_nightly_audit",
    schedule="30 2 * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    tags=["harvest"],
    doc_md=__doc__,
)
def nightly_audit() -> None:
    """Audit and report."""
    audit_and_report()


nightly_audit()
