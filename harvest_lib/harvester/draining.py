"""A harvester that ends when its outbox is empty, with the problems that keep it from starting and its progress."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import psycopg

from harvest_lib.config import HarvestConfig
from harvest_lib.errors import HarvestError
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.harvester.preflight import Finding, inspect
from harvest_lib.harvester.status import StatusReader
from harvest_lib.subscriptions.backlog import Backlog

_STEP_SECONDS = 0.2
"""The longest time for which a signal handler may be delayed."""


def require_ready(config: HarvestConfig, topics: Collection[str] = ()) -> Sequence[Finding]:
    """Check what `harvest check` checks, and return the warnings. Raises HarvestError with all errors."""
    report = inspect(config, topics)
    if errors := report.errors:
        raise HarvestError(
            "; ".join(each.cause for each in errors),
            evidence="; ".join(each.evidence for each in errors if each.evidence),
            next_step="; ".join(each.next_step for each in errors),
        )
    return [each for each in report.findings if each.severity == "warning"]


def delivered_since(waiting: Backlog, seconds: float) -> bool:
    """Return True if no record of a backlog is older than this number of seconds. Measure them before the backlog is
    read: otherwise a slow reading makes an old record seem new. Of an unknown age, as in a table without a column for
    it, only an empty backlog counts."""
    age = waiting.oldest_age_seconds
    return waiting.is_empty or (age is not None and age < seconds)


def progress(
    harvest: Harvest, connect: Callable[[], "psycopg.Connection[Any]"], report_every_seconds: float
) -> Iterator[str]:
    """Yield the progress of a started harvester in words, until the outbox is empty, or until another process has
    delivered all records that were there at the call. `connect` opens a connection to the outbox. Raises the error that
    ended the harvester."""
    began = time.monotonic()
    due = began + report_every_seconds
    while not harvest.is_drained and not harvest.await_stopped(_STEP_SECONDS):
        if time.monotonic() < due:
            continue
        due += report_every_seconds
        seconds = time.monotonic() - began
        try:
            with connect() as connection:
                status = StatusReader(connection, harvest.config)
                waiting, leaders = status.waiting(), status.leaders().by_shard
        except HarvestError as error:  # the harvester itself retries, or ends with the error
            yield f"the backlog could not be read: {error}"
            continue
        yield f"delivered {harvest.delivered_records:,}, backlog {waiting}, the oldest {waiting.age_seconds:.1f} s"
        if len(harvest.shards) == harvest.config.shards:
            continue
        yield f"this run does not lead, and waits; leader: {', '.join(each or 'none' for each in leaders)}"
        if delivered_since(waiting, seconds):
            yield "ends: the leader has delivered all records that were there when this run began"
            return
