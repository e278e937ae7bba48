"""The age of a checkpoint is the time since it was written, whatever else writes to its row."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from harvest_lib.harvester.telemetry.sampler import CheckpointAges
from harvest_lib.record.checkpoint import OutboxCheckpoint
from harvest_lib.subscriptions.shards import SubscriptionShard

pytestmark = pytest.mark.quick

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SHARD = SubscriptionShard(
    name="default",
    shard=1,
    shards=2,
    source="snapshot",
    generation=3,
    epoch=5,
    leader_id=None,
    is_led=True,
    topics=None,
    keys=None,
    low_watermark="1:1:",
    retention_hold=None,
    until=None,
    checkpoint=OutboxCheckpoint(generation=3, number=7),
    updated_at=NOON,
    updated_seconds_ago=10.0,
)


def written(shard, *, ago, **change):
    """Return a shard whose row was written again, so many seconds before the sample at 12:01."""
    return replace(shard, updated_at=NOON + timedelta(seconds=60 - ago), updated_seconds_ago=ago, **change)


def test_a_term_that_begins_makes_no_checkpoint_younger():
    ages = CheckpointAges()
    assert ages.of([SHARD]) == {("default", "1"): 10.0}
    assert ages.of([written(SHARD, ago=2.0, epoch=6)]) == {("default", "1"): 60.0}
    assert ages.of([written(SHARD, ago=1.0, epoch=7)]) == {("default", "1"): 60.0}


@pytest.mark.parametrize(
    "change",
    [{"checkpoint": OutboxCheckpoint(generation=3, number=8)}, {"generation": 4}],
    ids=["it is another one", "the subscription was rewound"],
)
def test_a_checkpoint_that_is_written_is_as_old_as_that(change):
    ages = CheckpointAges()
    ages.of([SHARD])
    assert ages.of([written(SHARD, ago=2.0, **change)]) == {("default", "1"): 2.0}


def test_a_shard_without_a_checkpoint_has_no_age_and_is_forgotten():
    ages = CheckpointAges()
    ages.of([SHARD])
    assert ages.of([replace(SHARD, checkpoint=None)]) == {}
    assert ages.of([written(SHARD, ago=2.0)]) == {("default", "1"): 2.0}
