"""A DAG of a day's flights, from their source to the proof: Dagster loads them, the harvester delivers, Dagster audits.

Nothing here harvests: between the two jobs the DAG waits, without a worker, until the load's records are delivered.
"""

from datetime import timedelta

from airflow.sdk import Param, dag

from harvest_lib.airflow.operators.dagster import DagsterJobOperator
from harvest_lib.airflow.sensors.outbox import OutboxDrainedSensor

_DAY = Param("2013-01-01", type="string", format="date", title="Day", description="A day of 2013")


@dag(
    dag_id="harvest_flights_day",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    params={"day": _DAY},
    tags=["harvest"],
    doc_md=__doc__,
)
def flights_day() -> None:
    """Load, wait, audit."""
    loaded = DagsterJobOperator(
        task_id="load",
        job_name="flights_load",
        partition="{{ params.day }}",
        wait=timedelta(hours=1),
        retries=2,
        retry_delay=timedelta(seconds=15),
    )
    audited = DagsterJobOperator(task_id="audit", job_name="flights_audit", wait=timedelta(hours=1), retries=0)
    harvested = OutboxDrainedSensor(task_id="harvested", poke_interval=5, timeout=3600, deferrable=True)
    loaded >> harvested >> audited


flights_day()
