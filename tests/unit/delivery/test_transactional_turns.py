"""The two producers of a transactional delivery take turns, over fakes that share one Kafka."""

import uuid
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException
from support.batches import START, FakeBatchDelivery, FakeKafka
from support.rows import row

from harvest_lib.delivery import (
    CHECKPOINT_REFUSED,
    TERM_OVER,
    Abandoned,
    BatchCommitted,
    BatchDeliverySettings,
    BatchFailed,
    BatchFenced,
    CheckpointPlace,
    Topics,
    Transactional,
    TransactionalProducer,
)

pytestmark = pytest.mark.quick


class Part(FakeBatchDelivery):
    """Counts what it is asked for."""

    def __init__(self, kafka):
        super().__init__(kafka)
        self.begun = self.committed = self.abandoned = 0
        self.begins = BatchCommitted()

    def begin(self, leader_id, may_send):
        super().begin(leader_id, may_send)
        self.begun += 1
        return self.begins

    def hand_over(self, rows, may_send):
        return self.send(rows, may_send)

    def commit(self, checkpoint, may_send, /):
        self.committed += 1
        return super().commit(checkpoint, may_send)

    def discard(self):
        self.abandoned += 1


@pytest.fixture
def kafka():
    return FakeKafka()


@pytest.fixture
def parts(kafka):
    return [Part(kafka), Part(kafka)]


@pytest.fixture
def delivery(parts):
    made = Transactional(parts, lambda checkpoint: checkpoint)
    assert made.begin(uuid.uuid4(), always) == BatchCommitted()
    return made


def always():
    return True


def batch(delivery, *ids):
    assert delivery.send([row(each, "k") for each in ids], always) == {}
    return delivery.commit(START, always)


def test_each_batch_is_the_others(delivery, parts, kafka):
    for number in range(5):
        assert batch(delivery, number) == BatchCommitted()
    assert [part.committed for part in parts] == [3, 2]
    assert kafka.ids == [0, 1, 2, 3, 4]


def test_to_begin_is_to_begin_both(delivery, parts):
    """Else one who led before could commit under the other's id what the checkpoint read now does not know."""
    assert [part.begun for part in parts] == [1, 1]
    batch(delivery, 1)
    assert delivery.begin(uuid.uuid4(), always) == BatchCommitted()
    assert [part.begun for part in parts] == [2, 2]


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("outcome", [BatchFenced(reason="r"), BatchFailed(reason="r")])
def test_it_has_not_begun_unless_both_have(parts, failing, outcome):
    parts[failing].begins = outcome
    assert Transactional(parts, lambda checkpoint: checkpoint).begin(uuid.uuid4(), always) == outcome


@pytest.mark.parametrize("most", [0, 1, 2])
def test_one_that_was_frozen_while_it_began_fences_nobody_more(parts, most):
    answers = iter([True] * most + [False])
    outcome = Transactional(parts, lambda checkpoint: checkpoint).begin(uuid.uuid4(), lambda: next(answers))
    assert [part.begun for part in parts] == [most > 0, most > 1]
    assert outcome == (BatchCommitted() if most == 2 else TERM_OVER)


@pytest.mark.parametrize(("answers", "attempts"), [([False], 1), ([True, True, False], 3)])
def test_no_attempt_to_begin_follows_the_end_of_the_term(answers, attempts):
    tried, answers = [], iter(answers)

    class Busy(SimpleNamespace):
        def init_transactions(self, _timeout):
            tried.append(1)
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer", retriable=True))

        def __len__(self):
            return 0

    idle = dict.fromkeys(("purge", "close", "poll", "flush", "abort_transaction"), lambda *_, **__: 0)
    settings = BatchDeliverySettings(
        kafka={}, delivery_timeout_seconds=60, producer_provider=lambda _settings: Busy(**idle)
    )
    place = CheckpointPlace(topic="checkpoints", partition=0, key="default")
    outcome = TransactionalProducer(settings, Topics({}), "an-id", place).begin(uuid.uuid4(), lambda: next(answers))
    assert isinstance(outcome, BatchFailed)
    assert len(tried) == attempts


def test_what_failed_does_not_give_the_turn_away(delivery, parts, kafka):
    kafka.broken = 1
    assert isinstance(batch(delivery, 1), BatchFailed)
    assert batch(delivery, 1) == BatchCommitted()
    assert [part.committed for part in parts] == [2, 0]


def test_both_are_abandoned(delivery, parts):
    for _ in range(2):
        assert delivery.abandon() == Abandoned(), "records on the wire arrive in a transaction that is aborted"
    assert [part.abandoned for part in parts] == [2, 2]


def test_nothing_is_committed_once_the_checkpoint_is_refused(parts, kafka):
    delivery = Transactional(parts, lambda _checkpoint: None)
    assert batch(delivery, 1) == CHECKPOINT_REFUSED
    assert kafka.ids == []
