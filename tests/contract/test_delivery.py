"""The promises of every delivery, checked on the fake that the loop's tests use and on the real ones, with a real
broker: one lane and eight, with the barrier in mind and pipelined."""

import uuid

import pytest
from support.brokers import KINDS, FakeBroker, RealBroker, begun, by_key, deliver, failed_ids, ids, poll, send

from harvest_lib.delivery import Reports

pytestmark = pytest.mark.gate


@pytest.fixture(params=["fake", *KINDS])
def broker(request):
    if request.param == "fake":
        yield FakeBroker()
        return
    servers, topic = request.getfixturevalue("bootstrap_servers"), request.getfixturevalue("make_topic")()
    kind, lanes = KINDS[request.param]
    real = RealBroker(servers, topic, kind, lanes)
    yield real
    real.close()


def test_every_row_is_reported_once_and_what_is_acknowledged_is_there(broker):
    delivery = begun(broker.delivery())
    rows = [broker.row(number, f"k{number % 3}") for number in range(1, 101)]
    assert send(delivery, *rows) == []
    reports = poll(delivery, 100)
    assert sorted(reports.acknowledged) == ids(rows), "the very rows that were sent"
    assert reports.failed == []
    expected = {f"k{n}": [r[0] for r in rows if r[2] == f"k{n}"] for n in range(3)}
    assert by_key(broker.arrived()) == expected, "each key in order, and none twice"


def test_sending_stops_when_it_may_not_go_on(broker):
    """Rows that were not taken stay with the caller, in order."""
    delivery = begun(broker.delivery())
    rows = [broker.row(number) for number in range(1, 500)]
    asked = iter([True, True, False])
    left = send(delivery, *rows, may_send=lambda: next(asked))
    taken = rows[: -len(left)]
    assert left == rows[len(taken) :]
    assert 2 <= len(taken) <= 200, "it asks once in a while"
    assert poll(delivery, len(taken)).acknowledged == ids(taken)
    assert send(delivery, *left, may_send=lambda: False) == left
    assert [record.outbox_id for record in broker.arrived()] == [row[0] for row in taken]


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
    assert poll(delivery, 1).acknowledged == [2]
    assert [record.outbox_id for record in broker.arrived()] == [1, 2]


def test_a_row_that_is_refused_fails_alone(broker):
    """I8."""
    delivery = begun(broker.delivery())
    refused = deliver(delivery, broker.row(1), broker.refused(2), broker.row(3))
    assert [failure.row[0] for failure in refused] == [2]
    assert refused[0].reason
    assert [record.outbox_id for record in broker.arrived()] == [1, 3]


def test_nothing_is_sent_to_a_full_lane_that_is_not_sent_later(broker):
    """All rows that were taken come out again, in order."""
    delivery = begun(broker.delivery())
    rows = [broker.row(number, f"k{number % 5}") for number in range(1, 301)]
    assert deliver(delivery, *rows) == []
    expected = {f"k{n}": [r[0] for r in rows if r[2] == f"k{n}"] for n in range(5)}
    assert by_key(broker.arrived()) == expected


def test_close_sends_nothing_and_is_repeatable(broker):
    delivery = begun(broker.delivery(held=True))
    send(delivery, broker.row(1))
    delivery.close()
    delivery.close()
    assert broker.arrived() == []
    broker.delivery().close()  # one that never began
