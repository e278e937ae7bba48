"""JSON of stored checkpoints, the error for an unreadable checkpoint, and the command that replaces a checkpoint."""

import json
from collections.abc import Mapping
from typing import Any

from harvest_lib.errors import CheckpointError
from harvest_lib.record.checkpoint import OutboxCheckpoint


def compact(value: Any) -> str:
    """Return `value` as JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))


def read_checkpoint(saved: Mapping[str, Any], subscription: str, shard: int) -> OutboxCheckpoint:
    """Parse the checkpoint of a subscription's row. Raises CheckpointError if it is not a valid checkpoint."""
    try:
        return OutboxCheckpoint.of_json(saved)
    except (ValueError, AttributeError) as error:
        raise unreadable(subscription, shard, str(error)) from error


def unreadable(subscription: str, shard: int, why: str) -> CheckpointError:
    """Return the error for a row with an invalid checkpoint."""
    return CheckpointError(
        f"the checkpoint of the subscription {subscription!r}, shard {shard}, in Postgres cannot be read",
        evidence=why,
        next_step=begin_anew(subscription),
    )


def begin_anew(subscription: str, mirror: OutboxCheckpoint | None = None) -> str:
    """Return the command that gives a subscription a new checkpoint: from its mirror in Postgres if the mirror has a
    position, else from a starting point."""
    to = "mirror" if mirror is not None and mirror.position is not None else "beginning|now|SNAPSHOT"
    return f"`harvest subscriptions rewind {subscription} --to {to}`"
