"""A code location with two outboxes and a job that is none of theirs and fails. Alerts are lines of a file."""

import json
import os
import time
from dataclasses import asdict
from pathlib import Path

import dagster as dg

from dagster_harvest.components import outbox_definitions
from dagster_harvest.settings import DaemonSettings, OutboxSettings


def write(alert):
    """Append the alert to the file."""
    with Path(os.environ["TEST_ALERTS"]).open("a") as file:
        file.write(json.dumps({**asdict(alert), "said": str(alert), "at": time.time()}) + "\n")


def outbox(name, table):
    """Return the definitions of an outbox."""
    return outbox_definitions(
        OutboxSettings(
            name=name,
            table=table,
            topics=[os.environ["TEST_TOPIC"]],
            asset_keys={"topic": "kafka/{name}/{topic}"},
            config_file=os.environ["TEST_CONFIG"],
            daemon=DaemonSettings(heartbeat_every_seconds=1, stale_after_seconds=8, longest_backoff_seconds=10),
        ),
        tell=write,
    )


@dg.op
def fail():
    """Fail."""
    raise dg.Failure(description="it is none of the outboxes")


@dg.job
def something_else():
    """Fail, beside the outboxes."""
    fail()


@dg.sensor(job=something_else, minimum_interval_seconds=10, default_status=dg.DefaultSensorStatus.RUNNING)
def launches(context):
    """Launch the job that fails in each tick."""
    return dg.RunRequest(run_key=str(context.last_tick_completion_time))


defs = dg.Definitions.merge(
    outbox("shop", "outbox"),
    outbox("crm", "crm_outbox"),
    dg.Definitions(jobs=[something_else], sensors=[launches]),
)
