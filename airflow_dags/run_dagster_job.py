"""A DAG that starts a Dagster job and waits for it. The worker is free while it waits; restarts start nothing twice."""

import os
from datetime import timedelta

from airflow.sdk import Param, dag

from harvest_lib.airflow.operators.dagster import DagsterJobOperator


@dag(
    dag_id="harvest_run_dagster_job",
    schedule=None,
    catchup=False,
    max_active_runs=4,
    params={
        "job": Param(
            os.environ.get("HARVEST_DAGSTER_JOB", "flights_audit"), type="string", minLength=1, title="Dagster job"
        ),
        "location": Param("", type="string", title="Code location, when several have such a job"),
        "partition": Param("", type="string", title="Partition, of a job that has them, such as 2013-01-31"),
        "run_config": Param({}, type="object", title="The run's configuration"),
    },
    tags=["harvest"],
    doc_md=__doc__,
)
def run_dagster_job() -> None:
    """Start the job that the parameters name."""
    DagsterJobOperator(
        task_id="dagster_job",
        job_name="{{ params.job }}",
        location="{{ params.location }}",
        partition="{{ params.partition }}",
        run_config="{{ params.run_config | tojson }}",
        wait=timedelta(hours=2),
        retries=2,
        retry_delay=timedelta(seconds=30),
    )


run_dagster_job()
