"""The archive of an outbox: an asset with a partition for each closed segment, its job, and the job's sensor."""

from typing import Any

import dagster as dg
from dagster import AssetExecutionContext

from dagster_harvest.daemon import as_failure
from dagster_harvest.resources import HarvesterResource
from dagster_harvest.settings import ArchiveSettings, OutboxSettings
from harvest_lib.archive import archive_segments, closed_segments, unarchived_segments
from harvest_lib.archive.urls import shown
from harvest_lib.errors import HarvestError
from harvest_lib.postgres.database import connect

_UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
]


def archive_definitions(settings: OutboxSettings, archive: ArchiveSettings) -> dg.Definitions:
    """Return the asset, its job and its sensor. The sensor is on by default."""
    segments = dg.DynamicPartitionsDefinition(name=f"{settings.name}_segments")
    asset = _asset(settings, archive, segments)
    job = dg.define_asset_job(
        settings.archive_job_name,
        selection=dg.AssetSelection.assets(settings.archive_key),
        executor_def=dg.in_process_executor,
        tags=settings.run_tags.of("archive"),
        description="Archives a closed segment, and reads it back.",
    )
    return dg.Definitions(assets=[asset], jobs=[job], sensors=[_sensor(settings, archive, segments, job)])


def _asset(
    settings: OutboxSettings, archive: ArchiveSettings, segments: dg.DynamicPartitionsDefinition
) -> dg.AssetsDefinition:
    @dg.asset(
        key=settings.archive_key,
        deps=[dg.AssetDep(settings.outbox_key, partition_mapping=dg.AllPartitionMapping())],
        group_name=settings.name,
        kinds={"parquet"},
        description=f"Closed segments, as Parquet files in {shown(archive.url)}.",
        partitions_def=segments,
        op_tags=settings.op.archive.tags,
        pool=settings.op.archive.pool,
        required_resource_keys={settings.resource_key},
    )
    def archived(context: AssetExecutionContext) -> dg.MaterializeResult[Any]:
        resource: HarvesterResource = getattr(context.resources, settings.resource_key)
        failure: dg.Failure | None = None
        metadata: dict[str, Any] = {}
        try:
            with connect(resource.conninfo()) as connection:
                closed = closed_segments(connection, resource.table)
                wanted = [each for each in closed if each.name == context.partition_key]
                for done in archive_segments(connection, resource.table, archive.url, wanted):
                    metadata = {"records": done.records, "files": done.files, "bytes": done.bytes}
        except HarvestError as error:
            failure = as_failure(error)
        if failure is None and not metadata:
            failure = dg.Failure(
                description=f"there is no closed segment {context.partition_key} of {resource.table}",
                metadata={"next_step": "it was dropped, or is still written: `harvest segments list` shows all"},
                allow_retries=False,
            )
        if failure is not None:
            raise failure
        return dg.MaterializeResult(metadata={**metadata, "url": shown(archive.url)})

    return archived


def _sensor(
    settings: OutboxSettings, archive: ArchiveSettings, segments: dg.DynamicPartitionsDefinition, job: Any
) -> dg.SensorDefinition:
    @dg.sensor(
        name=f"{settings.name}_segments",
        job=job,
        minimum_interval_seconds=archive.check_every_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        required_resource_keys={settings.resource_key},
        description="Archives closed segments, in order, before retention may drop them.",
    )
    def look(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        resource: HarvesterResource = getattr(context.resources, settings.resource_key)
        runs = dg.RunsFilter(job_name=settings.archive_job_name, statuses=_UNFINISHED)
        if context.instance.get_runs(runs, limit=1):
            return dg.SkipReason("a segment is being archived")
        with resource.connect() as connection:
            found = [each.name for each in unarchived_segments(connection, resource.table, archive.url)]
        if not found:
            return dg.SkipReason("every closed segment is in the archive")
        context.instance.add_dynamic_partitions(str(segments.name), found)
        return dg.SensorResult(run_requests=[dg.RunRequest(partition_key=found[0])])  # two runs would need one lock

    return look
