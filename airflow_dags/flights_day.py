"""A DAG of a day's flights, from their source to the proof: Dagster loads them, the harvester delivers, Dagster audits.

Nothing here harvests: between the two jobs the DAG waits, without a worker, until the outbox has no backlog.
"""

import os
from datetime import timedelta

from airflow.sdk import Param, PokeReturnValue, dag, task

from harvest_lib.airflow.dagster.operator import DagsterJobOperator
from harvest_lib.config import HarvestConfig, load
from harvest_lib.harvester.status import StatusReader
from harvest_lib.postgres.database import connect

_DAY = Param("2013-01-01", type="string", format="date", title="Day", description="A day of 2013")


@task.sensor(task_id="harvested", poke_interval=5, timeout=3600, mode="reschedule")
def harvested() -> PokeReturnValue:
    """Wait until all committed records are in Kafka; the log shows the number of waiting records."""
    file = os.environ.get("HARVEST_CONFIG")
    config = load(file).harvest if file else HarvestConfig()
    with connect(config.data_source.conninfo()) as connection:
        waiting = StatusReader(connection, config).waiting()
    print(f"{waiting.records:,} records wait")  # noqa: T201 - a task's output is its log
    return PokeReturnValue(is_done=waiting.is_empty, xcom_value=waiting.records)


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
    loaded >> harvested() >> audited


flights_day()
