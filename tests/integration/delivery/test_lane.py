"""One lane on a real broker: its settings, its queue, and what it does while the broker is away."""

import time
import uuid
from collections import Counter

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from support.brokers import KINDS, RealBroker, begun, deliver, failed_ids, ids, poll, send
from support.waiting import eventually

from harvest_lib.delivery import Reports, at_least_once


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


@pytest.fixture
def frozen(stack):
    """Freeze the broker; it is thawed at the end, or earlier."""
    stack.kafka.suspend()
    try:
        yield stack.kafka
    finally:
        stack.kafka.resume()


@pytest.fixture
def connected(kafka):
    """A delivery that has one request on the wire at a time, each of one record, and has sent record 1."""
    delivery = begun(
        kafka.delivery(timeout_seconds=1.0, **{"max.in.flight": 1, "batch.num.messages": 1, "linger.ms": 0})
    )
    # A broker just started may take longer than that to take the first one.
    eventually(lambda: send(delivery, kafka.row(1)) or poll(delivery, 1).acknowledged == [1], "connected")
    return delivery


def test_what_waits_longer_than_the_delivery_timeout_fails_and_never_leaves(connected, kafka, frozen):
    """A process that was frozen until another was elected must find its queue expired.

    Record 2 is on the wire before the broker notices that it is frozen: it may arrive, as every failed record may, and
    may even be acknowledged.
    """
    send(connected, *[kafka.row(number) for number in range(2, 52)])
    began = time.monotonic()
    reports = poll(connected, 50, seconds=8)
    assert time.monotonic() - began < 7.0
    acknowledged = reports.acknowledged
    assert acknowledged in ([], [2])
    assert sorted([*acknowledged, *failed_ids(reports)]) == list(range(2, 52))
    frozen.resume()
    send(connected, kafka.row(99))
    last = poll(connected, 1)
    arrived = [record.outbox_id for record in kafka.arrived()]
    assert {1, *acknowledged} <= set(arrived) <= {1, 2, 99}
    assert last.failed or arrived[-1] == 99
    assert max(Counter(arrived).values()) == 1


def test_what_is_abandoned_while_the_broker_is_away_never_leaves(connected, kafka, frozen):
    send(connected, *[kafka.row(number) for number in range(2, 52)])
    began = time.monotonic()
    reports = connected.abandon()
    assert time.monotonic() - began < 5.0, "it asks nobody"
    assert sorted(failed_ids(reports)) == list(range(2, 52))
    frozen.resume()
    other = begun(kafka.delivery())
    send(other, kafka.row(99))
    poll(other, 1)
    assert {record.outbox_id for record in kafka.arrived()} - {2} == {1, 99}


def test_a_full_queue_does_not_hold_up_the_end_of_a_term(kafka, frozen):
    """While the broker is away nothing lands, so the queue stays full: sending returns, and the loop sees it."""
    delivery = begun(kafka.delivery(send_buffer=0, **{"queue.buffering.max.messages": 10}))
    began = time.monotonic()
    assert ids(send(delivery, *[kafka.row(number) for number in range(1, 21)])) == list(range(11, 21))
    assert time.monotonic() - began < 2.0, "it does not wait for room"
    assert len(delivery.abandon().failed) == 10


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
