"""Limits of a shard: duration of its transactions, messages that it holds, and attempts."""

from dataclasses import dataclass

from harvest_lib.sequencing.sequencer import RING_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLimits:
    """Limits of each shard of a consumer."""

    max_txn_duration_seconds: float = 1.0
    """A transaction ends after this time, although more is ready."""
    min_txn_duration_seconds: float = 0.0
    """A transaction does not end before this time, although nothing is ready."""
    ring: int = 8_192
    """Pending messages that are held; the rest is read again."""
    ring_bytes: int = RING_BYTES
    """Bytes of the values of pending messages that are held; the rest is read again."""
    prune_after_seconds: float = 86_400.0
    """A producer is forgotten if its last message is older than the newest message by this time."""
    max_attempts: int = 5
    """Failures of a message until it is parked; the pauses between grow from 0.05 to 5 s."""
