"""Blame of a delivery in batches for a failure: a topic of the batch only where a record of the batch failed."""

import uuid
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException
from support.idle_producer import IdleProducer
from support.rows import row

from harvest_lib.delivery import AtLeastOnce, BatchDeliverySettings, BatchFailed, Topics
from harvest_lib.delivery.transactional import CheckpointPlace, Transactional, TransactionalProducer

pytestmark = pytest.mark.quick

PLACE = CheckpointPlace(topic="checkpoints", partition=0, key="shard 0")
PURGED = KafkaError._PURGE_QUEUE
DENIED = KafkaError.TOPIC_AUTHORIZATION_FAILED


class FakeProducer(IdleProducer):
    """A producer that reports what it was given when it is flushed; `made` says which topics fail."""

    def __init__(self, settings, made):
        self._on_delivery, self._made = settings["on_delivery"], made
        self._queue = []

    def produce(self, topic, _value, _key, _partition, *, on_delivery=None, **_):
        self._queue.append((topic, on_delivery or self._on_delivery))

    def flush(self, _timeout):
        queue, self._queue = self._queue, []
        for topic, report in queue:
            error = KafkaError(self._made.fails[topic]) if topic in self._made.fails else None
            report(error, SimpleNamespace(topic=lambda topic=topic: topic, partition=lambda: 0))
        return 0

    def commit_transaction(self, _timeout):
        if self._made.why is not None:
            raise KafkaException(KafkaError(self._made.why))

    def init_transactions(self, _timeout):
        pass

    begin_transaction = lambda self: None  # noqa: E731 - does nothing

    def __len__(self):
        return len(self._queue)


class Made:
    """A delivery whose producers fail records by `fails`, topic -> code, and commits with `why`, if it is set."""

    def __init__(self, *, is_transactional=True):
        self.fails, self.why = {}, None
        self.topics = Topics({})
        settings = BatchDeliverySettings(
            kafka={}, delivery_timeout_seconds=600, producer_provider=lambda own: FakeProducer(own, self)
        )
        if is_transactional:
            producer = TransactionalProducer(settings, self.topics, "id", PLACE)
            self.delivery = Transactional([producer], lambda checkpoint: checkpoint)
        else:
            self.delivery = AtLeastOnce(settings, self.topics)

    def batch(self):
        self.delivery.begin(uuid.uuid4(), lambda: True)
        self.delivery.send([row(1, "k", topic="theirs")], lambda: True)
        return self.delivery.commit(b"checkpoint", lambda: True)


@pytest.mark.parametrize("code", [KafkaError._MSG_TIMED_OUT, KafkaError.NOT_ENOUGH_REPLICAS, KafkaError._FAIL])
def test_no_record_is_blamed_for_a_checkpoint_that_failed(code):
    made = Made()
    made.fails = {"checkpoints": code}
    outcome = made.batch()
    assert isinstance(outcome, BatchFailed)
    assert not outcome.unnamed
    assert not outcome.refused
    assert not made.topics.in_trouble


def test_no_record_is_blamed_for_a_commit_that_failed():
    made = Made()
    made.why = KafkaError._TIMED_OUT
    outcome = made.batch()
    assert isinstance(outcome, BatchFailed)
    assert not outcome.unnamed


def test_no_record_is_blamed_for_a_checkpoint_topic_that_has_the_transaction_purged():
    """If both are purged the fault may be either's; the next time they go one after the other."""
    made = Made()
    made.fails, made.why = {"checkpoints": PURGED, "theirs": PURGED}, DENIED
    first = made.batch()
    made.fails = {"checkpoints": PURGED}
    second = made.batch()
    assert isinstance(first, BatchFailed)
    assert isinstance(second, BatchFailed)
    assert not first.unnamed
    assert not second.unnamed


def test_a_record_that_has_the_transaction_purged_is_found_out():
    made = Made()
    made.fails, made.why = {"checkpoints": PURGED, "theirs": PURGED}, DENIED
    made.batch()
    outcome = made.batch()
    assert isinstance(outcome, BatchFailed)
    assert outcome.unnamed


def test_what_failed_by_name_is_over_once_a_record_is_taken():
    made = Made(is_transactional=False)
    made.fails = {"theirs": KafkaError.NOT_ENOUGH_REPLICAS}
    outcome = made.batch()
    assert isinstance(outcome, BatchFailed)
    assert not outcome.unnamed
    assert made.topics.in_trouble
    made.fails = {}
    made.batch()
    assert not made.topics.in_trouble


def test_a_record_that_expired_may_have_been_on_the_wire():
    """I4: sent again at once, its key could step back."""
    made = Made(is_transactional=False)
    made.fails = {"theirs": KafkaError._MSG_TIMED_OUT}
    made.batch()
    assert made.delivery.abandon().may_arrive
    made.fails = {}
    made.batch()
    assert not made.delivery.abandon().may_arrive
