"""Limits of a shard: how long its transactions last, how many messages it holds, how often it tries a message."""

from dataclasses import dataclass

from harvest_lib.sequencing.sequencer import RING_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLimits:
    """Limits of each shard of a consumer."""

    max_txn_duration_seconds: float = 1.0
    """A transaction ends after this time, even if more messages are ready."""
    min_txn_duration_seconds: float = 0.0
    """A transaction does not end before this time, even if no message is ready."""
    ring: int = 8_192
    """Most pending messages in memory. Further pending messages are read again from the log."""
    ring_bytes: int = RING_BYTES
    """Most bytes of the values of pending messages in memory. Further pending messages are read again from the log."""
    prune_after_seconds: float = 86_400.0
    """A producer is forgotten if its last message is older than the log's newest message by more than this time."""
    max_attempts: int = 5
    """Number of failures after which a message is parked. The pauses between attempts grow from 0.05 to 5 s."""
