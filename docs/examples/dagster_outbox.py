"""An outbox in Dagster: its harvester as a supervised run, its assets, and the checks of its audit.

    HARVEST_CONFIG=harvest.yaml dagster dev -f docs/examples/dagster_outbox.py

harvest.yaml is the configuration of `harvest run`. Turn the sensor `shop_supervisor` off to stop harvesting.
"""

from dagster_harvest.components import outbox_definitions
from dagster_harvest.settings import OutboxSettings, Thresholds

defs = outbox_definitions(
    OutboxSettings(
        name="shop",
        topics=["orders"],
        thresholds=Thresholds(backlog_age_warn_seconds=30, backlog_age_error_seconds=300),
    )
)
