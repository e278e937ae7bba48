"""Batches on a real broker: the settings of their producer, and its queue."""

import time
import uuid

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from support.batches import START
from support.brokers import RealBroker, always, begun, deliver, ids
from support.waiting import eventually

from harvest_lib.delivery import BatchCommitted, BatchFailed, producer

pytestmark = pytest.mark.full


def test_the_header_says_whose_term_a_record_was_sent_in(kafka):
    delivery, terms = kafka.delivery(), [uuid.uuid4(), uuid.uuid4()]
    for number, term in enumerate(terms, 1):
        delivery.begin(term, always)
        deliver(delivery, kafka.row(number))
    assert [(record.outbox_id, record.leader_id) for record in kafka.arrived()] == list(enumerate(terms, 1))


@pytest.mark.parametrize("expiry_seconds", [None, 600.0], ids=["pipelined", "barrier"])
def test_a_full_queue_is_waited_out_without_loss_or_repetition(kafka, bootstrap_servers, expiry_seconds):
    broker = RealBroker(bootstrap_servers, kafka.topic, expiry_seconds)
    delivery = begun(broker.delivery(**{"queue.buffering.max.messages": 10}))
    rows = [kafka.row(number) for number in range(1, 201)]
    assert deliver(delivery, *rows) == BatchCommitted()
    assert [record.outbox_id for record in kafka.arrived()] == ids(rows)
    broker.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"enable.idempotence": False, "acks": "1"},
        {"enable.idempotence": "false", "acks": 0, "allow.auto.create.topics": True, "message.timeout.ms": 0},
    ],
)
@pytest.mark.parametrize("expiry_seconds", [None, 7.0], ids=["pipelined", "barrier"])
def test_settings_that_promises_rest_on_cannot_be_overridden(kafka, bootstrap_servers, settings, expiry_seconds):
    used = {}
    broker = RealBroker(bootstrap_servers, kafka.topic, expiry_seconds)
    delivery = begun(broker.delivery(provider=lambda given: used.update(given) or Producer(given), **settings))
    assert deliver(delivery, kafka.row(1)) == BatchCommitted()
    rests_on = {name: used[name] for name in ("acks", "enable.idempotence", "allow.auto.create.topics")}
    assert rests_on == {"acks": "all", "enable.idempotence": True, "allow.auto.create.topics": False}
    assert used["message.timeout.ms"] == (7_000 if expiry_seconds else 0)
    assert used.get("enable.gapless.guarantee", False) is (expiry_seconds is None)
    broker.close()


def test_the_other_settings_are_the_users(kafka):
    """Seen in what librdkafka says of itself."""
    said = []
    delivery = begun(
        kafka.delivery(**{"client.id": "mine", "acks": "1", "statistics.interval.ms": 50, "stats_cb": said.append})
    )
    number = iter(range(1, 10_000))
    eventually(lambda: deliver(delivery, kafka.row(next(number))) == BatchCommitted() and said, "statistics")
    assert '"client_id":"mine"' in said[-1].replace(" ", "")
    assert '"idemp_state"' in said[-1], "it is idempotent, which librdkafka refuses to be with less than acks=all"


class Fatal:
    """A producer that librdkafka has given up on."""

    def __len__(self):
        return 0

    def produce(self, *_, **__):
        raise KafkaException(KafkaError(KafkaError._FATAL, "fenced", fatal=True))

    def purge(self, **_):
        self.purged = True

    def flush(self, _seconds):
        return 0

    def close(self):
        return True

    def poll(self, _seconds):
        return 0


def test_a_producer_with_a_fatal_error_is_replaced(kafka):
    """It never sends again: kept, it would fail every record of a leader that goes on leading."""
    delivery = begun(kafka.delivery())
    delivery._producer._client.close()
    delivery._producer._client, delivery._producer._sender = fatal, _ = Fatal(), None
    assert isinstance(deliver(delivery, kafka.row(1)), BatchFailed)
    delivery.begin(uuid.uuid4(), always)
    assert fatal.purged
    assert deliver(delivery, kafka.row(1)) == BatchCommitted()


@pytest.fixture
def strict(bootstrap_servers, make_topic):
    """A topic that rejects late records, under the key barrier."""
    broker = RealBroker(bootstrap_servers, make_topic(**{"message.timestamp.before.max.ms": 2_000}), 600.0)
    yield broker
    broker.close()


def test_what_was_let_through_before_a_freeze_and_leaves_after_it_is_refused_by_the_topic(strict, monkeypatch):
    """The clock jumps inside the check, as it does for a process that is frozen right there; the record then leaves."""
    delivery = begun(strict.delivery())
    now = [time.time() - 10.0]  # it is asked once before the record's own time is taken
    monkeypatch.setattr(producer.time, "time", lambda: now[0])

    def may_send():
        now[0] += 5.0
        return True

    delivery.send([strict.row(1)], may_send)
    outcome = delivery.commit(START, always)
    assert isinstance(outcome, BatchFailed)
    assert "timestamp" in outcome.reason.lower()
    monkeypatch.undo()
    delivery.begin(uuid.uuid4(), always)
    assert deliver(delivery, strict.row(2)) == BatchCommitted()
    assert [record.outbox_id for record in strict.arrived()] == [2]
