"""The checkpoints of a history are those that were stored, at the time they were."""

from uuid import uuid4

import pytest

from harvest_lib.checkpoints.stores import IntentStore
from harvest_lib.delivery import BatchCommitted, BatchDeliverySettings, BatchFailed, Sequenced, Topics
from harvest_lib.record.checkpoint import OutboxCheckpoint
from infra.chaos.history.events import CheckpointWrite as Answer
from infra.chaos.recording_clients import recorded

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
        return OutboxCheckpoint(generation=0)

    def save(self, checkpoint):
        return checkpoint.number == 1


class Flushed:
    """A producer whose records are in Kafka at once, in one partition."""

    def flush(self, _may_send):
        return BatchCommitted()

    def take_places(self):
        return [("t", 0)]

    def attempt(self, _call):
        return BatchCommitted()


def test_what_a_batch_has_kept_is_not_told_once_more_as_it_is_saved():
    """A leader that was frozen in between would be said to have stored it after its successor's."""
    recorder, store = Recorder(), IntentStore(Rows(), list)
    settings = BatchDeliverySettings(kafka={}, delivery_timeout_seconds=60)
    delivery = Sequenced(settings, Topics({}), store.save_pending, store.ask_again)
    delivery._producer = Flushed()
    delivery, store = recorded(recorder, delivery, store, 0)
    store.lead(uuid4())
    first = OutboxCheckpoint(generation=0, number=1)
    assert delivery.commit(first, lambda: True) == BatchCommitted()
    assert recorder.reported == [("invoke", 1), ("ok", 1)]
    assert store.save(first)
    assert delivery.settle(lambda: True) == BatchCommitted()
    assert recorder.reported == [("invoke", 1), ("ok", 1)]
    second = OutboxCheckpoint(generation=0, number=2)
    assert isinstance(delivery.commit(second, lambda: True), BatchFailed)
    assert not store.save(second)
    assert recorder.reported[2:] == [("invoke", 2), ("fail", 2), ("invoke", 2), ("fail", 2)]
