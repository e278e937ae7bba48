"""The checkpoints of a history are those that were stored, at the time they were."""

from uuid import uuid4

import pytest

from harvest_lib.batching.guarantees import SequencedBatches
from harvest_lib.checkpoints.stores import IntentStore
from harvest_lib.checkpoints.table import Checkpoint
from harvest_lib.delivery import BatchCommitted, BatchFailed
from harvest_lib.sequencing.publisher import Intent
from infra.chaos.history.events import CheckpointWrite as Answer
from infra.chaos.recording_clients import RecordedBatches

pytestmark = pytest.mark.quick


class Recorder:
    """Keeps the reports of checkpoints."""

    sending = "a leader"

    def __init__(self):
        self.reported = []

    def tell(self, kind, how, **fields):
        if kind is Answer:
            self.reported.append((how, fields["number"]))


class Rows:
    """`Checkpoints` of a leader that is fenced from the second batch on."""

    def lead(self, _leader_id, _after_epoch=None):
        return Checkpoint(generation=0)

    def save(self, checkpoint):
        return checkpoint.number == 1


class Flushed:
    """A delivery of which everything is in Kafka at once, with one acknowledgement."""

    send = abandon = None

    def flush(self, _may_send):
        return BatchCommitted()

    def take_intents(self):
        return [Intent(topic="t", partition=0, id=b"0")]

    def acknowledge(self, _intents):
        return BatchCommitted()


def test_what_a_batch_has_kept_is_not_told_once_more_as_it_is_saved():
    """A leader that was frozen in between would be said to have stored it after its successor's."""
    recorder = Recorder()
    guarantee = SequencedBatches(Flushed(), IntentStore(Rows(), list))
    recorded = RecordedBatches(recorder, guarantee, 0)
    recorded.store.lead(uuid4())
    first = Checkpoint(generation=0, number=1)
    assert recorded.commit(first, lambda: True) == BatchCommitted()
    assert recorder.reported == [("invoke", 1), ("ok", 1)]
    assert recorded.store.save(first)
    assert recorded.settle(lambda: True) == BatchCommitted()
    assert recorder.reported == [("invoke", 1), ("ok", 1)]
    second = Checkpoint(generation=0, number=2)
    assert isinstance(recorded.commit(second, lambda: True), BatchFailed)
    assert not recorded.store.save(second)
    assert recorder.reported[2:] == [("invoke", 2), ("fail", 2), ("invoke", 2), ("fail", 2)]
