"""The present state of an outbox: its backlog, its parked records and its leaders, and the verdicts on them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg
import psycopg

from dagster_harvest.checks import Verdict, judged_backlog, unreadable
from dagster_harvest.commands import harvest_command
from dagster_harvest.leading import Leader
from dagster_harvest.settings import OutboxSettings
from harvest_lib.cli.terminal import counted
from harvest_lib.config import HarvestConfig
from harvest_lib.errors import HarvestError
from harvest_lib.harvester.status import StatusReader
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.parking import ParkedSummary
from harvest_lib.outbox.row_security import check_all_rows
from harvest_lib.source.parked import parked_table
from harvest_lib.subscriptions.backlog import Backlog

STATE_CHECKS = ("backlog_age", "backlog_size", "parked", "leader")
LEADERLESS_SECONDS = 60.0
"""The time without a leader from which the check `leader` fails."""

_ERROR = dg.AssetCheckSeverity.ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxState:
    """The state of an outbox. `parked` is the error if the parked records could not be read. `leaders` has an element
    for each shard, None for a shard without a known leader; it is empty if no leader can be known. `notes` are reasons
    for a missing leader. `delivered` has a meaning only in comparison with another state of the same outbox."""

    waiting: Backlog
    parked: ParkedSummary | HarvestError
    leaders: Sequence[Leader | None]
    notes: Sequence[str]
    delivered: int

    @property
    def leader(self) -> str:
        """The leaders of all shards as a text."""
        return ", ".join(each.process if each is not None else "nobody" for each in self.leaders) or "unknown"


def read_state(
    connection: psycopg.Connection[Any],
    config: HarvestConfig,
    known: Mapping[int, Leader] | None,
    *,
    ask: bool,
    waiting: Backlog | None = None,
) -> OutboxState:
    """Read the state of an outbox, and its backlog unless it is given as `waiting`.

    `known` are the leaders that runs have reported, None if the harvester runs outside Dagster. If another shard has no
    leader and `ask` is true, query the election, which may be in Kafka. Raises HarvestError.
    """
    status = StatusReader(connection, config)
    leaders = [(known or {}).get(shard) for shard in range(config.shards)]
    notes: list[str] = []
    if None in leaders and ask:
        found = status.leaders()
        elected = [Leader(process=name) if name is not None else None for name in found.by_shard]
        leaders = [led or other for led, other in zip(leaders, elected, strict=True)]
        notes = [*([found.trouble] if found.trouble else []), *found.notes]
        if known is None and leaders == [None] and config.leadership == "solo" and not status.shards():
            leaders, notes = [], ["`leadership: solo` stores no leader of a table that is marked"]
    return OutboxState(
        waiting=status.waiting() if waiting is None else waiting,
        parked=_parked(connection, config),
        leaders=leaders,
        notes=notes,
        delivered=status.delivered(),
    )


def _parked(connection: psycopg.Connection[Any], config: HarvestConfig) -> ParkedSummary | HarvestError:
    try:
        parked = parked_table(connection, OutboxTable.parse(config.outbox_table), config)
        check_all_rows(connection, [parked.table.identifier])  # hidden parked rows would be no parked rows
        return parked.summary(connection)
    except HarvestError as error:
        return error


def judged_state(state: OutboxState, settings: OutboxSettings, *, leaderless_seconds: float) -> dict[str, Verdict]:
    """Return the verdict of each check in STATE_CHECKS. `leaderless_seconds` is the time since every shard had a
    leader."""
    age, size = judged_backlog(state.waiting, settings.thresholds)
    parked = unreadable(state.parked) if isinstance(state.parked, HarvestError) else judged_parked(state.parked)
    # Between two drains no process leads.
    leaders = () if settings.daemon.mode == "drain" else state.leaders
    verdicts = (age, size, parked, judged_leader(leaders, state.notes, leaderless_seconds))
    steps = _next_steps(settings)
    return {
        name: each if each.passed or "next_step" in each.metadata else _with_step(each, steps[name])
        for name, each in zip(STATE_CHECKS, verdicts, strict=True)
    }


def _next_steps(settings: OutboxSettings) -> dict[str, str]:
    status = f"{harvest_command(settings, 'status')} shows the leader, the rate and the reason"
    listed, retry = (harvest_command(settings, f"park {words}") for words in ("list", "retry --all"))
    return {
        "backlog_age": f"{status}; the log of the daemon has its errors",
        "backlog_size": f"{status}; more `shards` deliver more records in a second",
        "parked": f"{listed} shows each record; after the cause is corrected, {retry} sends them again",
        "leader": f"{status}; {harvest_command(settings, 'check')} finds what prevents a start",
    }


def _with_step(verdict: Verdict, step: str) -> Verdict:
    return verdict._replace(metadata={**verdict.metadata, "next_step": dg.MetadataValue.text(step)})


def judged_parked(parked: ParkedSummary) -> Verdict:
    """Fail if a record is parked: Kafka rejected it, and later records of its key wait behind it."""
    metadata: dict[str, Any] = {"value": float(parked.parked + parked.held)}
    metadata |= {"parked": parked.parked, "held": parked.held}
    if not parked.parked:
        return Verdict(passed=True, severity=_ERROR, description="no record is parked", metadata=metadata)
    topics, reasons = ", ".join(parked.topics), "; ".join(parked.reasons)
    metadata |= {
        "topics": topics,
        "first_ids": ", ".join(map(str, parked.ids)),
        "reasons": reasons,
        "oldest_seconds": round(parked.oldest_age_seconds),
    }
    about = "at least " if parked.is_estimate else ""
    held = f", with {counted(parked.held, 'record')} held behind" if parked.held else ""
    text = f"{about}{counted(parked.parked, 'record')} of {topics} cannot be sent{held}: {reasons}"
    return Verdict(passed=False, severity=_ERROR, description=text, metadata=metadata)


def judged_leader(leaders: Sequence[Leader | None], notes: Sequence[str], leaderless_seconds: float) -> Verdict:
    """Fail if a shard has had no known leader for 60 seconds."""
    missing = [shard for shard, each in enumerate(leaders) if each is None]
    led = {each.process: each for each in leaders if each is not None}
    leader = ", ".join(led) or ("nobody" if missing else "unknown")
    metadata: dict[str, Any] = {"value": float(len(missing)), "leader": leader}
    if since := [each.since for each in led.values() if each.since is not None]:
        metadata["leads_since"] = dg.MetadataValue.timestamp(max(since))
    if notes:
        metadata["notes"] = "; ".join(notes)
    if not missing:
        return Verdict(passed=True, severity=_ERROR, description=f"leader: {leader}", metadata=metadata)
    shards = f"shard {', '.join(map(str, missing))} has" if len(leaders) > 1 else "the outbox has"
    why = f": {metadata['notes']}" if notes else ""
    return Verdict(
        passed=leaderless_seconds < LEADERLESS_SECONDS,
        severity=_ERROR,
        description=f"{shards} had no known leader for {leaderless_seconds:.0f} s{why}",
        metadata=metadata,
    )
