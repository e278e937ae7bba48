"""The fate of records that can never be sent, and of those that follow them."""

import pytest
from support.bench import Bench
from support.clock import Clock
from support.rows import row
from support.waiting import eventually

from harvest_lib.delivery import Failure, Reports
from harvest_lib.errors import RecordError
from harvest_lib.events import LeaderRefreshed
from harvest_lib.marking import loop

pytestmark = pytest.mark.quick


@pytest.fixture(autouse=True, params=[False, True], ids=["asked_at_once", "asked_on_a_thread"])
def _mode(request, monkeypatch):
    monkeypatch.setattr(Bench, "threaded", request.param)


@pytest.fixture(params=["seen_before", "refused_by_kafka"])
def refuse(request):
    """Make records of a bench ones that can never be sent, found before they are sent or by Kafka."""

    def mark(bench, *ids):
        (bench.refusals if request.param == "seen_before" else bench.delivery.refuse).update(dict.fromkeys(ids, "bad"))

    return mark


def parked(bench):
    return {record_id: held for record_id, (_, _, held) in sorted(bench.table.parked.items())}


def test_a_refused_record_is_parked_and_its_key_held_behind_it(refuse):
    """I8: other keys go on."""
    bench = Bench()
    bench.table.insert(row(1, "a"), row(2, "a"), row(3, "b"), row(4, "a"), row(5, "b"))
    refuse(bench, 2)
    bench.run()
    assert parked(bench) == {2: False, 4: True}
    assert bench.table.parked[2][1] == "bad"
    assert sorted(bench.delivery.sent_ids) == [1, 3, 5]
    assert not [event for event in bench.events if isinstance(event, LeaderRefreshed)], "nothing had to be repeated"


def test_a_key_is_held_in_its_topic_alone(refuse):
    """A writer of one topic cannot hold back what others write to theirs."""
    bench = Bench()
    bench.table.insert(
        *[row(1, "account-1", topic="orders"), row(2, "account-1", topic="payments")],
        *[row(3, "account-1", topic="orders"), row(4, "account-1", topic="payments"), row(5, "b")],
    )
    refuse(bench, 1)
    bench.run()
    assert parked(bench) == {1: False, 3: True}
    assert sorted(bench.delivery.sent_ids) == [2, 4, 5]


def test_a_key_stays_held_for_what_comes_later(refuse):
    bench = Bench()
    bench.table.insert(row(1, "a"))
    refuse(bench, 1)
    bench.run()
    again = Bench()
    again.table.rows, again.table.parked = bench.table.rows, bench.table.parked
    again.table.insert(row(7, "a"), row(8, "b"))
    again.run()
    assert parked(again) == {1: False, 7: True}
    assert again.delivery.sent_ids == [8]


def test_under_skip_the_key_goes_on(refuse):
    bench = Bench(parking="skip")
    bench.table.insert(row(1, "a"), row(2, "a"), row(3, "a"))
    refuse(bench, 2)
    bench.run()
    assert parked(bench) == {2: False}
    assert bench.delivery.sent_ids == [1, 3]


def test_under_stop_the_harvester_ends_and_says_which_record_it_was(refuse):
    bench = Bench(parking="stop")
    bench.table.insert(row(1, "a"), row(2, "b", topic="secret-free"), row(3, "c"))
    refuse(bench, 2)
    with pytest.raises(RecordError, match="record 2 for topic 'secret-free'") as raised:
        bench.run()
    assert raised.value.evidence == "bad"
    assert 2 in bench.table.rows
    assert set(bench.table.leaders().values()) <= {None}, "I9: what was marked and not sent is given back"
    assert bench.term.quiesced.is_set()


def test_a_key_that_was_released_is_sent_in_order(refuse):
    """Somebody retries while the leader still holds the key: parked records come before those in its hands."""
    bench = Bench()
    bench.table.insert(row(1, "a"), row(2, "a"))
    refuse(bench, 1)
    bench.run()
    assert parked(bench) == {1: False, 2: True}

    second = Bench()
    second.table = second.source.table = bench.table
    original, retried = second.source.park, []

    def park(refused, behind=()):
        if behind and not retried:  # just before the leader holds 3 as well
            retried.append(behind)
            second.table.retry("a")
        return original(refused, behind)

    second.source.park = park
    second.table.insert(row(3, "a"))
    second.run()
    assert retried
    assert second.delivery.sent_ids == [1, 2, 3]
    assert parked(second) == {}


@pytest.mark.parametrize("kind", ["outages", "lost_answers"])
def test_parking_without_an_answer_is_repeated(refuse, kind):
    bench = Bench()
    bench.table.insert(row(1, "a"), row(2, "a"), row(3, "b"))
    refuse(bench, 1)
    called, lost = bench.source._called, []

    def fail_once(name):
        if name == "park" and not lost:
            lost.append(name)
            setattr(bench.source, kind, 1)
        called(name)

    bench.source._called = fail_once
    bench.run()
    assert lost
    assert parked(bench) == {1: False, 2: True}
    assert bench.delivery.sent_ids == [3]


def test_what_is_to_be_parked_when_the_term_ends_is_given_back():
    bench = Bench()
    bench.table.insert(row(1, "a"), row(2, "a"))
    bench.delivery.refuse = {1: "bad"}
    poll = bench.delivery.poll

    def stop_then_land(timeout_seconds):
        if bench.delivery._in_flight:
            bench.stopping.set()
        return poll(timeout_seconds)

    bench.delivery.poll = stop_then_land
    bench.run(until=lambda: False)
    assert {**dict.fromkeys(bench.table.leaders().values()), None: None} == {None: None}
    assert set(bench.table.ids) | set(parked(bench)) == {1, 2}


def test_a_delivery_that_halted_begins_again_under_a_new_leader_id():
    bench = Bench(one_per_key=False)
    bench.table.insert(*[row(n, "a") for n in range(1, 6)])
    poll, halted = bench.delivery.poll, []

    def halt_once(timeout_seconds):
        if halted or not bench.delivery._in_flight:
            return poll(timeout_seconds)
        halted.append(True)
        failed = [Failure(row=sent, reason="halted") for _, sent in bench.delivery._in_flight]
        bench.delivery._in_flight.clear()
        return Reports(failed=failed, halted=True)

    bench.delivery.poll = halt_once
    bench.run()
    assert halted
    assert bench.delivery.sent_ids == [1, 2, 3, 4, 5]
    assert len({leader for leader, _ in bench.delivery.log}) == 1
    assert bench.delivery.log[0][0] != bench.term.leader_id


def test_records_that_wait_longer_than_the_queue_timeout_are_marked_again(monkeypatch):
    """The limit `queueTimeout`."""
    clock = Clock()
    monkeypatch.setattr(loop, "boot_seconds", clock)
    bench = Bench(queue_timeout_seconds=30.0, drain_interval_seconds=0.001)
    bench.table.insert(row(1, "a"), row(2, "a"))
    bench.delivery.hold = True
    bench.begin()
    eventually(lambda: bench.turns(1) or bench.loop.in_flight.pending, "one waits behind the other")
    clock.now += 30.0
    bench.turns(50)
    assert not bench.events
    clock.now += 0.5
    eventually(lambda: bench.turns(1) or any(isinstance(event, LeaderRefreshed) for event in bench.events))
    bench.stopping.set()
    bench.loop.run()
    assert bench.table.leaders() == {1: bench.table.leaders()[1], 2: None}


def test_a_record_put_back_before_another_that_stays_parked_is_sent():
    """Only what comes after a parked record is held behind it."""
    bench = Bench()
    bench.table.parked = {3: (row(3, "a"), "bad", False), 4: (row(4, "a"), "held", True)}
    bench.table.insert(row(1, "a"), row(5, "a"), row(6, "b"))
    bench.run()
    assert sorted(bench.delivery.sent_ids) == [1, 6]
    assert parked(bench) == {3: False, 4: True, 5: True}
