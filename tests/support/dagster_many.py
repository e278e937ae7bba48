"""A location with many outboxes that a service outside Dagster harvests, each with a table and topic of its own."""

import os

import dagster as dg

from dagster_harvest.components import outbox_definitions
from dagster_harvest.settings import DaemonSettings, OutboxSettings

defs = dg.Definitions.merge(
    *(
        outbox_definitions(
            OutboxSettings(
                name=f"shop_{number}",
                table=f"outbox_{number}",
                topics=[topic],
                config_file=os.environ["TEST_CONFIG"],
                daemon=DaemonSettings(mode="external"),
            )
        )
        for number, topic in enumerate(os.environ["TEST_TOPIC"].split(","))
    )
)
