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


def filtered(barrier, rows, room=PLENTY, *, first=True):
    return [each for some in barrier.filter(rows, room, first=first) for each in some]


@given(ROUNDS)
def test_every_record_goes_once_in_order_and_one_of_a_key_between_checkpoints(rounds):
    barrier, gone, batch, offered = KeyBarrier(), [], [], []
    for keys, saved in rounds:
        rows = [row(len(offered) + number, key) for number, key in enumerate(keys)]
        offered += rows
        batch += filtered(barrier, rows)
        assert len({each[2] for each in batch}) == len(batch), "a key went twice before its checkpoint was on disk"
        if saved:
            gone, batch = gone + batch, []
            barrier.checkpoint_saved()
        assert sorted([*barrier.deferred_ids, *(each[0] for each in gone + batch)]) == [each[0] for each in offered]
    while barrier.deferred_ids:
        gone, batch = gone + batch, []
        barrier.checkpoint_saved()
        batch = filtered(barrier, [])
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
        waited = [filtered(barrier, (), room) for barrier in (by_page, by_rows)]
        found = [filtered(by_page, Page(rows), room), filtered(by_rows, rows, room)]
        assert sorted(waited[0]) == sorted(waited[1])
        assert sorted(found[0]) == sorted(found[1])
        assert by_page.deferred_ids == by_rows.deferred_ids
        assert (by_page.is_blocked, by_page.is_waiting) == (by_rows.is_blocked, by_rows.is_waiting)


def test_rows_of_a_page_go_as_pages_until_few_of_them_wait():
    barrier, page = KeyBarrier(), Page([row(number, f"k{number % 30}") for number in range(64)])
    for ids in ([*range(30)], [*range(30, 60)]):
        [gone] = (
            barrier.filter((), PLENTY, first=True) if barrier.is_waiting else barrier.filter(page, PLENTY, first=True)
        )
        assert isinstance(gone, Page)
        assert gone.ids == ids
        barrier.checkpoint_saved()
    assert page.made == []
    [gone] = barrier.filter((), PLENTY, first=True)
    assert gone.ids == [60, 61, 62, 63]
    assert barrier._bytes == 0


def test_a_page_of_which_few_rows_wait_is_let_go():
    barrier, page = KeyBarrier(), Page([row(number, f"k{number % 63}") for number in range(64)])
    [gone] = barrier.filter(page, PLENTY, first=True)
    assert (gone.ids, page.made) == ([*range(63)], [row(63, "k0")])
    assert barrier._bytes == row_bytes(row(63, "k0"))
    barrier.checkpoint_saved()
    assert filtered(barrier, ()) == [row(63, "k0")]
    assert barrier._bytes == 0


def test_a_page_of_which_none_waits_goes_as_it_is():
    page = Page([row(10, "k10")])
    assert next(iter(KeyBarrier().filter(page, PLENTY, first=False))) is page


def test_rows_of_several_pages_go_in_one_sequence_once_they_were_made():
    barrier = KeyBarrier()
    for start in (0, 100, 200):
        rows = [row(start + number, f"k{start + number}") for number in range(63)]
        barrier.filter(Page([*rows, row(start + 63, f"k{start}")]), PLENTY, first=False)
    barrier.checkpoint_saved()
    assert list(barrier.filter((), PLENTY, first=True)) == [[row(start + 63, f"k{start}") for start in (0, 100, 200)]]


def test_a_row_of_a_page_that_is_isolated_waits_for_a_batch_of_its_own():
    barrier = KeyBarrier()
    barrier.isolated = {1}
    assert filtered(barrier, Page([row(0, "a"), row(1, "b")])) == [row(0, "a")]
    assert barrier.deferred_ids == [1]
    assert filtered(barrier, ()) == [row(1, "b")]
    assert barrier.is_isolated


def test_what_was_deferred_comes_from_the_source_again():
    barrier = KeyBarrier()
    filtered(barrier, [row(1, "a"), row(2, "a")])
    assert barrier.is_blocked
    assert barrier.deferred_ids == [2]
    barrier.begin()
    assert barrier.deferred_ids == []
    assert filtered(barrier, [row(2, "a")]) == [row(2, "a")]


def test_reading_stops_when_much_was_deferred():
    barrier = KeyBarrier()
    barrier.filter([row(number, "a") for number in range(30_000)], PLENTY, first=True)
    assert barrier.is_full
    assert not barrier.is_waiting
    barrier.checkpoint_saved()
    assert barrier.is_waiting


@given(st.lists(st.lists(st.sampled_from("abcd"), max_size=8), max_size=20), st.integers(1, 6))
def test_the_bytes_of_what_is_deferred_are_known(pages, room):
    barrier, offered = KeyBarrier(), []
    for page in pages:
        rows = [row(len(offered) + place, key, value="v" * place) for place, key in enumerate(page)]
        offered += rows
        barrier.filter(rows, room, first=True)
        deferred = {*barrier.deferred_ids}
        assert barrier._bytes == sum(row_bytes(each) for each in offered if each[0] in deferred)
        barrier.checkpoint_saved()


def test_what_is_deferred_is_bounded_by_bytes():
    barrier = KeyBarrier()
    barrier.filter([row(each, "k", value="v" * 1_000_000) for each in range(16)], 100, first=True)
    assert not barrier.is_full
    barrier.filter([row(each, "k", value="v" * 1_000_000) for each in range(16, 18)], 100, first=False)
    assert barrier.is_full
