"""A delivery while its broker is away: waiting records fail or are given up, and do not leave later."""

import itertools
import uuid
from collections import Counter

import pytest
from confluent_kafka.admin import AdminClient
from support.batches import START
from support.brokers import RealBroker, always, begun, deliver

from harvest_lib.delivery import BatchCommitted, BatchFailed

pytestmark = pytest.mark.full


@pytest.fixture
def admin(breakable_stack):
    """For topics of the broker that is frozen."""
    return AdminClient({"bootstrap.servers": breakable_stack.bootstrap_servers})


@pytest.fixture
def kafka(breakable_stack, make_topic):
    broker = RealBroker(breakable_stack.bootstrap_servers, make_topic(), expiry_seconds=8.0)
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
    delivery = begun(kafka.delivery(**{"batch.num.messages": 1, "linger.ms": 0}, **settings))
    assert deliver(delivery, kafka.row(1)) == BatchCommitted()
    return delivery


def rows(kafka):
    return [kafka.row(number, f"k{number}") for number in range(2, 52)]


def test_what_waits_longer_than_its_expiry_fails_and_never_leaves(kafka, freeze, thaw):
    """A process that was frozen until another was elected must find its queue expired.

    Record 2 is on the wire before the broker notices that it is frozen: it may arrive, as every failed record may.
    """
    delivery = connected(kafka)
    freeze()
    assert delivery.send(rows(kafka), always) == {}
    assert isinstance(delivery.commit(START, always), BatchFailed)
    assert delivery._producer._client.flush(60) == 0, "the others expire within a second, and before a session timeout"
    thaw()
    delivery.begin(uuid.uuid4(), always)
    assert deliver(delivery, kafka.row(99)) == BatchCommitted()
    arrived = [record.outbox_id for record in kafka.arrived()]
    assert {1, 99} <= set(arrived) <= {1, 2, 99}
    assert all(count == 1 for count in Counter(arrived).values())


def test_what_is_abandoned_while_the_broker_is_away_never_leaves(kafka, freeze, thaw):
    """No record is near its expiry; nor is the broker asked, which would not answer."""
    delivery = connected(kafka)
    freeze()
    assert delivery.send(rows(kafka), always) == {}
    delivery.abandon()
    thaw()
    other = begun(kafka.delivery())
    assert deliver(other, kafka.row(99)) == BatchCommitted()
    assert {record.outbox_id for record in kafka.arrived()} - {2} == {1, 99}


def test_a_full_queue_does_not_hold_up_the_end_of_a_term(kafka, freeze):
    """While the broker is away nothing lands, so the queue stays full: sending returns once the term is over."""
    delivery = begun(kafka.delivery(**{"queue.buffering.max.messages": 10}))
    freeze()
    checks = itertools.count()
    assert delivery.send(rows(kafka), lambda: next(checks) < 20) == {}
    assert isinstance(delivery.commit(START, lambda: False), BatchFailed)
