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
from collections.abc import Iterator, Mapping, Sequence
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
from harvest_lib.harvester.draining import progress, require_ready
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.harvester.interpreter import tune_interpreter
from harvest_lib.harvester.watermark import DeliveryProgress, Watermark

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
    for each in require_ready(config, settings.topics):
        context.log.warning("%s (%s): %s", each.cause, each.evidence, each.next_step)
    watermark = Watermark()
    _read_progress(watermark, resource, config)
    before = {**_ends(config, settings), **_materialized_ends(context.instance, settings)}
    harvest = Harvest(config)
    counts = harvest.count_topics()
    _harvest(context.log, settings, resource, harvest)
    reached, ends, counted = _read_progress(watermark, resource, config), _ends(config, settings), counts.read()
    found = {}
    for topic in settings.topics:
        offsets = ranges(before[topic], ends[topic])
        if moved := passed(offsets):
            # Offsets include records of a run that failed. With transactions they include markers too.
            records = counted.get(topic, 0) if harvest.config.delivery == "transactional" else moved
            found[topic] = delivered_metadata(settings, records, offsets, reached)
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
                for text in progress(harvest, resource.connect, settings.daemon.report_every_seconds):
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
