"""The window and the key barrier, case by case."""

import pytest
from support.rows import row

from harvest_lib.marking.window import WINDOW_BYTES, KeyBarrierWindow, Window


def ids(rows):
    return [r[0] for r in rows]


def test_only_one_record_of_a_key_is_in_flight():
    flight = KeyBarrierWindow(10)
    flight.offer([row(1, "a"), row(2, "a"), row(3, "b")])
    assert ids(flight.admit()) == [1, 3]
    assert ids(flight.admit()) == []
    assert sorted(flight.keys) == ["a", "b"]


def test_landing_makes_the_next_of_the_key_ready():
    flight = KeyBarrierWindow(10)
    rows = [row(1, "a"), row(2, "a"), row(3, "a")]
    flight.offer(rows)
    for expected in rows:
        assert list(flight.admit()) == [expected]
        flight.settle([expected])
    assert flight.records == flight.pending == 0
    assert flight.keys == []


def test_the_window_bounds_what_is_in_flight():
    flight = KeyBarrierWindow(2)
    flight.offer([row(n, f"k{n}") for n in range(1, 6)])
    first = flight.admit()
    assert ids(first) == [1, 2]
    assert flight.records == 2
    flight.settle([first[1]])
    assert ids(flight.admit()) == [3]


def test_room_counts_what_is_pending_and_what_is_in_flight():
    flight = KeyBarrierWindow(5)
    flight.offer([row(1, "a"), row(2, "a"), row(3, "b")])
    flight.admit()
    assert flight.room == 2
    flight.offer([row(n, "a") for n in range(4, 9)])
    assert flight.room == 0


def test_rows_that_come_back_are_not_sent_twice():
    """Another process marked our rows and we marked them again: in flight, ready or waiting, they are already ours."""
    flight = KeyBarrierWindow(10)
    flight.offer([row(1, "a"), row(2, "a")])
    flight.admit()
    flight.offer([row(3, "b")])
    assert flight.offer([row(1, "a"), row(2, "a"), row(3, "b"), row(4, "c")]) == 1
    assert ids(flight.admit()) == [3, 4]


def test_a_late_row_with_a_low_id_is_taken():
    flight = KeyBarrierWindow(10)
    flight.offer([row(5, "a")])
    assert flight.offer([row(4, "b")]) == 1
    assert sorted(ids(flight.admit())) == [4, 5]


def test_dropping_pending_keeps_the_barrier_up_for_what_is_in_flight():
    flight = KeyBarrierWindow(10)
    flight.offer([row(1, "a"), row(2, "a"), row(3, "b")])
    sent = flight.admit()
    flight.offer([row(4, "c")])
    assert sorted(flight.drop_pending()) == [2, 4]
    flight.offer([row(2, "a"), row(4, "c")])
    assert ids(flight.admit()) == [4], "row 2 waits for row 1 to land"
    flight.settle([sent[0]])
    assert ids(flight.admit()) == [2]


def test_admitted_rows_that_were_not_sent_are_ready_again():
    flight = KeyBarrierWindow(10)
    flight.offer([row(1, "a"), row(2, "b"), row(3, "a")])
    admitted = flight.admit()
    admitted.popleft()  # row 1 was sent
    flight.withdraw(admitted)
    assert (flight.records, flight.pending, flight.keys) == (1, 2, ["a"])
    assert sorted(flight.drop_pending()) == [2, 3]


@pytest.mark.parametrize("make", [Window, KeyBarrierWindow])
def test_there_is_no_room_while_what_is_held_has_many_bytes(make):
    flight = make(1_000)
    rows = [(each, "t", "ab"[each % 2], "v" * (WINDOW_BYTES // 4), [], []) for each in range(1, 5)]
    flight.offer(rows[:3])
    assert flight.room
    flight.offer(rows[3:])
    assert not flight.room
    sent = list(flight.admit())
    flight.settle(sent[:1])
    assert flight.room
    flight.settle(sent[1:])
    flight.drop_pending()
    assert flight._bytes == 0
