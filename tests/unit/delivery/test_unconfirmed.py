"""Records that no broker has confirmed, handed over natively: nothing outstanding tells of them, a note does."""

import uuid

import pytest
from support.batches import START
from support.idle_producer import IdleProducer
from support.rows import row

from harvest_lib.delivery import AtLeastOnce, BatchCommitted, BatchDeliverySettings, BatchFailed, Topics
from harvest_lib.native import UNCONFIRMED, error_of

pytestmark = pytest.mark.quick


class FakeSender:
    """The native side of a producer, with what it has noted."""

    def __init__(self, keys=None):
        self.noted, self._keys = [], keys

    def take_failures(self):
        noted, self.noted = self.noted, []
        return noted

    def take_failed_keys(self):
        return self._keys

    note_keys = producer_closed = lambda self: None


class FakeProducer(IdleProducer):
    """Its last record goes while it is asked how many are outstanding."""

    def __init__(self, goes):
        self._goes = goes

    def __len__(self):
        self._goes()
        return 0


def begun(sender, goes):
    settings = BatchDeliverySettings(
        kafka={}, delivery_timeout_seconds=60, expiry_seconds=9, producer_provider=lambda _: FakeProducer(goes)
    )
    delivery = AtLeastOnce(settings, Topics({}))
    delivery._producer._sender = sender
    delivery.begin(uuid.uuid4(), lambda: True)
    delivery.send([row(1, "k")], lambda: True)
    return delivery


def test_one_that_is_noted_as_the_wait_ends_is_not_taken_for_delivered():
    sender = FakeSender(keys={b"k"})
    delivery = begun(sender, lambda: sender.noted.append((error_of(UNCONFIRMED), "t")))
    assert isinstance(delivery.commit(START, lambda: True), BatchFailed)
    assert delivery.abandon().failed_keys is None, "it is not known where it is"


def test_without_one_the_batch_is_committed():
    assert begun(FakeSender(), lambda: None).commit(START, lambda: True) == BatchCommitted()
