"""What a history has of checkpoints is what was stored, when it was."""

from types import SimpleNamespace
from uuid import uuid4

from harvest_lib.audit.history import CheckpointWrite as Told
from harvest_lib.checkpoints.stores import IntentStore
from harvest_lib.checkpoints.table import Checkpoint
from harvest_lib.delivery import BatchCommitted
from infra.chaos.recording_clients import RecordedBatches, RecordedStore


class Recorder:
    """Keeps what was told of checkpoints."""

    sending = "a leader"

    def __init__(self):
        self.told = []

    def tell(self, kind, how, **fields):
        if kind is Told:
            self.told.append((how, fields["number"]))


class Rows:
    """`Checkpoints` of a leader that is fenced from the second lap on."""

    def lead(self, _leader_id):
        return Checkpoint(generation=0)

    def save(self, checkpoint):
        return checkpoint.number == 1


def test_what_a_lap_has_kept_is_not_told_once_more_as_it_is_saved():
    """A leader that was frozen in between would be said to have stored it after its successor's."""
    recorder = Recorder()
    store = RecordedStore(recorder, IntentStore(Rows(), list), 0)
    store.lead(uuid4())
    laps = SimpleNamespace(commit=lambda keep, _may_send: BatchCommitted() if keep(()) else None)
    delivery = RecordedBatches(recorder, laps, lambda: store)
    first = Checkpoint(generation=0, number=1)
    delivery.commit(store.offer(first), bool)
    assert recorder.told == [("invoke", 1), ("ok", 1)]
    assert store.save(first)
    assert recorder.told == [("invoke", 1), ("ok", 1)]
    second = Checkpoint(generation=0, number=2)
    delivery.commit(store.offer(second), bool)
    assert not store.save(second)
    assert recorder.told[2:] == [("invoke", 2), ("fail", 2), ("invoke", 2), ("fail", 2)]
