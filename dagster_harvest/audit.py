"""The audit of an outbox: its asset with checks, the asset `verified`, its job and its schedule.

    outbox, topics ──► <name>_audit (lost, unknown, ordering, duplicates, …) ──► <name>_audit_verified

The asset's metadata has the numbers of the summary and the first rows of each table of findings.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
from dagster import AssetExecutionContext

from dagster_harvest.assets import run_under_pipes
from dagster_harvest.audit_results import (
    AuditMissing,
    details,
    last_summary,
    past_summaries,
    require_compared,
    sample,
)
from dagster_harvest.audit_settings import AuditSettings
from dagster_harvest.checks import audit_checks, blocking_verdicts, stopped
from dagster_harvest.daemon import as_failure
from dagster_harvest.extras import require_installed
from dagster_harvest.plots import audit_plot
from dagster_harvest.quality import audit_quality_checks
from dagster_harvest.resources import HarvesterResource
from dagster_harvest.settings import OutboxSettings
from harvest_lib.audit.stored import stored_audit
from harvest_lib.audit.summary import AuditSummary
from harvest_lib.audit.textfile import audit_metrics
from harvest_lib.errors import FOUND_EXIT_CODE, HarvestError


def audit_definitions(settings: OutboxSettings, audit: AuditSettings) -> dg.Definitions:
    """Return the audit of an outbox. Raises ConfigError if a setting needs a package that is not installed."""
    if audit.engine == "spark":
        require_installed(["pyspark"], "audit.engine", "spark")
    job = dg.define_asset_job(
        settings.audit_job_name,
        # Selected by keys, not by group: a project can change a group, and Dagster refuses to load a key without an
        # asset.
        selection=dg.AssetSelection.assets(*settings.audit_keys),
        executor_def=dg.in_process_executor,
        tags=settings.run_tags.of("audit"),
        description="Audits, and judges what it found.",
    )
    cron = audit.cron_of(settings.name)
    return dg.Definitions(
        assets=[audit_asset(settings, audit), verified_asset(settings, audit)],
        asset_checks=[audit_checks(settings), *audit_quality_checks(settings, audit)],
        jobs=[job],
        schedules=[] if cron is None else [_schedule(settings, audit, job, cron)],
    )


def audit_asset(settings: OutboxSettings, audit: AuditSettings) -> dg.AssetsDefinition:
    """Return the asset of the audit, which writes a row of `harvest_audit.summary`."""

    @dg.asset(
        key=settings.audit_key,
        deps=[settings.outbox_key, *settings.topic_keys],
        kinds={"spark", "postgres"} if audit.engine == "spark" else {"postgres"},
        group_name=settings.name,
        description="Compares the committed records with the records in Kafka.",
        # With partitions Dagster would judge only the freshness of the latest partition. So with partitions `verified`,
        # which judges all of them, has the policy instead.
        freshness_policy=None if audit.by_topic else _freshness(audit),
        partitions_def=dg.StaticPartitionsDefinition(list(settings.topics)) if audit.by_topic else None,
        required_resource_keys={settings.resource_key, *([settings.pipes_key] if audit.engine == "spark" else [])},
        op_tags=settings.op.audit.tags,
        pool=settings.op.audit.pool,
    )
    def audited(context: AssetExecutionContext) -> dg.MaterializeResult[Any]:
        topics = [context.partition_key] if audit.by_topic else list(settings.topics)
        audit_id = f"{audit.id_prefix or settings.name}-{context.run.run_id}"
        work = _audit_by_spark if audit.engine == "spark" else _audit_here
        failure: dg.Failure | None = None
        try:
            work(context, settings, audit_id, topics)
            resource = _resource(context, settings)
            with resource.connect() as connection:
                last = last_summary(connection, settings, resource.table, audit_id=audit_id, topics=topics)
                summary = require_compared(last, settings)
                counts = details(connection, audit_id)
                past = past_summaries(connection, settings, resource.table, topics)
                samples = {name: sample(connection, [audit_id], name) for name, rows in counts.items() if rows}
        except AuditMissing as error:
            failure = as_failure(error)
            what = audit.module if audit.engine == "spark" else "the audit"
            left_none = f"{what} ended well and left no summary {audit_id!r}: is it the same database?"
            failure.description = left_none
        except HarvestError as error:
            failure = as_failure(error)
        if failure is not None:
            raise failure
        rows = {f"{name}_rows": count for name, count in counts.items()}
        shown = {f"{name}_sample": dg.MetadataValue.md(each.markdown) for name, each in samples.items() if each}
        plot = dg.MetadataValue.md(audit_plot(past))
        return dg.MaterializeResult(metadata={**_numbers(summary), **rows, **shown, "last_audits": plot})

    return audited


def verified_asset(settings: OutboxSettings, audit: AuditSettings) -> dg.AssetsDefinition:
    """Return the asset that proves to consumers that all committed records came, in order, up to the last audit.

    If a run also materializes the audit, the audit's blocking checks come first. The asset judges the last audit by the
    same rules itself, because a run may materialize this asset alone.
    """

    @dg.asset(
        key=settings.verified_key,
        deps=[settings.audit_key],
        group_name=settings.name,
        description="Up to when delivery is proved. Not renewed while a record is lost, unknown or out of order.",
        freshness_policy=_freshness(audit) if audit.by_topic else None,
        required_resource_keys={settings.resource_key},
    )
    def verified(context: AssetExecutionContext) -> dg.MaterializeResult[Any]:
        failure: dg.Failure | None = None
        try:
            resource = _resource(context, settings)
            with resource.connect() as connection:
                summary = require_compared(last_summary(connection, settings, resource.table), settings)
        except HarvestError as error:
            failure = as_failure(error)
        if failure is not None:
            raise failure
        if wrong := [verdict for verdict in blocking_verdicts(summary) if not verdict.passed]:
            raise stopped(wrong, settings)
        return dg.MaterializeResult(metadata=_numbers(summary))

    return verified


def _audit_here(context: AssetExecutionContext, settings: OutboxSettings, audit_id: str, topics: Sequence[str]) -> None:
    """Audit in this process. Raises HarvestError."""
    audit = settings.audited
    file = _metrics_file(settings, topics)
    with audit_metrics(file, topics) as found:
        config = _resource(context, settings).config()
        summary = stored_audit(config, topics, audit_id=audit_id, committed=audit.committed)
        found.update(require_compared(summary, settings).metrics())
    verdict = ", ".join(summary.anomalies) or "no anomalies"
    text = "audit %s: %d records committed, %d in Kafka: %s"
    context.log.info(text, audit_id, summary.committed, summary.records, verdict)


def _audit_by_spark(
    context: AssetExecutionContext, settings: OutboxSettings, audit_id: str, topics: Sequence[str]
) -> None:
    """Audit by a Spark job under Dagster Pipes. Raises Failure."""
    audit = settings.audited
    arguments = ["--audit-id", audit_id, "--json"]
    arguments += [word for topic in topics for word in ("--topic", topic)]
    business = settings.writer.table if settings.writer is not None else None
    arguments += ["--table", business] if business is not None else []
    arguments += ["--allow-empty"] if audit.allow_empty else []
    if (folder := audit.state_folder) is not None:
        arguments += ["--state", str(Path(folder, context.partition_key)) if audit.by_topic else folder]
    if (file := _metrics_file(settings, topics)) is not None:
        arguments += ["--metrics-file", str(file)]
    run_under_pipes(context, settings, audit.module, [*arguments, *audit.arguments], well=[FOUND_EXIT_CODE])


def _metrics_file(settings: OutboxSettings, topics: Sequence[str]) -> Path | None:
    audit = settings.audited
    if audit.metrics_folder is None:
        return None
    name = f"{settings.name}-{topics[0]}" if audit.by_topic else settings.name
    return Path(audit.metrics_folder, f"{name}.prom")


def _freshness(audit: AuditSettings) -> dg.FreshnessPolicy:
    return dg.FreshnessPolicy.time_window(
        fail_window=timedelta(hours=audit.fail_after_hours), warn_window=timedelta(hours=audit.warn_after_hours)
    )


def _schedule(settings: OutboxSettings, audit: AuditSettings, job: Any, cron: str) -> dg.ScheduleDefinition:
    def every_topic(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest]:
        for topic in settings.topics:
            key = f"{context.scheduled_execution_time.isoformat()} {topic}"
            yield dg.RunRequest(run_key=key, partition_key=topic)

    return dg.ScheduleDefinition(
        name=f"{settings.name}_nightly_audit",
        job=job,
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        execution_fn=every_topic if audit.by_topic else None,
    )


def _numbers(summary: AuditSummary) -> dict[str, Any]:
    names = [name for name in AuditSummary.__slots__ if name not in {"audit_id", "at"}]
    numbers = {name: getattr(summary, name) for name in names if getattr(summary, name) is not None}
    return {"audit_id": summary.audit_id, "audited_at": dg.MetadataValue.timestamp(summary.at), **numbers}


def _resource(context: AssetExecutionContext, settings: OutboxSettings) -> HarvesterResource:
    resource: HarvesterResource = getattr(context.resources, settings.resource_key)
    return resource
