"""The assets that a Spark job writes: a business table, if one is named, and the outbox, in the same transactions.

The job is a function that returns a frame (`dagster_harvest.frame_job` calls it in Spark's process), or a module that
writes by itself and prints a JSON line for each batch. A run of several partitions starts Spark once; each partition is
a batch of its own, so a later run over other partitions writes no batch twice.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import dagster as dg
from dagster import AssetExecutionContext

from dagster_harvest.asset_pages import static_metadata
from dagster_harvest.assets import run_under_pipes
from dagster_harvest.daemon import as_failure
from dagster_harvest.import_path import require_module
from dagster_harvest.pipes_main import FRAMES_EXTRA
from dagster_harvest.resources import HarvesterResource
from dagster_harvest.settings import OutboxSettings
from dagster_harvest.writer_settings import PLACE, SparkWriterSettings
from harvest_lib.errors import HarvestError

_FRAME_JOB = "dagster_harvest.frame_job"
_LONGEST_EVIDENCE = 2000
_SECONDS = ("staging_seconds", "promote_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """A partition: its key, and its times in ISO format. Without partitions the key is the id of the run, or of the run
    that it repeats, so that a repetition writes nothing twice."""

    key: str
    start: str | None = None
    end: str | None = None


def written_assets(settings: OutboxSettings, writer: SparkWriterSettings) -> dg.AssetsDefinition:
    """Return the assets of the outbox and of the business table, if there is one. Raises ConfigError if there is no
    module for the job."""
    if writer.module is not None:
        require_module(writer.module, field="writer.module")
    else:
        require_module(str(writer.function).rpartition(".")[0], field="writer.function")
    partitions = _partitions(writer)
    keys = [key for key in (settings.business_key, settings.outbox_key) if key is not None]

    @dg.multi_asset(
        name=f"{settings.name}_written",
        specs=_specs(settings),
        group_name=settings.name,
        partitions_def=partitions,
        backfill_policy=None if partitions is None else dg.BackfillPolicy.single_run(),
        op_tags=settings.op.load.tags,
        pool=settings.op.load.pool,
        required_resource_keys={settings.resource_key, settings.pipes_key},
    )
    def written(context: AssetExecutionContext) -> Iterator[dg.MaterializeResult[Any]]:
        began = time.monotonic()
        reported: Sequence[Mapping[str, Any]] = ()
        failure: dg.Failure | None = None
        try:
            reported = list(_reported(context, settings, writer, _windows(context, partitions)))
        except HarvestError as error:
            failure = as_failure(error)
        if failure is not None:
            raise failure
        batches = _batches(str(writer.function or writer.module), reported)
        whole: dict[str, Any] = {"seconds": round(time.monotonic() - began, 3)}
        if len(summaries := [each["summary"] for each in reported if "summary" in each]) == 1:
            whole |= summaries[0]
        by_partition = partitions is not None and {each.get("partition") for each in batches} == {
            *context.partition_keys
        }
        if not by_partition:
            whole |= _numbers(batches)
        for key in keys:
            for partition in context.partition_keys if by_partition else ():
                numbers = _numbers([each for each in batches if each["partition"] == partition])
                context.add_asset_metadata(numbers, asset_key=key, partition_key=partition)
            yield dg.MaterializeResult(asset_key=key, metadata=whole)

    return written


def _specs(settings: OutboxSettings) -> Sequence[dg.AssetSpec]:
    kinds = {"spark", "postgres"}
    business, before = settings.business_key, settings.upstream_keys
    about = "A record for each row of the Spark job, committed with it."
    metadata = static_metadata(settings, "postgres")
    outbox = dg.AssetSpec(settings.outbox_key, deps=before, kinds=kinds, metadata=metadata, description=about)
    if business is None:
        return [outbox]
    return [
        dg.AssetSpec(business, deps=before, kinds=kinds, description="Business rows."),
        outbox.replace_attributes(deps=[business]),
    ]


def _partitions(writer: SparkWriterSettings) -> dg.TimeWindowPartitionsDefinition | None:
    if writer.partitions == "none":
        return None
    kind = dg.DailyPartitionsDefinition if writer.partitions == "daily" else dg.HourlyPartitionsDefinition
    form = "%Y-%m-%d" if writer.partitions == "daily" else "%Y-%m-%d-%H:%M"
    end = None if writer.end is None else writer.end_time.strftime(form)
    return kind(start_date=writer.start_time.strftime(form), end_date=end, timezone=writer.timezone)


def _windows(context: AssetExecutionContext, partitions: dg.TimeWindowPartitionsDefinition | None) -> Sequence[_Window]:
    if partitions is None:
        return [_Window(key=context.run.root_run_id or context.run.run_id)]
    times = {key: partitions.time_window_for_partition_key(key) for key in context.partition_keys}
    return [_Window(key=key, start=each.start.isoformat(), end=each.end.isoformat()) for key, each in times.items()]


def _reported(
    context: AssetExecutionContext,
    settings: OutboxSettings,
    writer: SparkWriterSettings,
    windows: Sequence[_Window],
) -> Iterator[Mapping[str, Any]]:
    """Run the job, and yield its messages."""
    if writer.module is None:
        extras = {FRAMES_EXTRA: _frames(settings, writer, windows)}
        yield from run_under_pipes(context, settings, _FRAME_JOB, (), name=writer.function, extras=extras)
    elif not any("{key}" in each for each in writer.arguments):
        yield from run_under_pipes(context, settings, writer.module, _filled(context, settings, writer, windows))
    else:
        for window in windows:
            arguments = _filled(context, settings, writer, [window])
            for each in run_under_pipes(context, settings, writer.module, arguments):
                yield {"partition": window.key, **each}


def _filled(
    context: AssetExecutionContext,
    settings: OutboxSettings,
    writer: SparkWriterSettings,
    windows: Sequence[_Window],
) -> Sequence[str]:
    """Return the arguments of the module, with placeholders replaced."""
    first, last = windows[0], windows[-1]
    resource: HarvesterResource = getattr(context.resources, settings.resource_key)
    values = {
        "key": first.key,
        "first_key": first.key,
        "last_key": last.key,
        "start": str(first.start),
        "end": str(last.end),
        "outbox": resource.config().outbox_table,
    }
    return [PLACE.sub(lambda place: values[place[1]], each) for each in writer.arguments]


def _frames(settings: OutboxSettings, writer: SparkWriterSettings, windows: Sequence[_Window]) -> Mapping[str, Any]:
    """Return the declaration that `dagster_harvest.frame_job` reads."""
    records = writer.records
    assert records is not None  # noqa: S101 - the settings require it
    return {
        "function": writer.function,
        "table": writer.table,
        "batch_column": writer.batch_column,
        "batch_prefix": writer.batch_prefix or settings.name,
        "records": {**records.model_dump(), "topic": records.topic or settings.topics[0]},
        "windows": [asdict(each) for each in windows],
    }


def _batches(job: str, reported: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the job's reports of its batches. Raises Failure if there is no report or an incomplete report, since the
    number of loaded rows is then unknown."""
    reports = [each for each in reported if "batch" in each]
    broken = next((each for each in reports if not _is_batch(each)), None)
    if reports and broken is None:
        return reports
    what = "printed no line of a batch" if broken is None else "printed a line of a batch without its outcome"
    raise dg.Failure(
        description=f"{job} ended well and {what}: whether it loaded anything is not known",
        metadata={
            "job": job,
            "evidence": f"{len(reported)} lines were JSON objects, {len(reports)} of them had a `batch`"
            if broken is None
            else json.dumps(broken)[:_LONGEST_EVIDENCE],
            "next_step": "print the report of each batch, an empty one too: `print(sink(...).as_json())`, or a JSON "
            'object in a line such as {"batch": "day-1", "status": "promoted", "rows": 3}',
        },
        allow_retries=False,
    )


def _is_batch(report: Mapping[str, Any]) -> bool:
    rows = report.get("rows")
    counts = isinstance(rows, int) and not isinstance(rows, bool)
    return report["batch"] is not None and isinstance(report.get("status"), str) and counts


def _numbers(batches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sum of the batches as metadata."""
    rows = sum(each["rows"] for each in batches)
    return {
        "dagster/row_count": rows,
        "rows": rows,
        "promoted_rows": sum(each["rows"] for each in batches if each["status"] == "promoted"),
        "batches": len(batches),
        "batches_promoted_before": sum(each["status"] == "already-promoted" for each in batches),
        "status": ", ".join(sorted({each["status"] for each in batches})) or "not reported",
        "sink_seconds": round(sum(each.get(name, 0.0) for each in batches for name in _SECONDS), 3),
    }
