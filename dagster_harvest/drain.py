"""The topics as assets that a run fills: it harvests until the outbox is empty, then ends. No run is kept alive.

Steps
1. check everything that `harvest check` checks; a problem fails the run, with its next step
2. start the harvester, which leads or is a standby
3. end when the outbox is empty, or when another process has delivered all records that were there at the start
4. report each topic that received records as materialized, with its own number of records

If the run is terminated, the harvester stops in order, and the records that it has not delivered stay in the outbox.
"""

import queue
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import dagster as dg
from dagster import AssetExecutionContext

from dagster_harvest.asset_pages import static_metadata
from dagster_harvest.daemon import as_failure
from dagster_harvest.forwarded_logs import forwarded_logs
from dagster_harvest.resources import HarvesterResource
from dagster_harvest.settings import OutboxSettings
from dagster_harvest.topic_ends import Ends, ends_of, passed, ranges, read_ends
from dagster_harvest.topic_reports import delivered_metadata
from harvest_lib.config import HarvestConfig
from harvest_lib.errors import ConfigError, HarvestError, KafkaError
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.harvester.interpreter import tune_interpreter
from harvest_lib.harvester.preflight import inspect
from harvest_lib.harvester.status import StatusReader
from harvest_lib.harvester.watermark import DeliveryProgress, Watermark

_STEP_SECONDS = 0.2
"""The longest time for which a signal handler may be delayed."""
_PATIENCE_SECONDS = 30.0
"""The longest time for which Kafka's answer about the ends of the topics is awaited."""


def drain_definitions(settings: OutboxSettings, beside: Sequence[OutboxSettings] = ()) -> dg.Definitions:
    """Return the topics as assets, and the job that fills them. Raises ConfigError if another outbox of the location,
    one of `beside`, fills one of the topics: an asset has a single run that materializes it."""
    for other in beside:
        shared = [key for key in settings.topic_keys if key in other.topic_keys]
        if shared and other.name != settings.name:
            raise ConfigError(
                f"{settings.name} drains into {shared[0].to_user_string()}, which {other.name} fills too",
                field="asset_keys",
                next_step='give each an asset of its own: asset_keys: {topic: "kafka/{name}/{topic}"}',
            )
    job = dg.define_asset_job(
        settings.drain_job_name,
        selection=dg.AssetSelection.assets(*settings.topic_keys),
        executor_def=dg.in_process_executor,
        tags=settings.run_tags.of("daemon"),
        description="Harvests until the outbox is empty.",
    )
    return dg.Definitions(assets=[_topics(settings)], jobs=[job])


def _topics(settings: OutboxSettings) -> dg.AssetsDefinition:
    @dg.multi_asset(
        name=f"{settings.name}_drained",
        specs=[
            dg.AssetSpec(
                key,
                deps=[settings.outbox_key],
                skippable=True,  # a topic without a new record is not materialized, so nothing downstream runs
                kinds={"kafka"},
                metadata=static_metadata(settings, "kafka"),
                description=f"Topic of the outbox {settings.name}; a run harvests until the outbox is empty.",
            )
            for key in settings.topic_keys
        ],
        group_name=settings.name,
        op_tags=settings.op.daemon.tags,
        pool=settings.op.daemon.pool,
        required_resource_keys={settings.resource_key},
    )
    def drained(context: AssetExecutionContext) -> Iterator[dg.MaterializeResult[Any]]:
        resource: HarvesterResource = getattr(context.resources, settings.resource_key)
        failure: dg.Failure | None = None
        found: Mapping[str, dict[str, Any]] = {}
        try:
            found = _drain(context, settings, resource)
        except HarvestError as error:
            failure = as_failure(error)
            failure.allow_retries = not isinstance(error, ConfigError)
        if failure is not None:  # outside the handler: a chained cause may quote a row, and Dagster stores causes
            raise failure
        for topic, key in zip(settings.topics, settings.topic_keys, strict=True):
            if topic in found:
                yield dg.MaterializeResult(asset_key=key, metadata=found[topic])

    return drained


def _drain(
    context: AssetExecutionContext, settings: OutboxSettings, resource: HarvesterResource
) -> Mapping[str, dict[str, Any]]:
    """Harvest until the outbox is empty. Return the metadata of each topic whose end has moved since its last
    materialization. Raises HarvestError."""
    config = resource.config()
    _require_ready(context.log, config, settings.topics)
    watermark = Watermark()
    _read_progress(watermark, resource, config)
    before = {**_ends(config, settings), **_materialized_ends(context.instance, settings)}
    harvest = Harvest(config)
    counts = harvest.count_topics()
    _harvest(context.log, settings, resource, harvest)
    progress, ends, counted = _read_progress(watermark, resource, config), _ends(config, settings), counts.read()
    found = {}
    for topic in settings.topics:
        offsets = ranges(before[topic], ends[topic])
        if moved := passed(offsets):
            # Offsets include records of a run that failed. With transactions they include markers too.
            records = counted.get(topic, 0) if harvest.config.delivery == "transactional" else moved
            found[topic] = delivered_metadata(settings, records, offsets, progress)
    return found


def _read_progress(watermark: Watermark, resource: HarvesterResource, config: HarvestConfig) -> DeliveryProgress | None:
    """Return the progress of the outbox; None if it is unknown, such as before a mapped table was read."""
    with suppress(HarvestError), resource.connect() as connection:
        return watermark.read(connection, config)
    return None


def _ends(config: HarvestConfig, settings: OutboxSettings) -> Mapping[str, Ends]:
    """Return the ends of all topics. Raises KafkaError."""
    found = read_ends(config, settings.topics, patience_seconds=_PATIENCE_SECONDS)
    if missing := [topic for topic in settings.topics if topic not in found]:
        raise KafkaError(
            f"Kafka does not say where the topics {', '.join(missing)} end",
            evidence=f"no answer within {_PATIENCE_SECONDS:g} s",
            next_step="check the brokers, then run this again: the next run counts the records of this run",
        )
    return found


def _materialized_ends(instance: dg.DagsterInstance, settings: OutboxSettings) -> Mapping[str, Ends]:
    """Return the ends in the last materialization of each topic that has some. Records of a run that failed or was
    terminated are counted from there by the next run."""
    found = {}
    for topic, key in zip(settings.topics, settings.topic_keys, strict=True):
        event = instance.get_latest_materialization_event(key)
        materialization = event.asset_materialization if event is not None else None
        if materialization is not None and (ends := ends_of(materialization.metadata)):
            found[topic] = ends
    return found


def _harvest(
    run_log: dg.DagsterLogManager, settings: OutboxSettings, resource: HarvesterResource, harvest: Harvest
) -> None:
    """Harvest until the outbox is empty."""
    tune_interpreter()
    began = time.monotonic()
    warnings: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    with forwarded_logs(warnings):
        try:
            with harvest:
                for text in _progress(harvest, resource, settings.daemon.report_every_seconds):
                    _pass_on(warnings, run_log)
                    run_log.info(text)
        finally:  # an interrupt is a BaseException
            _pass_on(warnings, run_log)
            seconds = time.monotonic() - began
            run_log.info("delivered %d records in %.1f s", harvest.delivered_records, seconds)


def _pass_on(warnings: "queue.SimpleQueue[tuple[int, str]]", run_log: dg.DagsterLogManager) -> None:
    """Log the warnings of other threads; only the thread of the run writes Dagster's event log."""
    with suppress(queue.Empty):
        while True:
            run_log.log(*warnings.get_nowait())


def _require_ready(run_log: dg.DagsterLogManager, config: HarvestConfig, topics: Collection[str]) -> None:
    """Write the warnings of `harvest check` to the log. Raises HarvestError with all of its errors."""
    report = inspect(config, topics)
    for finding in report.findings:
        if finding.severity == "warning":
            run_log.warning("%s (%s): %s", finding.cause, finding.evidence, finding.next_step)
    if errors := report.errors:
        raise HarvestError(
            "; ".join(each.cause for each in errors),
            evidence="; ".join(each.evidence for each in errors if each.evidence),
            next_step="; ".join(each.next_step for each in errors),
        )


def _progress(harvest: Harvest, resource: HarvesterResource, report_every_seconds: float) -> Iterator[str]:
    """Yield the progress in words, until the outbox is empty, or until another process has delivered all records that
    were there at the call. Raises the error that ended the harvester.
    """
    began = time.monotonic()
    due = began + report_every_seconds
    while not harvest.is_drained and not harvest.await_stopped(_STEP_SECONDS):
        if time.monotonic() < due:
            continue
        due += report_every_seconds
        try:
            with resource.connect() as connection:
                status = StatusReader(connection, harvest.config)
                waiting, leaders = status.waiting(), status.leaders().by_shard
        except HarvestError as error:  # the harvester itself retries, or ends with the error
            yield f"the backlog could not be read: {error}"
            continue
        yield f"delivered {harvest.delivered_records:,}, backlog {waiting}, the oldest {waiting.age_seconds:.1f} s"
        if len(harvest.shards) == harvest.config.shards:
            continue
        yield f"this run does not lead, and waits; leader: {', '.join(each or 'none' for each in leaders)}"
        if waiting.records == 0 or waiting.age_seconds < time.monotonic() - began:
            yield "ends: the leader has delivered all records that were there when this run began"
            return
