"""A DAG of a batch: rows and records in one transaction, their delivery by a task, and the proof. No daemon runs."""

import os

from airflow.sdk import dag

from harvest_lib.airflow.operators.append import OutboxAppendOperator
from harvest_lib.airflow.operators.outbox import HarvestDrainOperator
from harvest_lib.airflow.sensors.outbox import OutboxDrainedSensor

_TOPIC = os.environ.get("HARVEST_TOPIC", "flights")


@dag(dag_id="harvest_drain_after_batch", schedule=None, catchup=False, max_active_runs=1, tags=["harvest"])
def drain_after_batch() -> None:
    """Append, deliver, prove."""
    appended = OutboxAppendOperator(
        task_id="append",
        sql="CREATE TABLE IF NOT EXISTS batches (run text PRIMARY KEY)",
        rows={"batches": [{"run": "{{ run_id }}"}]},
        records=[{"topic": _TOPIC, "key": "batch", "value": {"run": "{{ run_id }}"}}],
    )
    delivered = HarvestDrainOperator(task_id="deliver")
    proven = OutboxDrainedSensor(task_id="delivered", deferrable=True)
    appended >> delivered >> proven


drain_after_batch()
