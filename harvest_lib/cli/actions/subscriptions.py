"""Output of `harvest subscriptions`, and its connection to the table of subscriptions."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from rich.table import Table
from rich.text import Text

from harvest_lib.cli.actions.outbox import open_outbox
from harvest_lib.cli.actions.tables import print_table
from harvest_lib.cli.terminal import age, printable
from harvest_lib.config import HarvestConfig
from harvest_lib.harvester.factory import make_selection
from harvest_lib.outbox import create_beside
from harvest_lib.subscriptions.admin import Moved, Subscriptions, SubscriptionShard, unreadable_note
from harvest_lib.subscriptions.lag import Lag
from harvest_lib.subscriptions.starting_points import system_of


def shard_json(shard: SubscriptionShard, lag: Lag) -> dict[str, Any]:
    """Return a shard as `list --json` and `status --json` print it."""
    fields = {name: value for name, value in asdict(shard).items() if name != "checkpoint"}
    return {
        **fields,
        "system": system_of(shard.checkpoint),
        "number": shard.checkpoint.number if shard.checkpoint is not None else None,
        "kept_in": shard.checkpoint.kept_in if shard.checkpoint is not None else None,
        "updated_at": shard.updated_at.isoformat(),
        "updated_seconds_ago": round(shard.updated_seconds_ago, 3),
        "lag_records": lag.records,
        "lag_is_estimate": lag.is_estimate,
        "oldest_age_seconds": round(lag.oldest_age_seconds, 3) if lag.oldest_age_seconds is not None else None,
    }


def show_shards(found: Sequence[tuple[SubscriptionShard, Lag]]) -> None:
    table = Table("subscription", "shard", "source", "gen.", "epoch", "number", "seen", "lag", "updated", "leader")
    for shard, lag in found:
        only = [*(shard.topics or ()), *([f"keys {shard.keys}"] if shard.keys is not None else [])]
        system = system_of(shard.checkpoint)
        seen = f"{shard.seen}@{system}" if system is not None else shard.seen
        seen = seen if shard.holds is None else f"{seen}, holds {shard.holds}"
        waits = f", {age(lag.oldest_age_seconds)} old" if lag.oldest_age_seconds is not None else ""
        leader = (
            "nobody yet" if shard.leader_id is None else shard.leader_id if shard.is_led else f"{shard.leader_id}, gone"
        )
        table.add_row(
            Text(printable(", ".join([shard.name, *only]))),
            f"{shard.shard}/{shard.shards}",
            shard.source,
            str(shard.generation),
            str(shard.epoch),
            _number(shard),
            seen if shard.until is None else f"{seen}, stops at {shard.until}",
            f"{lag_text([lag])}{waits}",
            f"{age(shard.updated_seconds_ago)} ago",
            Text(leader, "none" if shard.is_led else "yellow"),
        )
    print_table(table)


def _number(shard: SubscriptionShard) -> Text:
    if shard.checkpoint_trouble:
        return Text("unreadable", "red")
    return Text(str(shard.checkpoint.number) if shard.checkpoint is not None else "-")


def show_unreadable(shards: Sequence[SubscriptionShard]) -> None:
    """Warn of each checkpoint that cannot be read, with its fix."""
    for each in shards:
        if each.checkpoint_trouble:
            typer.echo(f"warning: {printable(unreadable_note(each))}", err=True)


@contextmanager
def open_subscriptions(config: Path | None) -> Iterator[tuple[Subscriptions, HarvestConfig]]:
    """Open the subscriptions of the configured outbox. Create their table if it is missing."""
    with open_outbox(config) as (harvest, outbox, connection):
        if harvest.columns is None:
            outbox.check_native(connection)
        create_beside(connection, outbox)
        yield Subscriptions(connection, outbox.placed(connection), make_selection(harvest, outbox)), harvest


def lag_text(lags: Sequence[Lag]) -> str:
    number = sum(each.records for each in lags)
    more = "+" if any(each.is_estimate for each in lags) else ""
    return f"{number:,}{more} {'record' if number == 1 and not more else 'records'}"


def show_warnings(moved: Moved) -> None:
    for warning in moved.warnings:
        typer.echo(f"warning: {warning}", err=True)
