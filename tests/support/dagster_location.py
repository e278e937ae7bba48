"""A code location with one outbox, for a real Dagster instance that a test starts."""

import os

from dagster_harvest.components import outbox_definitions
from dagster_harvest.settings import DaemonSettings, OutboxSettings

defs = outbox_definitions(
    OutboxSettings(
        name="shop",
        topics=[os.environ["TEST_TOPIC"]],
        config_file=os.environ["TEST_CONFIG"],
        daemon=DaemonSettings(report_every_seconds=2, heartbeat_every_seconds=1, stale_after_seconds=8),
    )
)
