"""A lane while its broker is away: waiting records fail or are given up, and do not leave later."""

from collections import Counter

import pytest
from confluent_kafka.admin import AdminClient
from support.brokers import RealBroker, begun, failed_ids, ids, poll, send
from support.waiting import eventually

pytestmark = pytest.mark.full


@pytest.fixture
def admin(breakable_stack):
    """For topics of the broker that is frozen."""
    return AdminClient({"bootstrap.servers": breakable_stack.bootstrap_servers})


@pytest.fixture
def kafka(breakable_stack, make_topic):
    broker = RealBroker(breakable_stack.bootstrap_servers, make_topic())
    yield broker
    broker.close()


@pytest.fixture
def freeze(breakable_stack):
    """Freeze the broker; it is thawed at the end, or earlier."""
    yield breakable_stack.kafka.suspend
    breakable_stack.kafka.resume()


@pytest.fixture
def thaw(breakable_stack):
    return breakable_stack.kafka.resume


def connected(kafka, **settings):
    """Make a delivery that has one request on the wire at a time, each of one record, and has sent record 1."""
    one_by_one = {"max.in.flight": 1, "batch.num.messages": 1, "linger.ms": 0}
    delivery = begun(kafka.delivery(**one_by_one, **settings))
    # The first one may take longer than a short delivery timeout.
    eventually(lambda: send(delivery, kafka.row(1)) or poll(delivery, 1).acknowledged == [1], "connected")
    return delivery


def test_what_waits_longer_than_the_delivery_timeout_fails_and_never_leaves(kafka, freeze, thaw):
    """A process that was frozen until another was elected must find its queue expired.

    Record 2 is on the wire before the broker notices that it is frozen: it may arrive, as every failed record may, and
    may even be acknowledged.
    """
    delivery = connected(kafka, timeout_seconds=1.0)
    freeze()
    send(delivery, *[kafka.row(number) for number in range(2, 52)])
    reports = poll(delivery, 50)
    acknowledged = reports.acknowledged
    assert acknowledged in ([], [2])
    assert sorted([*acknowledged, *failed_ids(reports)]) == list(range(2, 52))
    thaw()
    send(delivery, kafka.row(99))
    last = poll(delivery, 1)
    arrived = [record.outbox_id for record in kafka.arrived()]
    assert {1, *acknowledged} <= set(arrived) <= {1, 2, 99}
    assert last.failed or arrived[-1] == 99
    counted = Counter(arrived)
    assert counted[2] <= 1
    assert counted[99] <= 1


def test_what_is_abandoned_while_the_broker_is_away_never_leaves(kafka, freeze, thaw):
    """No record is near its delivery timeout; nor is the broker asked, which would not answer."""
    delivery = connected(kafka)
    freeze()
    send(delivery, *[kafka.row(number) for number in range(2, 52)])
    reports = delivery.abandon()
    assert sorted(failed_ids(reports)) == list(range(2, 52))
    thaw()
    other = begun(kafka.delivery())
    send(other, kafka.row(99))
    poll(other, 1)
    assert {record.outbox_id for record in kafka.arrived()} - {2} == {1, 99}


def test_a_full_queue_does_not_hold_up_the_end_of_a_term(kafka, freeze):
    """While the broker is away nothing lands, so the queue stays full: sending returns, and the loop sees it."""
    delivery = begun(kafka.delivery(send_buffer=0, **{"queue.buffering.max.messages": 10}))
    freeze()
    assert ids(send(delivery, *[kafka.row(number) for number in range(1, 21)])) == list(range(11, 21))
    assert len(delivery.abandon().failed) == 10
