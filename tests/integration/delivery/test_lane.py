"""One lane on a real broker: its settings and its queue."""

import time
import uuid

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from support.brokers import KINDS, RealBroker, begun, deliver, failed_ids, ids, poll, send
from support.waiting import eventually

from harvest_lib.delivery import Reports, at_least_once

pytestmark = pytest.mark.full


@pytest.fixture
def kafka(bootstrap_servers, make_topic):
    broker = RealBroker(bootstrap_servers, make_topic())
    yield broker
    broker.close()


def test_the_header_says_whose_term_a_record_was_sent_in(kafka):
    delivery, terms = kafka.delivery(), [uuid.uuid4(), uuid.uuid4()]
    for number, term in enumerate(terms, 1):
        delivery.begin(term)
        send(delivery, kafka.row(number))
    poll(delivery, 2)
    assert [(record.outbox_id, record.leader_id) for record in kafka.arrived()] == list(enumerate(terms, 1))


def test_to_send_after_it_was_abandoned_takes_a_new_beginning(kafka):
    delivery = begun(kafka.delivery())
    delivery.abandon()
    with pytest.raises(RuntimeError, match="before begin"):
        send(delivery, kafka.row(1))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_full_queue_is_waited_out_without_loss_or_repetition(kafka, kind, bootstrap_servers):
    lane = RealBroker(bootstrap_servers, kafka.topic, *kind)
    delivery = begun(lane.delivery(**{"queue.buffering.max.messages": 10}))
    rows = [kafka.row(number) for number in range(1, 201)]
    assert deliver(delivery, *rows) == []
    assert [record.outbox_id for record in kafka.arrived()] == ids(rows)
    lane.close()


@pytest.mark.parametrize("send_buffer", [0, 5])
def test_the_send_buffer_bounds_what_waits_for_a_full_producer(kafka, send_buffer):
    """Records beyond it stay with the loop."""
    delivery = begun(kafka.delivery(held=True, send_buffer=send_buffer, **{"queue.buffering.max.messages": 10}))
    rows = [kafka.row(number) for number in range(1, 21)]
    assert ids(send(delivery, *rows)) == list(range(11 + send_buffer, 21))
    assert len(delivery.abandon().failed) == 10 + send_buffer
    assert kafka.arrived() == []


@pytest.mark.parametrize(
    "settings",
    [
        {"enable.idempotence": False, "acks": "1"},
        {"enable.idempotence": "false", "acks": 0, "allow.auto.create.topics": True, "message.timeout.ms": 0},
    ],
)
def test_settings_that_promises_rest_on_cannot_be_overridden(kafka, settings):
    used = {}
    delivery = begun(
        kafka.delivery(timeout_seconds=7.0, provider=lambda given: used.update(given) or Producer(given), **settings)
    )
    send(delivery, kafka.row(1))
    assert poll(delivery, 1).acknowledged == [1]
    rests_on = {name: used[name] for name in ("acks", "enable.idempotence", "allow.auto.create.topics")}
    assert rests_on == {"acks": "all", "enable.idempotence": True, "allow.auto.create.topics": False}
    assert used["message.timeout.ms"] == 7_000


def test_the_other_settings_are_the_users(kafka):
    """Seen in what librdkafka says of itself."""
    said = []
    delivery = begun(
        kafka.delivery(**{"client.id": "mine", "acks": "1", "statistics.interval.ms": 50, "stats_cb": said.append})
    )
    eventually(lambda: delivery.poll(0.05) == Reports() and said, "statistics")
    assert '"client_id":"mine"' in said[-1].replace(" ", "")
    assert '"idemp_state"' in said[-1], "it is idempotent, which librdkafka refuses to be with less than acks=all"


class Fatal:
    """A producer that librdkafka has given up on."""

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
    delivery._producer.close()
    delivery._producer = fatal = Fatal()
    send(delivery, kafka.row(1))
    assert failed_ids(delivery.poll(0)) == [1]
    delivery.begin(uuid.uuid4())
    assert fatal.purged
    send(delivery, kafka.row(1))
    assert poll(delivery, 1).acknowledged == [1]
    delivery.close()


@pytest.fixture
def strict(bootstrap_servers, make_topic):
    """A topic that refuses the late."""
    broker = RealBroker(bootstrap_servers, make_topic(**{"message.timestamp.before.max.ms": 2_000}))
    yield broker
    broker.close()


def test_what_was_let_through_before_a_freeze_and_leaves_after_it_is_refused_by_the_topic(strict, monkeypatch):
    """The clock jumps inside the check, as it does for a process that is frozen right there; the record then leaves."""
    delivery = begun(strict.delivery())
    now = [time.time() - 5.0]
    monkeypatch.setattr(at_least_once.time, "time", lambda: now[0])

    def may_send():
        now[0] += 5.0
        return True

    send(delivery, strict.row(1), may_send=may_send)
    reports = poll(delivery, 1)
    assert failed_ids(reports) == [1]
    assert "timestamp" in reports.failed[0].reason.lower()
    monkeypatch.undo()
    send(delivery, strict.row(2))
    assert poll(delivery, 1).acknowledged == [2]
    assert [record.outbox_id for record in strict.arrived()] == [2]
