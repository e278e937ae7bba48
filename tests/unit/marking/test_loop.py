"""The loop of one term over fakes: what it does when deliveries fail, the database is away, or the term ends."""

import uuid
from concurrent.futures import Future

import pytest
from support.bench import Bench
from support.clock import Clock
from support.fakes import FakeSource
from support.rows import row
from support.waiting import eventually

from harvest_lib.errors import OutboxTableError
from harvest_lib.events import LeaderRefreshed
from harvest_lib.leadership import Term, TermEnd
from harvest_lib.marking import loop

pytestmark = pytest.mark.quick


@pytest.fixture(autouse=True, params=[False, True], ids=["asked_at_once", "asked_on_a_thread"])
def _mode(request, monkeypatch):
    """Whatever the loop does, it does however long the database takes."""
    monkeypatch.setattr(Bench, "threaded", request.param)


def steps_back(log):
    last, count = {}, 0
    for _, sent in log:
        count += sent[0] < last.get(sent[2], 0)
        last[sent[2]] = sent[0]
    return count


def test_everything_is_sent_in_order_and_purged():
    bench = Bench()
    bench.table.insert(*[row(n, f"k{n % 3}") for n in range(1, 200)])
    bench.run()
    assert sorted(bench.delivery.sent_ids) == list(range(1, 200))
    assert steps_back(bench.delivery.log) == 0
    assert bench.delivered == 199
    assert bench.term.quiesced.is_set()


@pytest.mark.parametrize("persisted", [False, True])
def test_a_failed_record_is_sent_again_before_its_successors(persisted):
    bench = Bench()
    bench.delivery.fail, bench.delivery.persisted_failures = {2: 2}, persisted
    bench.table.insert(*[row(n, "a") for n in range(1, 5)], row(5, "b"))
    bench.run()
    assert steps_back(bench.delivery.log) == 0
    assert set(bench.delivery.sent_ids) == {1, 2, 3, 4, 5}
    assert bench.delivery.sent_ids.count(2) == (3 if persisted else 1)


def test_a_failure_refreshes_the_leader_id():
    bench = Bench()
    bench.delivery.fail = {1: 1}
    bench.table.insert(row(1, "a"))
    bench.run()
    refreshed = [event.leader_id for event in bench.events if isinstance(event, LeaderRefreshed)]
    assert refreshed == [bench.loop.leader_id]
    assert bench.loop.leader_id != bench.term.leader_id
    assert [leader for leader, _ in bench.delivery.log] == refreshed


def test_the_barrier_is_lowered_only_after_the_purge():
    """I3 and I4: were the next record of the key sent before the purge, a crash in between would make it step back."""
    bench = Bench()
    bench.table.insert(row(1, "a"), row(2, "a"))
    seen = []
    bench.delivery.before_send = lambda sending: seen.append((sending[0], bench.table.ids))
    bench.run()
    assert seen == [(1, [1, 2]), (2, [2])]


def test_nothing_is_purged_that_was_not_acknowledged():
    bench = Bench(drain_interval_seconds=0.001)
    bench.table.insert(row(1, "a"), row(2, "b"))
    bench.delivery.hold = True
    bench.run(until=lambda: len(bench.delivery._in_flight) == 2)
    assert bench.table.ids == [1, 2]
    assert bench.delivery.abandoned == 1


@pytest.mark.parametrize("kind", ["outages", "lost_answers"])
@pytest.mark.parametrize("after", range(1, 8))
def test_a_database_that_fails_at_any_call_costs_nothing(kind, after):
    bench = Bench(max_in_flight_records=4, mark_query_records=2)
    bench.table.insert(*[row(n, "ab"[n % 2]) for n in range(1, 9)])
    calls = 0
    original = bench.source._called

    def called(name):
        nonlocal calls
        calls += 1
        if calls == after:
            setattr(bench.source, kind, 1)
        original(name)

    bench.source._called = called
    bench.run()
    assert bench.table.ids == []
    assert set(bench.delivery.sent_ids) == set(range(1, 9))
    assert steps_back(bench.delivery.log) == 0


def test_an_error_that_will_not_pass_ends_the_loop_and_still_quiesces():
    bench = Bench()

    def broken(limit, delivered=()):
        raise OutboxTableError("the column is gone", next_step="put it back")

    bench.source.fetch = broken
    with pytest.raises(OutboxTableError):
        bench.run(until=lambda: False)  # the table is empty from the beginning
    assert bench.term.quiesced.is_set()


def test_an_error_while_ending_still_leaves_nothing_in_the_producer():
    """Once a term says that it has quiesced, a successor works: nothing of ours may leave after that."""
    bench = Bench()
    bench.table.insert(row(1, "a"), row(2, "b"))

    fetch, poll = bench.source.fetch, bench.delivery.poll

    def refuse(limit, delivered=()):
        if not delivered:
            return fetch(limit)
        raise OutboxTableError("no delete here", next_step="allow it")

    def land_one(timeout_seconds):
        reports = poll(timeout_seconds)
        bench.delivery.hold = bench.delivery.hold or bool(reports.acknowledged)
        return reports

    bench.source.fetch, bench.delivery.poll = refuse, land_one
    bench.delivery.land_at_most = 1
    with pytest.raises(OutboxTableError):
        bench.run()
    assert bench.delivery.abandoned == 1
    assert bench.term.abandoned
    assert not bench.delivery._in_flight
    assert bench.term.quiesced.is_set()


def test_an_outage_is_asked_about_no_more_often_than_the_backoff_says(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(loop, "boot_seconds", clock)
    bench = Bench(io_error_backoff_seconds=0.5)
    bench.table.insert(row(1, "a"))
    bench.source.outages = 1_000
    bench.begin()
    for times in range(1, 6):
        eventually(lambda wanted=times: bench.turns(1) or bench.source.calls.count("open") == wanted, "it asks")
        bench.turns(50)
        assert bench.source.calls.count("open") == times
        clock.now += 0.5


def test_a_purge_without_an_answer_does_not_keep_the_database_from_being_opened_again():
    """The purge waits for the connection: asked of a closed one at every turn it would defer the next attempt."""
    bench = Bench(io_error_backoff_seconds=0.05)
    bench.table.insert(row(1, "a"), row(2, "a"))
    original, refused = bench.source._called, []

    def called(name):
        if name == "fetch" and bench.delivery.log and not refused:
            refused.append(name)
            bench.source.outages = 1
        original(name)

    bench.source._called = called
    bench.run()
    assert refused
    assert bench.table.ids == []


def test_a_long_mark_backoff_does_not_hold_up_the_end():
    bench = Bench(mark_backoff_seconds=30.0)
    poll, given = bench.delivery.poll, []

    def noted(timeout_seconds):
        given.append(timeout_seconds)
        return poll(timeout_seconds)

    bench.delivery.poll = noted
    bench.run(until=lambda: bench.loop.idle and max(given) > 0)
    assert max(given) <= loop.IDLE_SECONDS <= 0.5, "so often it is asked whether to end"


def test_records_abandoned_are_counted():
    """The harvester then waits as long as another process would have to, before it leads again."""
    bench = Bench(drain_interval_seconds=0.001)
    bench.table.insert(row(1, "a"))
    bench.delivery.hold = True
    bench.run(until=lambda: len(bench.delivery._in_flight) == 1)
    assert bench.loop.abandoned == 1


@pytest.mark.parametrize("goes_again", [False, True])
def test_what_failed_last_may_still_arrive_once_the_term_is_over(goes_again):
    """A report of failure says that nobody knows: a successor that begins at once could send the next of the key, and
    then the one that failed arrives behind it."""
    bench = Bench()
    forever = 10**9  # a thousand failures are over before this is asked the first time
    bench.delivery.fail = {1: 1 if goes_again else forever}
    bench.table.insert(row(1, "a"), row(2, "a"))

    def revoke():
        if bench.table.ids == [] if goes_again else bench.delivery.fail[1] < forever - 1:
            bench.term.end(TermEnd.REVOKED)
        return False

    bench.run(until=revoke)
    assert bench.term.abandoned is bench.loop.holds_off is not goes_again
    assert set(bench.table.leaders().values()) <= {None}


def test_rows_stolen_by_a_deposed_leader_are_not_sent_out_of_order():
    """I6: a leader that was frozen marks our rows when it thaws; we mark them again, and send none of them twice."""
    bench = Bench(mark_query_records=10)
    bench.table.insert(*[row(n, "a") for n in range(1, 6)])
    zombie = FakeSource(bench.table)
    zombie.open(uuid.uuid4())
    bench.delivery.before_send = lambda _sending: zombie.fetch(10)
    bench.run()
    assert bench.delivery.sent_ids == [1, 2, 3, 4, 5]


def test_a_revoked_term_lets_what_is_in_flight_land():
    bench = Bench()
    bench.table.insert(row(1, "a"), row(2, "a"))
    bench.delivery.hold = True

    def revoke():
        if len(bench.delivery._in_flight) == bench.loop.in_flight.records > 0:
            bench.term.end(TermEnd.REVOKED)
            bench.delivery.hold = False
        return False

    bench.run(until=revoke)
    assert bench.delivery.sent_ids == [1]
    assert bench.table.ids == [2]
    assert bench.table.leaders() == {2: None}, "I9: what was marked and not sent is given back"
    assert bench.delivery.abandoned == 0


def test_a_fenced_term_stops_at_once_and_leaves_its_marks_to_the_successor():
    bench = Bench()
    bench.table.insert(row(1, "a"), row(2, "b"))
    bench.delivery.hold = True

    def fence():
        if len(bench.delivery._in_flight) == bench.loop.in_flight.records > 0:
            bench.term.end(TermEnd.FENCED)
        return False

    bench.run(until=fence)
    assert bench.delivery.abandoned == 1
    assert bench.delivery.log == []
    assert "reset" not in bench.source.calls


def test_nothing_is_sent_once_the_lease_has_run_out():
    """The clock passes the lease in the middle of a batch, as it does for a process that was frozen there."""
    bench = Bench()
    now = [0.0]
    bench.term = Term(uuid.uuid4(), lease_until=1.0, clock=lambda: now[0])
    bench.loop._term = bench.term
    bench.table.insert(*[row(n, f"k{n}") for n in range(1, 11)])

    def thaw(sending):
        if sending[0] == 3:
            now[0] = 2.0

    bench.delivery.before_send = thaw
    bench.run(until=lambda: False)
    assert bench.term.ended is TermEnd.FENCED
    assert bench.delivery.log == []
    assert len(bench.table.rows) == 10


def test_at_most_the_window_is_in_flight():
    bench = Bench(max_in_flight_records=7, mark_query_records=5)
    bench.table.insert(*[row(n, f"k{n}") for n in range(1, 101)])
    peak = 0

    def watch(sending):
        nonlocal peak
        peak = max(peak, bench.loop.in_flight.records)

    bench.delivery.before_send = watch
    bench.run()
    assert 0 < peak <= 7
    assert bench.table.ids == []


def test_a_mark_that_waits_until_the_term_is_over_takes_nothing():
    """I6: a process frozen between the question and the statement would take its successor's rows when it thaws."""
    bench = Bench()
    bench.table.insert(row(1, "a"))
    asked = []

    class Late:
        def ask(self, call):
            asked.append(call)
            return Future()

    bench.loop._request._source = Late()
    bench.loop._fetch(10)
    bench.source.open(bench.term.leader_id)
    bench.term.end(TermEnd.FENCED)
    assert asked[0](bench.source).rows == []
    assert bench.table.leaders() == {1: None}
