"""The check, before a run is started, that the job and the partition belong together."""

from harvest_lib.airflow.dagster.answers import Job
from harvest_lib.airflow.dagster.client import DagsterClient
from harvest_lib.airflow.dagster.endpoint import DagsterError
from harvest_lib.airflow.dagster.graphql import short

_SHOWN = 3


class PartitionRefused(DagsterError):
    """The job has no such partition, or needs one, or has none at all: correct `partition`."""


async def require_partition(client: DagsterClient, job: Job, partition: str) -> None:
    """Raise PartitionRefused unless the job has the partition, or has no partitions and `partition` is empty."""
    if job.name.startswith("__"):  # Dagster's own job of all assets, each with partitions of its own
        return
    if not await client.is_partitioned(job):
        if partition:
            raise PartitionRefused(
                f"the Dagster job {job.name} has no partitions",
                evidence=f"partition is {partition!r}",
                next_step="leave `partition` out, or name a partitioned job",
            )
        return
    if partition and await client.has_partition(job, partition):
        return
    newest = ", ".join(await client.newest_partitions(job, _SHOWN))
    raise PartitionRefused(
        f"the Dagster job {job.name} "
        + (f"has no partition {partition!r}" if partition else "is partitioned, and no partition is named"),
        evidence=short(f"its last partitions: {newest}" if newest else "it has no partition yet"),
        next_step="name one of its partitions as `partition`"
        + ("; a day, hour or month is a partition only after its end" if partition else ', such as "{{ ds }}"'),
    )
