"""The checks of an outbox's present state, evaluated on request. The supervisor's ticks evaluate the same checks."""

from collections.abc import Iterator

import dagster as dg

from dagster_harvest.checks import Verdict, named, unreadable
from dagster_harvest.leading import leaders_by_runs
from dagster_harvest.outbox_state import LEADERLESS_SECONDS, STATE_CHECKS, judged_state, read_state
from dagster_harvest.resources import HarvesterResource
from dagster_harvest.settings import OutboxSettings
from harvest_lib.errors import HarvestError

_DESCRIPTIONS = {
    "backlog_age": "How long the oldest record has waited.",
    "backlog_size": "How many records wait.",
    "parked": "How many records Kafka rejected permanently, and how many wait behind them.",
    "leader": "Which process leads. Fails if a shard has had no leader for 60 s; on request, if it has none now.",
}


def state_checks(settings: OutboxSettings) -> dg.AssetChecksDefinition:
    """Return the checks of backlog, parked records and leader."""

    @dg.multi_asset_check(
        name=f"{settings.name}_backlog",
        specs=[
            dg.AssetCheckSpec(name, asset=settings.outbox_key, description=_DESCRIPTIONS[name]) for name in STATE_CHECKS
        ],
        required_resource_keys={settings.resource_key},
    )
    def state(context: dg.AssetCheckExecutionContext) -> Iterator[Verdict]:
        resource: HarvesterResource = getattr(context.resources, settings.resource_key)
        known = leaders_by_runs(context.instance, settings) if settings.daemon.mode == "run" else None
        try:
            with resource.connect() as connection:
                found = read_state(connection, resource.config(), known, ask=True)
            verdicts = judged_state(found, settings, leaderless_seconds=LEADERLESS_SECONDS)
        except HarvestError as error:
            verdicts = dict.fromkeys(STATE_CHECKS, unreadable(error))
        for name, verdict in verdicts.items():
            yield named(verdict, name, settings.outbox_key)

    return state
