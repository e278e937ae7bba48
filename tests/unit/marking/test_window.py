"""The window and the key barrier, case by case."""

import pytest
from support.rows import Page, row

from harvest_lib.marking.window import WINDOW_BYTES, KeyBarrierWindow, Window

pytestmark = pytest.mark.quick


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
        flight.settle([expected[0]])
    assert flight.records == flight.pending == 0
    assert flight.keys == []


def test_the_window_bounds_what_is_in_flight():
    flight = KeyBarrierWindow(2)
    flight.offer([row(n, f"k{n}") for n in range(1, 6)])
    assert ids(flight.admit()) == [1, 2]
    assert flight.records == 2
    flight.settle([2])
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
    flight.admit()
    flight.offer([row(4, "c")])
    assert sorted(flight.drop_pending()) == [2, 4]
    flight.offer([row(2, "a"), row(4, "c")])
    assert ids(flight.admit()) == [4], "row 2 waits for row 1 to land"
    flight.settle([1])
    assert ids(flight.admit()) == [2]


def test_admitted_rows_that_were_not_sent_are_ready_again():
    flight = KeyBarrierWindow(10)
    flight.offer([row(1, "a"), row(2, "b"), row(3, "a")])
    admitted = flight.admit()
    admitted.take(1)  # row 1 was sent
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
    sent = ids(flight.admit())
    flight.settle(sent[:1])
    assert flight.room
    flight.settle(sent[1:])
    flight.drop_pending()
    assert flight._bytes == 0


def page(first, last, value="v"):
    return Page(row(each, f"k{each % 3}", value) for each in range(first, last + 1))


def test_a_page_stays_one_until_it_is_settled():
    flight = Window(6)
    pages = [page(1, 4), page(5, 9)]
    assert [flight.offer(each) for each in pages] == [4, 5]
    assert (flight.pending, flight.room) == (9, 0)
    admitted = flight.admit()
    assert [each.ids for each in admitted.pages] == [[1, 2, 3, 4], [5, 6]]
    assert (flight.records, flight.pending, sorted(flight.keys)) == (6, 3, ["k0", "k1", "k2"])
    admitted.take(5)  # were sent
    flight.withdraw(admitted)
    assert (flight.records, flight.pending, flight.admit().ids) == (5, 4, [6])
    flight.settle([1, 2, 4, 5])
    assert (flight.records, sorted(flight.keys)) == (2, ["k0"])
    assert flight.drop_pending() == [7, 8, 9]
    flight.settle([3, 6])
    assert (flight.records, flight.pending, flight.room, flight.keys, flight._bytes) == (0, 0, 6, [], 0)
    assert {each[0] for one in pages for each in one.made} <= {1, 4, 5, 9}, "only the ends were read"


def test_of_a_page_that_comes_back_only_what_is_not_held_is_taken():
    flight = Window(10)
    flight.offer(page(1, 4))
    flight.admit()
    flight.settle([2])
    assert flight.offer(page(1, 6)) == 3
    assert flight.admit().ids == [2, 5, 6]


def test_rows_leave_in_the_order_of_pages_and_single_ones():
    flight = Window(100)
    for offered in ([row(1, "k")], page(2, 4), page(5, 6), [row(7, "k")], page(8, 9)):
        flight.offer(offered)
    assert flight.admit().ids == list(range(1, 10))


def test_of_a_page_what_is_of_a_key_is_taken_back():
    flight = Window(100)
    flight.offer(page(1, 6))
    assert ids(flight.take_back({("t", "k1")})) == [1, 4]
    assert flight.admit().ids == [2, 3, 5, 6]


def test_there_is_no_room_while_pages_that_are_held_have_many_bytes():
    flight = Window(1_000)
    flight.offer(page(1, 4, "v" * (WINDOW_BYTES // 4)))
    assert not flight.room
    flight.admit()
    flight.settle([1, 2, 3])
    assert not flight.room, "the page is in memory as long as one of its rows is in flight"
    flight.settle([4])
    assert flight.room


def test_under_the_barrier_a_page_is_rows():
    flight = KeyBarrierWindow(10)
    flight.offer(page(1, 5))
    assert ids(flight.admit()) == [1, 2, 3]
    flight.settle([1])
    assert ids(flight.admit()) == [4]


def test_under_the_barrier_each_row_of_a_page_is_held_by_itself():
    flight = KeyBarrierWindow(1_000)
    flight.offer(Page(row(each, f"k{each}", "v" * (WINDOW_BYTES // 4)) for each in range(1, 6)))
    flight.admit()
    flight.settle([5])
    assert not flight.room
    flight.settle([1])
    assert flight.room
