"""What every delivery promises, asked of the fake that the loop's tests use and of the real one, with a real broker."""

import time
import uuid
from collections import Counter, deque

import pytest
from confluent_kafka import KafkaError, KafkaException
from support.fakes import FakeDelivery
from support.outbox import Delivered, read_topic
from support.rows import row
from support.waiting import eventually

from harvest_lib.delivery import AtLeastOnce, Reports, at_least_once


def always():
    return True


class FakeBroker:
    """A delivery into a list, and what arrived there."""

    def __init__(self):
        self._delivery = FakeDelivery()

    def delivery(self, *, held=False):
        self._delivery.hold = held
        return self._delivery

    def row(self, number, key="k"):
        return row(number, key)

    def refused(self, number):
        self._delivery.fail[number] = 1
        return row(number, "k")

    def arrived(self):
        return [
            Delivered(partition=0, offset=offset, key=sent[2], value=sent[3], headers=[], outbox_id=sent[0])
            for offset, (_, sent) in enumerate(self._delivery.log)
        ]


class RealBroker:
    """A topic of a real broker, and what arrived there."""

    def __init__(self, servers, topic):
        self._servers = servers
        self.topic = topic
        self._made = []

    def delivery(self, *, held=False, timeout_seconds=8.0, **settings):
        """Make a delivery; with `held` what is sent stays in its queue."""
        settings = {"bootstrap.servers": self._servers, "linger.ms": 7_000 if held else 2, **settings}
        made = AtLeastOnce(settings, delivery_timeout_seconds=timeout_seconds, record_header=True)
        self._made.append(made)
        return made

    def row(self, number, key="k", value="v"):
        return row(number, key, value, self.topic)

    def refused(self, number):
        """Make a row that cannot become a record: a header's value is missing."""
        return (number, self.topic, "k", "v", ["a", "b"], ["1"])

    def arrived(self):
        return read_topic(self._servers, self.topic)

    def close(self):
        for made in self._made:
            made.close()


@pytest.fixture
def kafka(bootstrap_servers, make_topic):
    broker = RealBroker(bootstrap_servers, make_topic())
    yield broker
    broker.close()


@pytest.fixture(params=["fake", "kafka"])
def broker(request):
    return FakeBroker() if request.param == "fake" else request.getfixturevalue("kafka")


def begun(delivery):
    delivery.begin(uuid.uuid4())
    return delivery


def send(delivery, *rows, may_send=always):
    left = deque(rows)
    delivery.send(left, may_send)
    return list(left)


def poll(delivery, count, seconds=20):
    """Poll until `count` records are reported, and once more to see that no more are."""
    reports = Reports()

    def enough():
        polled = delivery.poll(0.05)
        reports.acknowledged.extend(polled.acknowledged)
        reports.failed.extend(polled.failed)
        return len(reports.acknowledged) + len(reports.failed) >= count

    eventually(enough, seconds, f"{count} reports")
    assert delivery.poll(0) == Reports()
    return reports


def ids(rows):
    return [r[0] for r in rows]


def failed_ids(reports):
    return [failure.row[0] for failure in reports.failed]


# -- the contract


def test_every_row_is_reported_once_and_what_is_acknowledged_is_there(broker):
    delivery = begun(broker.delivery())
    rows = [broker.row(number, f"k{number % 3}") for number in range(1, 101)]
    assert send(delivery, *rows) == []
    reports = poll(delivery, 100)
    assert sorted(reports.acknowledged) == sorted(rows), "the very rows that were sent"
    assert reports.failed == []
    assert [record.outbox_id for record in broker.arrived()] == ids(rows), "in order, and none twice"


def test_sending_stops_when_it_may_not_go_on(broker):
    """What was not taken stays with the caller, in order."""
    delivery = begun(broker.delivery())
    rows = [broker.row(number) for number in range(1, 7)]
    asked = iter([True, True, False])
    assert send(delivery, *rows, may_send=lambda: next(asked)) == rows[2:]
    assert ids(poll(delivery, 2).acknowledged) == [1, 2]
    assert send(delivery, *rows[2:], may_send=lambda: False) == rows[2:]
    assert [record.outbox_id for record in broker.arrived()] == [1, 2]


def test_what_is_abandoned_never_leaves_and_is_reported_failed(broker):
    delivery = begun(broker.delivery(held=True))
    send(delivery, *[broker.row(number) for number in range(1, 51)])
    assert delivery.poll(0) == Reports(), "nothing has landed yet"
    reports = delivery.abandon()
    assert reports.acknowledged == []
    assert sorted(failed_ids(reports)) == list(range(1, 51))
    assert all(failure.reason for failure in reports.failed)
    assert delivery.poll(0) == delivery.abandon() == Reports(), "each is reported once"
    assert broker.arrived() == []


def test_a_delivery_can_begin_again_after_it_was_abandoned(broker):
    delivery = begun(broker.delivery())
    send(delivery, broker.row(1))
    poll(delivery, 1)
    delivery.abandon()
    delivery.begin(uuid.uuid4())
    send(delivery, broker.row(2))
    assert ids(poll(delivery, 1).acknowledged) == [2]
    assert [record.outbox_id for record in broker.arrived()] == [1, 2]


def test_a_row_that_is_refused_fails_alone(broker):
    """I8."""
    delivery = begun(broker.delivery())
    assert send(delivery, broker.row(1), broker.refused(2), broker.row(3)) == []
    reports = poll(delivery, 3)
    assert sorted(ids(reports.acknowledged)) == [1, 3]
    assert failed_ids(reports) == [2]
    assert [record.outbox_id for record in broker.arrived()] == [1, 3]


def test_close_sends_nothing_and_is_repeatable(broker):
    delivery = begun(broker.delivery(held=True))
    send(delivery, broker.row(1))
    delivery.close()
    delivery.close()
    assert broker.arrived() == []
    broker.delivery().close()  # one that never began


# -- the real one only


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


def test_a_full_queue_is_waited_out_without_loss_or_repetition(kafka):
    delivery = begun(kafka.delivery(**{"queue.buffering.max.messages": 10}))
    rows = [kafka.row(number) for number in range(1, 201)]
    assert send(delivery, *rows) == []
    assert ids(poll(delivery, 200).acknowledged) == ids(rows)
    assert [record.outbox_id for record in kafka.arrived()] == ids(rows)


REFUSED = {
    "unknown_topic": lambda kafka: row(2, "k", topic=f"{kafka.topic}_missing"),
    "illegal_topic": lambda kafka: row(2, "k", topic="not/legal"),
    "header_without_a_value": lambda kafka: kafka.refused(2),
    "larger_than_a_client_sends": lambda kafka: kafka.row(2, value="v" * 1_100_000),
}


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED.keys())
def test_what_can_never_be_sent_fails_alone(kafka, refused):
    """I8: its neighbours, of the same key and partition even, are acknowledged."""
    # librdkafka would hope for the topic to appear for 30 s.
    delivery = begun(kafka.delivery(**{"topic.metadata.propagation.max.ms": 300}))
    bad = refused(kafka)
    assert send(delivery, kafka.row(1), bad, kafka.row(3)) == []
    reports = poll(delivery, 3)
    assert sorted(ids(reports.acknowledged)) == [1, 3]
    assert [failure.row for failure in reports.failed] == [bad]
    assert reports.failed[0].reason
    assert [record.outbox_id for record in kafka.arrived()] == [1, 3]


def test_a_record_larger_than_its_topic_takes_fails_and_the_producer_goes_on(kafka, bootstrap_servers, make_topic):
    """Only the topic knows: a broker refuses the whole batch the record is in, here one of its own."""
    small = RealBroker(bootstrap_servers, make_topic(name=f"{kafka.topic}_small", **{"max.message.bytes": 2_000}))
    delivery = begun(small.delivery(**{"batch.num.messages": 1}))
    assert send(delivery, small.row(1), small.row(2, value="v" * 5_000), small.row(3), kafka.row(4)) == []
    reports = poll(delivery, 4)
    assert sorted(ids(reports.acknowledged)) == [1, 3, 4]
    assert failed_ids(reports) == [2]
    send(delivery, small.row(5))
    assert ids(poll(delivery, 1).acknowledged) == [5]
    assert [record.outbox_id for record in small.arrived()] == [1, 3, 5]
    small.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"enable.idempotence": False, "acks": "1"},
        {"enable.idempotence": "false", "acks": 0, "allow.auto.create.topics": True, "message.timeout.ms": 0},
    ],
)
def test_settings_that_promises_rest_on_cannot_be_overridden(kafka, monkeypatch, settings):
    used = {}
    real = AtLeastOnce.begin.__globals__["Producer"]
    monkeypatch.setitem(AtLeastOnce.begin.__globals__, "Producer", lambda given: used.update(given) or real(given))
    delivery = begun(kafka.delivery(timeout_seconds=7.0, **settings))
    send(delivery, kafka.row(1))
    assert ids(poll(delivery, 1).acknowledged) == [1]
    rests_on = {name: used[name] for name in ("acks", "enable.idempotence", "allow.auto.create.topics")}
    assert rests_on == {"acks": "all", "enable.idempotence": True, "allow.auto.create.topics": False}
    assert used["message.timeout.ms"] == 7_000


def test_the_other_settings_are_the_users(kafka):
    """Seen in what librdkafka says of itself."""
    said = []
    delivery = begun(
        kafka.delivery(**{"client.id": "mine", "acks": "1", "statistics.interval.ms": 50, "stats_cb": said.append})
    )
    eventually(lambda: delivery.poll(0.05) == Reports() and said, 10, "statistics")
    assert '"client_id":"mine"' in said[-1].replace(" ", "")
    assert '"idemp_state"' in said[-1], "it is idempotent, which librdkafka refuses to be with less than acks=all"


# -- while the broker is away


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
    eventually(lambda: send(delivery, kafka.row(1)) or ids(poll(delivery, 1).acknowledged) == [1], 30, "connected")
    return delivery


def test_what_waits_longer_than_the_delivery_timeout_fails_and_never_leaves(connected, kafka, frozen):
    """A process that was frozen until another was elected must find its queue expired.

    Record 2 is on the wire before the broker notices that it is frozen: it may arrive, as every failed record may.
    """
    send(connected, *[kafka.row(number) for number in range(2, 52)])
    began = time.monotonic()
    reports = poll(connected, 50, seconds=8)
    assert time.monotonic() - began < 7.0
    assert sorted(failed_ids(reports)) == list(range(2, 52))
    frozen.resume()
    send(connected, kafka.row(99))
    last = poll(connected, 1)
    arrived = [record.outbox_id for record in kafka.arrived()]
    assert set(arrived) <= {1, 2, 99}
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
    """While the broker is away nothing lands, so the queue stays full: sending must go on asking whether it may."""
    delivery = begun(kafka.delivery(**{"queue.buffering.max.messages": 10}))
    asked = 0

    def may_send():
        nonlocal asked
        asked += 1
        return asked <= 30

    rows = [kafka.row(number) for number in range(1, 21)]
    assert ids(send(delivery, *rows, may_send=may_send)) == list(range(11, 21))
    assert asked == 31
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
    assert ids(poll(delivery, 1).acknowledged) == [1]
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
    assert ids(poll(delivery, 1).acknowledged) == [2]
    assert [record.outbox_id for record in strict.arrived()] == [2]
