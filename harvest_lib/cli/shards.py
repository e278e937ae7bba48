"""Formats shards of subscriptions for `harvest subscriptions list` and `harvest status`."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from harvest_lib.cli.tables import Cell
from harvest_lib.cli.terminal import age, counted
from harvest_lib.subscriptions.backlog import Backlog
from harvest_lib.subscriptions.shards import SubscriptionShard
from harvest_lib.subscriptions.starting_points import system_of

HEADER = ("subscription", "shard", "source", "gen.", "epoch", "number", "low watermark", "lag", "updated", "leader")


def shard_json(shard: SubscriptionShard, lag: Backlog) -> dict[str, Any]:
    """Return the JSON object for a shard that `list --json` and `status --json` print."""
    checkpoint = shard.checkpoint
    return {
        **{name: value for name, value in asdict(shard).items() if name != "checkpoint"},
        "system": system_of(checkpoint),
        "number": checkpoint.number if checkpoint is not None else None,
        "kept_in": checkpoint.kept_in if checkpoint is not None else None,
        "updated_at": shard.updated_at.isoformat(),
        "updated_seconds_ago": round(shard.updated_seconds_ago, 3),
        "lag_records": lag.records,
        "lag_is_estimate": lag.is_estimate,
        "oldest_age_seconds": round(lag.oldest_age_seconds, 3) if lag.oldest_age_seconds is not None else None,
    }


def cells(row: dict[str, Any]) -> Sequence[Cell]:
    """Return the table cells, in the order of HEADER, for an object of `shard_json`."""
    only = [*(row["topics"] or ()), *([f"keys {row['keys']}"] if row["keys"] is not None else [])]
    number = "-" if row["number"] is None else str(row["number"])
    low_watermark = row["low_watermark"]
    for name, text in (("system", "@"), ("retention_hold", ", retention hold "), ("until", ", stops at ")):
        low_watermark += "" if row[name] is None else f"{text}{row[name]}"
    lag = lag_text(row["lag_records"], is_estimate=row["lag_is_estimate"])
    waits = "" if row["oldest_age_seconds"] is None else f", {age(row['oldest_age_seconds'])} old"
    leader = "nobody yet" if row["leader_id"] is None else row["leader_id"]
    if row["leader_id"] is not None and not row["is_led"]:
        leader += ", gone"
    return (
        ", ".join([row["name"], *only]),
        f"{row['shard']}/{row['shards']}",
        row["source"],
        str(row["generation"]),
        str(row["epoch"]),
        ("unreadable", "red") if row["checkpoint_trouble"] else number,
        low_watermark,
        f"{lag}{waits}",
        f"{age(row['updated_seconds_ago'])} ago",
        (leader, "none" if row["is_led"] else "yellow"),
    )


def lag_text(records: int, *, is_estimate: bool) -> str:
    return f"{'about ' if is_estimate else ''}{counted(records, 'record')}"
