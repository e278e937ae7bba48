"""What a harvester tells its event handler: changes of leadership, and its throughput."""

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from harvest_lib.metrics import MeterStats


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAcquired:
    """This process leads: its term is identified by `leader_id`, random and never used again."""

    leader_id: UUID
    shard: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderRefreshed:
    """This process still leads, under a new `leader_id`: a delivery failed, or the outcome of a mark is unknown."""

    leader_id: UUID
    shard: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderRevoked:
    """Leadership was taken back in an orderly way (rebalance, stop)."""

    shard: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderFenced:
    """This process gave leadership up by itself: it could no longer prove that it leads."""

    shard: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterRead:
    """Throughput; comes with a delivery, once `limits.minMetricsInterval` has passed since the one before."""

    stats: MeterStats


Event = LeaderAcquired | LeaderRefreshed | LeaderRevoked | LeaderFenced | MeterRead
EventHandler = Callable[[Event], None]
