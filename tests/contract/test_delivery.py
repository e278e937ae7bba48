"""The promises of every delivery, checked on the fake of the loop's tests and on the real ones, with a real broker."""

import uuid
from itertools import count

import pytest
from support.batches import START
from support.brokers import FakeBroker, RealBroker, always, begun, by_key, deliver, ids
from support.rows import row

from harvest_lib.delivery import BatchCommitted, BatchFailed

pytestmark = pytest.mark.gate

EXPIRY_SECONDS = {"pipelined": None, "barrier": 600.0}


@pytest.fixture(params=["fake", *EXPIRY_SECONDS])
def broker(request):
    if request.param == "fake":
        made = FakeBroker()
    else:
        servers, topic = request.getfixturevalue("bootstrap_servers"), request.getfixturevalue("make_topic")()
        made = RealBroker(servers, topic, EXPIRY_SECONDS[request.param])
    yield made
    made.close()


def test_a_batch_that_was_committed_is_there_in_order(broker):
    delivery = begun(broker.delivery())
    rows = [broker.row(number, f"k{number % 3}") for number in range(1, 301)]
    for start in range(0, 300, 100):
        assert deliver(delivery, *rows[start : start + 100]) == BatchCommitted()
    expected = {f"k{n}": [r[0] for r in rows if r[2] == f"k{n}"] for n in range(3)}
    assert by_key(broker.arrived()) == expected, "each key in order, and none twice"


def test_a_batch_may_be_handed_over_in_parts(broker):
    delivery = begun(broker.delivery())
    rows = [broker.row(number) for number in range(1, 31)]
    for start in range(0, 30, 10):
        assert delivery.send(rows[start : start + 10], always) == {}
    assert delivery.commit(START, always) == BatchCommitted()
    assert [record.outbox_id for record in broker.arrived()] == ids(rows)


def test_an_empty_batch_is_committed(broker):
    assert begun(broker.delivery()).commit(START, always) == BatchCommitted()
    assert broker.arrived() == []


def test_what_is_abandoned_never_leaves(broker):
    delivery = begun(broker.delivery(held=True))
    delivery.send([broker.row(number) for number in range(1, 51)], always)
    assert not delivery.abandon().may_arrive, "nothing was on the wire"
    assert not delivery.abandon().may_arrive, "it is safe to repeat"
    assert broker.arrived() == []


def test_a_delivery_can_begin_again_after_it_was_abandoned(broker):
    delivery = begun(broker.delivery())
    assert deliver(delivery, broker.row(1)) == BatchCommitted()
    delivery.abandon()
    delivery.begin(uuid.uuid4(), always)
    assert deliver(delivery, broker.row(2)) == BatchCommitted()
    assert [record.outbox_id for record in broker.arrived()] == [1, 2]


def test_a_row_that_the_client_refuses_is_named_and_those_before_it_go(broker):
    """I8."""
    delivery = begun(broker.delivery())
    refused = delivery.send([broker.row(1), broker.refused(2), broker.row(3)], always)
    assert [*refused] == [2]
    assert refused[2]
    assert delivery.commit(START, always) == BatchCommitted()
    assert [record.outbox_id for record in broker.arrived()] == [1]


@pytest.mark.parametrize("expiry_seconds", EXPIRY_SECONDS.values(), ids=EXPIRY_SECONDS)
def test_nothing_is_handed_over_once_the_term_is_over(bootstrap_servers, make_topic, expiry_seconds):
    broker = RealBroker(bootstrap_servers, make_topic(), expiry_seconds)
    delivery = begun(broker.delivery())
    assert delivery.send([broker.row(number) for number in range(1, 50)], lambda: False) == {}
    assert isinstance(delivery.commit(START, always), BatchFailed), "it is not whole"
    assert broker.arrived() == []
    broker.close()


def test_under_the_barrier_the_term_is_checked_again_for_a_record_that_comes_later(
    bootstrap_servers, make_topic, monkeypatch
):
    monkeypatch.setattr("harvest_lib.delivery.producer.boot_seconds", count().__next__)
    broker = RealBroker(bootstrap_servers, make_topic(), expiry_seconds=600.0)
    delivery, checks = begun(broker.delivery()), iter([True, True, True, False])
    delivery.send([broker.row(number) for number in range(1, 50)], lambda: next(checks))
    assert isinstance(delivery.commit(START, always), BatchFailed)
    assert {record.outbox_id for record in broker.arrived()} <= {1, 2}
    broker.close()


def test_under_the_barrier_the_keys_of_failed_records_tell_which_are_not_in_kafka(bootstrap_servers, make_topic):
    broker = RealBroker(bootstrap_servers, make_topic(), expiry_seconds=600.0)
    delivery = begun(broker.delivery(**{"topic.metadata.propagation.max.ms": 300}))
    assert delivery.send([broker.row(number, f"k{number}") for number in range(1, 51)], always) == {}
    assert delivery.send([row(51, "lost", topic=f"{broker.topic}.missing")], always) == {}
    assert isinstance(delivery.commit(START, always), BatchFailed)
    abandoned = delivery.abandon()
    assert not abandoned.may_arrive
    failed = {each.decode() for each in abandoned.failed_keys}
    assert "lost" in failed
    assert {each.key for each in broker.arrived()} == {f"k{number}" for number in range(1, 51)} - failed
    delivery.begin(uuid.uuid4(), always)
    assert deliver(delivery, broker.row(52, "next")) == BatchCommitted()
    assert not delivery.abandon().failed_keys
    broker.close()


def test_pipelined_it_is_not_known_which_failed(bootstrap_servers, make_topic):
    """A key may have any number of records in a batch."""
    broker = RealBroker(bootstrap_servers, make_topic())
    delivery = begun(broker.delivery(**{"topic.metadata.propagation.max.ms": 300}))
    delivery.send([broker.row(1), row(2, "k", topic=f"{broker.topic}.missing")], always)
    assert isinstance(delivery.commit(START, always), BatchFailed)
    assert delivery.abandon().failed_keys is None
    broker.close()
