"""Two DAGs: an audit every night, and a report that runs when the audit has proved the delivery.

The audit fails, and names the numbers, when a record was lost. The report gets the numbers with the asset's event.
"""

import os
from datetime import UTC, datetime, timedelta

from airflow.sdk import Asset, dag, task

from harvest_lib.airflow.operators.audit import OutboxAuditOperator

_TOPIC = os.environ.get("HARVEST_TOPIC", "flights")
proven = Asset(name=f"{_TOPIC}_proven")


@dag(dag_id="harvest_nightly_audit", schedule="30 2 * * *", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False)
def nightly_audit() -> None:
    """Audit, in the process of the task."""
    OutboxAuditOperator(
        task_id="audit", topics=[_TOPIC], outlets=[proven], retries=1, execution_timeout=timedelta(hours=2)
    )


@dag(dag_id="harvest_after_audit", schedule=[proven], catchup=False)
def after_audit() -> None:
    """Report what was proved."""

    @task
    def report(triggering_asset_events=None) -> list[str]:  # type: ignore[no-untyped-def]  # Airflow's
        return [f"{event.extra['proved']} records proved" for event in triggering_asset_events[proven]]

    report()


nightly_audit()
after_audit()
