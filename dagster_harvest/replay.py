"""The replays of an outbox: an asset with a partition for each subscription to fill.

Each run executes `python -m harvest_lib.spark.replay`. A run that fails or is terminated leaves the subscription
partly filled; the next run of the partition continues the replay.
"""

from typing import Any

import dagster as dg
from dagster import AssetExecutionContext

from dagster_harvest.assets import run_under_pipes
from dagster_harvest.settings import OutboxSettings

_PROGRESS_SECONDS = 5.0
_REPORTED = ("records", "parts", "seconds", "already_filled")


def replay_definitions(settings: OutboxSettings) -> dg.Definitions:
    """Return the definitions of the replays: an asset and its job."""
    job = dg.define_asset_job(
        settings.replay_job_name,
        selection=dg.AssetSelection.assets(settings.replay_key),
        executor_def=dg.in_process_executor,
        tags=settings.run_tags.of("replay"),
        description="Fills a new subscription's topics with records delivered before; goes on where it was.",
    )
    return dg.Definitions(assets=[replay_asset(settings)], jobs=[job])


def replay_asset(settings: OutboxSettings, module: str = "harvest_lib.spark.replay") -> dg.AssetsDefinition:
    """Return the asset of the replays. A run executes `module` by `python -m`, with the options of
    `harvest_lib.spark.replay`."""
    replays = {each.subscription: each for each in settings.replays}
    before = [settings.outbox_key, *([settings.archive_key] if settings.archive is not None else [])]

    @dg.asset(
        key=settings.replay_key,
        deps=[dg.AssetDep(key, partition_mapping=dg.AllPartitionMapping()) for key in before],
        group_name=settings.name,
        kinds={"spark", "kafka"},
        description="Topics of new subscriptions, filled with records delivered before; `harvest run` goes on.",
        partitions_def=dg.StaticPartitionsDefinition(list(replays)),
        op_tags=settings.op.replay.tags,
        pool=settings.op.replay.pool,
        required_resource_keys={settings.resource_key, settings.pipes_key},
    )
    def replayed(context: AssetExecutionContext) -> dg.MaterializeResult[Any]:
        replay = replays[context.partition_key]
        arguments = ["--subscription", replay.subscription, "--json", "--progress-seconds", str(_PROGRESS_SECONDS)]
        arguments += [word for pair in replay.topics.items() for word in ("--topic", "=".join(pair))]
        arguments += ["--archive", replay.archive] if replay.archive else []
        arguments += ["--without-dropped"] if replay.without_dropped else []
        *_, report = run_under_pipes(context, settings, module, arguments)
        return dg.MaterializeResult(
            metadata={
                **{name: report[name] for name in _REPORTED},
                "next_step": f"`harvest run` with `subscription: {replay.subscription}` goes on from here",
            }
        )

    return replayed
