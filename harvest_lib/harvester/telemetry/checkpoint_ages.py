"""Ages of checkpoints in Postgres, over samples: a new term also writes a shard's row, without a new checkpoint."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from harvest_lib.subscriptions.shards import SubscriptionShard
from harvest_lib.telemetry.counts import Labels


class CheckpointAges:
    """Ages by subscription and shard. Used by a single thread."""

    def __init__(self) -> None:
        self._seen: dict[Labels, tuple[tuple[int, int], datetime]] = {}

    def of(self, shards: Sequence[SubscriptionShard]) -> Mapping[Labels, float]:
        """Return the seconds since each checkpoint was written, by the database's clock. A row that was written since
        the last sample counts if its checkpoint differs. Shards without a checkpoint are left out."""
        before, self._seen = self._seen, {}
        ages: dict[Labels, float] = {}
        for shard in shards:
            if shard.checkpoint is None:
                continue
            place, kept = (shard.name, str(shard.shard)), (shard.generation, shard.checkpoint.number)
            earlier, written_at = before.get(place, (None, shard.updated_at))
            self._seen[place] = kept, written_at if earlier == kept else shard.updated_at
            ages[place] = shard.updated_seconds_ago + (shard.updated_at - self._seen[place][1]).total_seconds()
        return ages
