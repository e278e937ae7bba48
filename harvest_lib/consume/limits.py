"""How long the transactions of a shard are, how much it holds, and how often it tries."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLimits:
    """Of each shard of a consumer."""

    max_txn_duration_seconds: float = 1.0
    """A transaction ends after so long, although more is ready."""
    min_txn_duration_seconds: float = 0.0
    """Before, it does not end, although nothing is ready."""
    ring: int = 8_192
    """How many pending messages are held; what does not fit is read again."""
    prune_after_seconds: float = 86_400.0
    """A producer is forgotten of which nothing was seen for so long before the newest message."""
    max_attempts: int = 5
    """How often a message may fail before it is parked; the pauses between grow from 0.05 to 5 s."""
