"""The key barrier in batches: nothing lost, nothing of a key twice between two checkpoints, order kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import Page

from harvest_lib.batching.key_barrier import KeyBarrier
from harvest_lib.record import row_bytes

pytestmark = pytest.mark.quick

PLENTY = 100_000
ROUNDS = st.lists(st.tuples(st.lists(st.sampled_from("abcd"), max_size=8), st.booleans()), max_size=12)


def row(record_id, key, value="v"):
    return (record_id, "t", key, value, [], [])


@given(ROUNDS)
def test_every_record_goes_once_in_order_and_one_of_a_key_between_checkpoints(rounds):
    barrier, gone, batch, offered = KeyBarrier(), [], [], []
    for keys, saved in rounds:
        rows = [row(len(offered) + number, key) for number, key in enumerate(keys)]
        offered += rows
        batch += barrier.admit(rows, PLENTY, first=True)
        assert len({each[2] for each in batch}) == len(batch), "a key went twice before its checkpoint was on disk"
        if saved:
            gone, batch = gone + batch, []
            barrier.checkpoint_saved()
        assert sorted([*barrier.deferred_ids, *(each[0] for each in gone + batch)]) == [each[0] for each in offered]
    while barrier.deferred_ids:
        gone, batch = gone + batch, []
        barrier.checkpoint_saved()
        batch = barrier.admit([], PLENTY, first=True)
        assert batch, "what was deferred goes on once the checkpoint is on disk"
    gone += batch
    for key in "abcd":
        ours = [each[0] for each in gone if each[2] == key]
        assert ours == [each[0] for each in offered if each[2] == key]


@given(ROUNDS, st.integers(1, 8))
def test_a_page_is_admitted_as_its_rows_are(rounds, room):
    by_page, by_rows, number = KeyBarrier(), KeyBarrier(), 0
    for keys, saved in rounds:
        rows = [row(number + place, key) for place, key in enumerate(keys)]
        number += len(rows)
        for barrier in (by_page, by_rows) if saved else ():
            barrier.checkpoint_saved()
        waited = [list(barrier.admit((), room, first=True)) for barrier in (by_page, by_rows)]
        found = [list(by_page.admit(Page(rows), room, first=True)), list(by_rows.admit(rows, room, first=True))]
        assert waited[0] == waited[1]
        assert found[0] == found[1]
        assert by_page.deferred_ids == by_rows.deferred_ids
        assert (by_page.is_blocked, by_page.is_waiting) == (by_rows.is_blocked, by_rows.is_waiting)
        assert by_page._sizes == by_rows._sizes


def test_rows_of_a_page_are_made_only_where_they_are_deferred():
    barrier, page = KeyBarrier(), Page([row(number, f"k{number % 9}") for number in range(10)])
    admitted = barrier.admit(page, PLENTY, first=True)
    assert isinstance(admitted, Page)
    assert (admitted.ids, page.made) == ([*range(9)], [row(9, "k0")])
    assert barrier.admit(other := Page([row(10, "k10")]), PLENTY, first=False) is other


def test_rows_of_a_page_are_looked_at_where_one_is_isolated():
    barrier = KeyBarrier()
    barrier.isolated = {1}
    assert barrier.admit(Page([row(0, "a"), row(1, "b")]), PLENTY, first=True) == [row(0, "a")]
    assert barrier.deferred_ids == [1]


def test_what_was_deferred_comes_from_the_source_again():
    barrier = KeyBarrier()
    barrier.admit([row(1, "a"), row(2, "a")], PLENTY, first=True)
    assert barrier.is_blocked
    assert barrier.deferred_ids == [2]
    barrier.begin()
    assert barrier.deferred_ids == []
    assert barrier.admit([row(2, "a")], PLENTY, first=True) == [row(2, "a")]


def test_reading_stops_when_much_was_deferred():
    barrier = KeyBarrier()
    barrier.admit([row(number, "a") for number in range(30_000)], PLENTY, first=True)
    assert barrier.is_full
    assert not barrier.is_waiting
    barrier.checkpoint_saved()
    assert barrier.is_waiting


@given(st.lists(st.lists(st.sampled_from("abcd"), max_size=8), max_size=20), st.integers(1, 6))
def test_the_bytes_of_what_is_deferred_are_known(pages, room):
    barrier, number = KeyBarrier(), 0
    for page in pages:
        rows = [row(number + place, key, value="v" * (number + place)) for place, key in enumerate(page)]
        number += len(page)
        barrier.admit(rows, room, first=True)
        deferred = [*barrier._waiting, *(each for queue in barrier._queues.values() for each in queue)]
        assert barrier._sizes == {each[0]: row_bytes(each) for each in deferred}
        assert barrier._bytes == sum(barrier._sizes.values())
        barrier.checkpoint_saved()


def test_what_is_deferred_is_bounded_by_bytes():
    barrier = KeyBarrier()
    barrier.admit([row(each, "k", value="v" * 1_000_000) for each in range(16)], 100, first=True)
    assert not barrier.is_full
    barrier.admit([row(each, "k", value="v" * 1_000_000) for each in range(16, 18)], 100, first=False)
    assert barrier.is_full
