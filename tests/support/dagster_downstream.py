"""A code location with one outbox of many topics, and an asset that follows each topic."""

import os

import dagster as dg

from dagster_harvest.components import outbox_definitions
from dagster_harvest.settings import DaemonSettings, OutboxSettings
from dagster_harvest.topic_reports import ROW_COUNT

SETTINGS = OutboxSettings(
    name="shop",
    topics=os.environ["TEST_TOPIC"].split(","),
    config_file=os.environ["TEST_CONFIG"],
    daemon=DaemonSettings(stale_after_seconds=60),
)


def follower(topic, upstream):
    @dg.asset(
        name=topic.replace(".", "_").replace("-", "_"),
        deps=[upstream],
        automation_condition=dg.AutomationCondition.eager(),
    )
    def follows(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        """Report the number of the topic's records that can be read."""
        found = context.instance.fetch_materializations(upstream, limit=1_000).records
        records = sum(each.asset_materialization.metadata[ROW_COUNT].value for each in found)
        return dg.MaterializeResult(metadata={"records": records})

    return follows


defs = dg.Definitions.merge(
    outbox_definitions(SETTINGS),
    dg.Definitions(
        assets=[follower(*each) for each in zip(SETTINGS.topics, SETTINGS.topic_keys, strict=True)],
        sensors=[
            dg.AutomationConditionSensorDefinition(
                "automation", target="*", default_status=dg.DefaultSensorStatus.RUNNING
            )
        ],
    ),
)
