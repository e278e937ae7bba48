"""The steps of mark-purge/reset by the names that goharvest's document gives them: A1 to A9, B1 to B5."""

import uuid

import pytest
from support.bench import Bench
from support.rows import row

from harvest_lib.events import LeaderRefreshed
from harvest_lib.leadership import TermEnd

pytestmark = pytest.mark.quick


def bench(*rows, **settings):
    made = Bench(**settings)
    made.table.insert(*rows)
    return made.begin()


def flying(made):
    return [sent[0] for _, sent in made.delivery._in_flight]


def refreshed(made):
    return [event.leader_id for event in made.events if isinstance(event, LeaderRefreshed)]


def test_a1_only_a_leader_marks():
    made = Bench()
    made.table.insert(row(1, "a"))
    made.term.end(TermEnd.FENCED)
    made.loop.run()
    assert "fetch" not in made.source.calls
    assert made.table.leaders() == {1: None}


def test_a2_the_flag_is_cleared_before_the_next_mark():
    """Else the batch that is marked next would be dropped as well, and so on for ever."""
    made = bench(row(1, "a"))
    made.delivery.fail = {1: 1}
    made.turns(12)
    assert len(refreshed(made)) == 1, "one failure, one refresh"
    assert made.delivery.sent_ids == [1]


def test_a3_a_mark_takes_the_head_under_the_leader_id():
    made = bench(row(1, "a"), row(2, "b"), row(3, "c"), mark_query_records=2)
    made.delivery.hold = True
    made.turns(1)
    assert made.table.leaders() == {1: made.term.leader_id, 2: made.term.leader_id, 3: None}


def test_a4_the_window_is_drained_before_the_next_record():
    made = bench(*[row(n, f"k{n}") for n in range(1, 5)], max_in_flight_records=2, mark_query_records=4)
    made.delivery.hold = True
    made.turns(5)
    assert flying(made) == [1, 2]
    made.delivery.hold, made.delivery.land_at_most = False, 1
    made.turns(1)
    made.delivery.hold = True
    made.turns(5)
    assert flying(made) == [2, 3]


def test_a5_the_barrier_of_a_key_is_drained_before_its_next_record():
    made = bench(row(1, "a"), row(2, "a"), row(3, "b"))
    made.delivery.hold = True
    made.turns(5)
    assert flying(made) == [1, 3]


def test_a6_a_record_sent_is_counted_as_in_flight():
    made = bench(row(1, "a"), row(2, "b"))
    made.delivery.hold = True
    assert made.loop.in_flight.records == 0
    made.turns(3)
    assert made.loop.in_flight.records == 2


def test_a7_a_record_sent_raises_the_barrier_of_its_key():
    made = bench(row(1, "a"), row(2, "b"))
    made.delivery.hold = True
    made.turns(3)
    assert sorted(made.loop.in_flight.keys) == ["a", "b"]


def test_a8_a_record_is_published_without_waiting_for_it():
    made = bench(row(1, "a"))
    made.delivery.hold = True
    made.turns(3)
    assert flying(made) == [1]
    assert made.table.ids == [1], "nothing is purged before it is acknowledged"


def fail_in_the_middle():
    """Of 1 to 4 of one key and 5 of another, 1 fails while the rest of the batch waits."""
    made = bench(*[row(n, "a") for n in range(1, 5)], row(5, "b"))
    made.delivery.fail = {1: 1}
    return made


def test_a9_after_a_failure_the_batch_is_dropped_and_marked_again_under_a_new_leader_id():
    made = fail_in_the_middle()
    first = made.loop.leader_id
    made.delivery.before_send = lambda sending: seen.append((sending[0], made.loop.leader_id))
    seen = []
    made.turns(30)
    (second,) = refreshed(made)
    assert made.loop.leader_id == second != first
    assert seen == [(1, first), (5, first), (1, second), (2, second), (3, second), (4, second)]
    assert made.table.rows == {}


@pytest.mark.parametrize("call", ["fetch", "reset"])
def test_a9_an_error_of_unknown_outcome_does_the_same(call):
    """The server may have marked, or not: only another leader id tells."""
    made = fail_in_the_middle()
    called, lost = made.source._answered, []

    def answered(name):
        if name == call and not lost:
            lost.append(name)
            made.source.lost_answers = 1
        called(name)

    made.source._answered = answered
    made.turns(40)
    assert lost
    assert refreshed(made)
    assert made.loop.leader_id == refreshed(made)[-1]
    assert made.table.rows == {}
    assert [n for n in made.delivery.sent_ids if n != 5] == [1, 2, 3, 4]


def test_b1_what_was_delivered_is_purged():
    made = bench(row(1, "a"), row(2, "b"))
    made.turns(5)
    assert made.table.ids == []


def watch_reset(made):
    """Note what can be seen while a reset is asked."""
    seen, original = [], made.source.reset

    def reset(ids):
        seen.append((list(ids), made.loop._force_remark, made.loop.in_flight.records, made.loop.in_flight.keys))
        original(ids)

    made.source.reset = reset
    return seen


def one_failure():
    made = bench(row(1, "a"), row(2, "a"))
    made.delivery.fail = {1: 1}
    return made


def test_b2_what_failed_is_reset():
    made = one_failure()
    watch_reset(made)
    leaders = []
    made.source.open = lambda leader_id: leaders.append(made.table.leaders())
    made.turns(6)
    assert leaders[0] == {1: None, 2: made.term.leader_id}


def test_b3_the_flag_is_raised_after_the_reset():
    made = one_failure()
    seen = watch_reset(made)
    made.turns(3)
    assert [(ids, flag) for ids, flag, _, _ in seen] == [([1], False)]
    made.turns(1)
    assert made.loop._force_remark or refreshed(made)


def test_b4_b5_the_barrier_is_lowered_after_the_reset():
    """Lowered before it, the next record of the key could leave while the one that failed is still to be sent."""
    made = one_failure()
    seen = watch_reset(made)
    made.turns(3)
    assert [(count, keys) for _, _, count, keys in seen] == [(1, ["a"])]
    made.turns(1)
    assert made.loop.in_flight.records == 0
    assert made.loop.in_flight.keys == []


def test_b4_b5_the_barrier_is_lowered_after_the_purge():
    made = bench(row(1, "a"), row(2, "a"))
    fetch, seen = made.source.fetch, []

    def purge(limit, delivered=()):
        if delivered:
            seen.append((list(delivered), made.loop.in_flight.records, made.loop.in_flight.keys))
        return fetch(limit, delivered)

    made.source.fetch = purge
    made.turns(8)
    assert seen == [([1], 1, ["a"]), ([2], 1, ["a"])]
    assert made.loop.in_flight.records == 0


def test_a_leader_id_is_never_used_again():
    made = bench(row(1, "a"))
    made.delivery.fail = {1: 5}
    made.turns(60)
    known = [made.term.leader_id, *refreshed(made)]
    assert len(set(known)) == len(known) == 6
    assert all(isinstance(leader_id, uuid.UUID) for leader_id in known)
