"""The assets of an outbox: source data, business table and outbox, topics, audit tables.

    source ──Spark──► business table ──► outbox ──harvester──► topics
          ──Spark──► the audit's tables: summary, lost, duplicates, … ──► verified

The business table and the outbox have daily partitions; a backfill of many days is a single run with a single Spark
session. Topics are external assets: the harvester fills the topics and reports observations of them.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
from dagster import AssetExecutionContext
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from dagster_harvest.audit_results import AuditMissing, details, last_summary, past_summaries, require_compared, sample
from dagster_harvest.checks import blocking_verdicts
from dagster_harvest.daemon import as_failure
from dagster_harvest.pipes_main import STDERR_VARIABLE, SUCCESS_CODES_VARIABLE
from dagster_harvest.plots import audit_plot
from dagster_harvest.resources import CONFIG_VARIABLE, HarvesterResource
from dagster_harvest.settings import TABLES, VERIFIED, OutboxSettings, SparkWriterSettings
from harvest_lib.errors import FOUND_EXIT_CODE, HarvestError
from harvest_lib.spark.audit_summary import AuditSummary

_PROCESS_FAILED = "DagsterPipesExecutionError"
"""Name of the subprocess client's error for a process that failed. Dagster exports no class for this error."""
_LONGEST_SAID = 2000
_WHAT_AUDITS_FIND = {
    "summary": "One row per audit: every number.",
    "lost": "Records that were committed and are not in Kafka.",
    "duplicates": "Records that are in Kafka more than once: adjacent, separated, across epochs.",
    "reorderings": "Records that stand after one of their key that was written later.",
    "unknown": "Records in Kafka that no transaction committed, or none with that value.",
}


def outside_specs(settings: OutboxSettings, beside: Sequence[OutboxSettings] = ()) -> Sequence[dg.AssetSpec]:
    """Return the external assets: source, topics, and the outbox if no asset writes it.

    `beside` are the other outboxes of the code location. A topic that several outboxes fill is an asset of the first of
    them, by name, and depends on all of them.
    """
    group = settings.name
    specs = [
        dg.AssetSpec(
            key,
            deps=[each.outbox_key for each in filling],
            group_name=group,
            kinds={"kafka"},
            description=f"Topic of the outbox {' and '.join(each.name for each in filling)}; "
            f"{' and '.join(each.daemon_job_name for each in filling)} fills and observes it.",
        )
        for key in settings.topic_keys
        if (filling := _filling(key, settings, beside))[0].name == settings.name
    ]
    if settings.source_key is None:
        about = f"The table {settings.stated_table or 'of the outbox'}, which applications write."
        before = settings.upstream_keys
        return [
            *specs,
            dg.AssetSpec(settings.outbox_key, deps=before, group_name=group, kinds={"postgres"}, description=about),
        ]
    return [*specs, dg.AssetSpec(settings.source_key, group_name=group, description="Where the rows come from.")]


def _filling(
    topic: dg.AssetKey, settings: OutboxSettings, beside: Sequence[OutboxSettings]
) -> Sequence[OutboxSettings]:
    """Return the outboxes that fill the topic, by name."""
    found = {each.name: each for each in [*beside, settings] if topic in each.topic_keys}
    return [found[name] for name in sorted(found)]


def written_assets(settings: OutboxSettings, writer: SparkWriterSettings) -> dg.AssetsDefinition:
    """Return the assets of business table and outbox. A Spark job fills both, in one transaction per day."""
    business, source = settings.business_key, settings.source_key
    assert business is not None and source is not None  # noqa: S101, PT018 - there is a writer

    @dg.multi_asset(
        name=f"{settings.name}_written",
        specs=[
            dg.AssetSpec(
                business,
                deps=[source],
                kinds={"spark", "postgres"},
                description="Business rows.",
            ),
            dg.AssetSpec(
                settings.outbox_key,
                deps=[business],
                kinds={"spark", "postgres"},
                description="A record for each business row, committed with it.",
            ),
        ],
        group_name=settings.name,
        partitions_def=dg.DailyPartitionsDefinition(start_date=writer.first_day, end_date=writer.end_day),
        backfill_policy=dg.BackfillPolicy.single_run(),
        op_tags=settings.op.load.tags,
        pool=settings.op.load.pool,
        required_resource_keys={settings.resource_key, settings.pipes_key},
    )
    def written(context: AssetExecutionContext) -> Iterator[dg.MaterializeResult[Any]]:
        days = context.partition_key_range
        arguments = ["--first-day", days.start, "--last-day", days.end]
        arguments += ["--table", writer.table, "--topic", settings.topics[0]]
        arguments += ["--source", writer.file] if writer.file else []
        reported = run_under_pipes(context, settings, writer.module, arguments, outbox_option="--outbox")
        reports = _batches(writer.module, reported)
        summary: Mapping[str, Any] = next((each["summary"] for each in reported if "summary" in each), {})
        metadata = {
            "rows": sum(each["rows"] for each in reports),
            "promoted_rows": sum(each["rows"] for each in reports if each["status"] == "promoted"),
            "days": len(reports),
            "days_promoted_before": sum(each["status"] == "already-promoted" for each in reports),
            "staging_rows_per_second": summary.get("staging_rows_per_second", 0),
            "promotion_rows_per_second": summary.get("promotion_rows_per_second", 0),
            "seconds": summary.get("seconds", 0.0),
        }
        yield dg.MaterializeResult(asset_key=business, metadata=metadata)
        yield dg.MaterializeResult(asset_key=settings.outbox_key, metadata=metadata)

    return written


def audit_assets(settings: OutboxSettings) -> dg.AssetsDefinition:
    """Return the assets of the audit's result tables. A Spark job fills the tables."""

    @dg.multi_asset(
        name=f"{settings.name}_audit_tables",
        specs=[
            dg.AssetSpec(
                settings.audit_key(table),
                deps=[settings.outbox_key, *settings.topic_keys],
                kinds={"spark", "postgres"},
                description=_WHAT_AUDITS_FIND[table],
                # With partitions Dagster would judge only the freshness of the latest partition. So with partitions
                # `verified`, which judges all of them, has the policy instead.
                freshness_policy=None if settings.audit.by_topic else _freshness(settings),
            )
            for table in TABLES
        ],
        group_name=settings.name,
        op_tags=settings.op.audit.tags,
        pool=settings.op.audit.pool,
        partitions_def=_topic_partitions(settings),
        required_resource_keys={settings.resource_key, settings.pipes_key},
    )
    def audited(context: AssetExecutionContext) -> Iterator[dg.MaterializeResult[Any]]:
        topics = [context.partition_key] if settings.audit.by_topic else settings.topics
        audit_id = f"{settings.audit.id_prefix or settings.name}-{context.run.run_id}"
        arguments = ["--audit-id", audit_id, "--json"]
        arguments += [word for topic in topics for word in ("--topic", topic)]
        arguments += ["--table", settings.writer.table] if settings.writer is not None else []
        arguments += ["--allow-empty"] if settings.audit.allow_empty else []
        if (folder := settings.audit.state_folder) is not None:
            arguments += ["--state", str(Path(folder, context.partition_key)) if settings.audit.by_topic else folder]
        if (folder := settings.audit.metrics_folder) is not None:
            file = f"{settings.name}-{context.partition_key}" if settings.audit.by_topic else settings.name
            arguments += ["--metrics-file", str(Path(folder, f"{file}.prom"))]
        arguments += settings.audit.arguments
        failure: dg.Failure | None = None
        try:
            run_under_pipes(context, settings, settings.audit.module, arguments, well=[FOUND_EXIT_CODE])
            resource = _resource(context, settings)
            with resource.connect() as connection:
                last = last_summary(connection, settings, resource.table, audit_id=audit_id, topics=topics)
                summary = require_compared(last, settings)
                counts = details(connection, summary.audit_id)
                past = past_summaries(connection, settings, resource.table, topics)
                samples = {name: sample(connection, summary.audit_id, name) for name, rows in counts.items() if rows}
        except AuditMissing as error:
            failure = as_failure(error)
            left_none = f"{settings.audit.module} ended well and left no summary {audit_id!r}: is it the same database?"
            failure.description = left_none
        except HarvestError as error:
            failure = as_failure(error)
        if failure is not None:
            raise failure
        numbers = _numbers(summary)
        plot = dg.MetadataValue.md(audit_plot(past))
        yield dg.MaterializeResult(asset_key=settings.audit_key("summary"), metadata={**numbers, "last_audits": plot})
        for table, count in counts.items():
            found: dict[str, Any] = {"rows": count, "audit_id": summary.audit_id}
            if table in samples:
                found["sample"] = dg.MetadataValue.md(samples[table])
            yield dg.MaterializeResult[Any](asset_key=settings.audit_key(table), metadata=found)

    return audited


def _topic_partitions(settings: OutboxSettings) -> dg.PartitionsDefinition[str] | None:
    """Return the partitions of the audit's assets: the topics if each is audited alone, else None."""
    return dg.StaticPartitionsDefinition(list(settings.topics)) if settings.audit.by_topic else None


def _freshness(settings: OutboxSettings) -> dg.FreshnessPolicy:
    return dg.FreshnessPolicy.time_window(
        fail_window=timedelta(hours=settings.audit.fail_after_hours),
        warn_window=timedelta(hours=settings.audit.warn_after_hours),
    )


def verified_asset(settings: OutboxSettings) -> dg.AssetsDefinition:
    """Return the asset that proves to consumers that all committed records came, in order, up to the last audit.

    If a run also materializes the summary, the summary's blocking checks come first. The asset judges the last audit by
    the same rules itself, because a run may materialize this asset alone.
    """

    @dg.asset(
        key=settings.audit_key(VERIFIED),
        deps=[settings.audit_key("summary")],
        group_name=settings.name,
        description="Up to when delivery is proved. Not renewed while a record is lost, unknown or out of order.",
        freshness_policy=_freshness(settings) if settings.audit.by_topic else None,
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
        if wrong := [verdict.description for verdict in blocking_verdicts(summary) if not verdict.passed]:
            raise dg.Failure(
                description=f"the audit {summary.audit_id} found anomalies: {'; '.join(map(str, wrong))}",
                metadata={"next_step": "read the checks of the audit's summary, then audit again"},
                allow_retries=False,
            )
        return dg.MaterializeResult(metadata=_numbers(summary))

    return verified


def run_under_pipes(
    context: AssetExecutionContext,
    settings: OutboxSettings,
    module: str,
    arguments: Sequence[str],
    *,
    outbox_option: str | None = None,
    well: Sequence[int] = (),
) -> Sequence[Mapping[str, Any]]:
    """Run a module under Dagster Pipes with the harvester's connection. Return the module's messages.

    The module's log becomes part of the run's log. `well` are the exit codes besides 0 that are no failure. The
    password is passed only in the environment of the process, never in its arguments. Raises Failure with the module's
    last error output.
    """
    resource = _resource(context, settings)
    config = resource.config()
    parameters = {name: str(value) for name, value in conninfo_to_dict(config.data_source.conninfo()).items() if value}
    password = parameters.pop("password", "")
    environment = {
        "HARVEST_DSN": config.data_source.conninfo(),
        "HARVEST_OUTBOX_TABLE": config.outbox_table,
        "HARVEST_BOOTSTRAP_SERVERS": str(config.base_kafka_config.get("bootstrap.servers", "")),
        "PYTHONPATH": _search_path(),
        SUCCESS_CODES_VARIABLE: ",".join(map(str, well)),
        **({CONFIG_VARIABLE: resource.config_file} if resource.config_file else {}),
        **({"PGPASSWORD": password} if password else {}),
    }
    command = [sys.executable, "-m", "dagster_harvest.pipes_main", module, *arguments]
    if outbox_option is not None:
        command += ["--dsn", make_conninfo(**parameters), outbox_option, config.outbox_table]
    client: dg.PipesClient = getattr(context.resources, settings.pipes_key)
    failed: str | None = None
    with tempfile.TemporaryDirectory(prefix="harvest-pipes-") as folder:
        said = Path(folder) / "said"
        environment[STDERR_VARIABLE] = str(said)
        try:
            done = client.run(context=context, command=command, env=environment)
        except Exception as error:
            if type(error).__name__ != _PROCESS_FAILED:
                raise
            words = said.read_text()[-_LONGEST_SAID:].strip() if said.exists() else ""
            failed = f"{module} failed: {words or error}"
    if failed is not None:
        raise dg.Failure(
            description=failed,
            metadata={
                "module": module,
                "next_step": "follow its last message, and run this again: nothing is written twice",
            },
            allow_retries=False,
        )
    return list(done.get_custom_messages())


def _batches(module: str, reported: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return a writer module's reports of its batches. Raises Failure if there is no report or an incomplete report,
    since the number of loaded rows is then unknown."""
    reports = [each for each in reported if "batch" in each]
    broken = next((each for each in reports if not _is_batch(each)), None)
    if reports and broken is None:
        return reports
    what = "printed no line of a batch" if broken is None else "printed a line of a batch without what became of it"
    raise dg.Failure(
        description=f"{module} ended well and {what}: whether it loaded anything is not known",
        metadata={
            "module": module,
            "evidence": f"{len(reported)} lines were JSON objects, {len(reports)} of them had a `batch`"
            if broken is None
            else json.dumps(broken)[:_LONGEST_SAID],
            "next_step": "let it print a JSON object in a line for each batch, an empty one too: "
            '{"batch": "day-1", "status": "promoted", "rows": 3}; or name another `module` below `writer`',
        },
        allow_retries=False,
    )


def _is_batch(report: Mapping[str, Any]) -> bool:
    rows = report.get("rows")
    counts = isinstance(rows, int) and not isinstance(rows, bool)
    return report["batch"] is not None and isinstance(report.get("status"), str) and counts


def _numbers(summary: AuditSummary) -> dict[str, Any]:
    names = [name for name in AuditSummary.__slots__ if name not in {"audit_id", "at"}]
    numbers = {name: getattr(summary, name) for name in names if getattr(summary, name) is not None}
    return {"audit_id": summary.audit_id, "audited_at": dg.MetadataValue.timestamp(summary.at), **numbers}


def _search_path() -> str:
    # The new process imports this code from the same folders as Dagster, whether the code is installed or not.
    return ":".join(path for path in sys.path if path)


def _resource(context: AssetExecutionContext, settings: OutboxSettings) -> HarvesterResource:
    resource: HarvesterResource = getattr(context.resources, settings.resource_key)
    return resource
