"""Outbox harvester: moves a transactional outbox from Postgres to Kafka, in per-key order, losing nothing.

Start at `Harvest`, configured by `HarvestConfig`; write with `append`.
"""

from harvest_lib.config import HarvestConfig, Limits
from harvest_lib.errors import HarvestError
from harvest_lib.events import Event, LeaderAcquired, LeaderFenced, LeaderRefreshed, LeaderRevoked, MeterRead
from harvest_lib.harvester.harvest import Drained, Harvest, State
from harvest_lib.outbox import append, append_async
from harvest_lib.record import OutboxRecord, RecordLimits

__all__ = [
    "Drained",
    "Event",
    "Harvest",
    "HarvestConfig",
    "HarvestError",
    "LeaderAcquired",
    "LeaderFenced",
    "LeaderRefreshed",
    "LeaderRevoked",
    "Limits",
    "MeterRead",
    "OutboxRecord",
    "RecordLimits",
    "State",
    "append",
    "append_async",
]
