"""A code location with one outbox and a job that runs for each 50 delivered records."""

import os

import dagster as dg

from dagster_harvest.components import outbox_definitions
from dagster_harvest.deliveries import RECORDS_TAG, delivered_sensor
from dagster_harvest.settings import DaemonSettings, OutboxSettings

SETTINGS = OutboxSettings(
    name="shop",
    topics=[os.environ["TEST_TOPIC"]],
    config_file=os.environ["TEST_CONFIG"],
    daemon=DaemonSettings(report_every_seconds=2, materialize_every_seconds=3, stale_after_seconds=60),
)


@dg.op
def note(context: dg.OpExecutionContext) -> None:
    """Log the records of the run."""
    context.log.info(context.run.tags[RECORDS_TAG])


@dg.job
def counted():
    """Runs for each 50 records."""
    note()


sensor = delivered_sensor(
    SETTINGS,
    topic=SETTINGS.topics[0],
    every_records=50,
    job=counted,
    name="counts",
    minimum_interval_seconds=3,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
defs = dg.Definitions.merge(
    outbox_definitions(SETTINGS),
    dg.Definitions(jobs=[counted], sensors=[sensor]),
)
