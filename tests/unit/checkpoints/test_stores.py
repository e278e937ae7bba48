"""Progress of a delivery without transactions counts more than an earlier checkpoint in Kafka."""

from uuid import uuid4

import pytest

from harvest_lib.checkpoints.choice import CheckpointChoice
from harvest_lib.checkpoints.stores import PostgresCheckpointStore
from harvest_lib.record.checkpoint import OutboxCheckpoint

pytestmark = pytest.mark.quick


class Mirror:
    """`Checkpoints` of a leader that died before it had mirrored its last ones."""

    def lead(self, _leader_id, _after_epoch=None):
        return OutboxCheckpoint(generation=0, number=7, position={"at": 7}, kept_in="kafka")

    def require(self, _checkpoint):
        pass


def test_kafka_s_last_checkpoint_is_passed_by_the_first_batch_without_transactions():
    store = PostgresCheckpointStore(Mirror(), None)
    store.lead(uuid4())
    begun = store.load()
    assert begun.position == {"at": 7}
    batch = OutboxCheckpoint(generation=0, number=begun.number + 1, position={"at": 500})
    in_kafka = {
        **OutboxCheckpoint(generation=0, number=10, position={"at": 10}, kept_in="kafka").as_json(),
        "outbox": "o",
    }
    assert CheckpointChoice(mirror=batch, place="here", outbox="o").newest(in_kafka) == batch
