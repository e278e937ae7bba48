"""Rows in a queue, one by one and by the page: they leave in the order in which they came."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import Page, row

from harvest_lib.record.rows import RowQueue, ids_of

pytestmark = pytest.mark.quick


def rows(first, count):
    return [row(each, "k") for each in range(first, first + count)]


def filled(pieces):
    """Return a queue of pieces, each so many rows, single ones or a page, and the ids in it."""
    queue, number = RowQueue(), 1
    for count, is_page in pieces:
        queue.add(Page(rows(number, count)) if is_page else rows(number, count))
        number += count
    return queue, list(range(1, number))


@given(
    pieces=st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=6),
    taken=st.lists(st.integers(0, 5), max_size=6),
    given_back=st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_whatever_is_added_and_taken_the_order_is_kept(pieces, taken, given_back):
    queue, expected = filled(pieces)
    for count, goes_back in zip(taken, given_back, strict=False):
        some = queue.take(count)
        assert some.ids == ids_of(list(some)) == expected[:count]
        if goes_back:
            queue.give_back(some)
        else:
            expected = expected[count:]
        assert (queue.ids, len(queue), ids_of(list(queue))) == (expected, len(expected), expected)
        assert all(queue.pages), "none is empty"
    assert ids_of(queue.rows) == expected
    assert queue.page is None


def test_the_next_page_is_one_that_nothing_is_before():
    queue, _ = filled([(1, False), (2, True), (3, True)])
    assert queue.page is None
    queue.take(1)
    assert queue.page.ids == [2, 3]
    assert len(queue.pages) == 2


def test_what_is_taken_from_single_rows_is_taken():
    queue, _ = filled([(1, False), (3, True)])
    queue.rows.popleft()
    queue.rows.popleft()
    assert queue.ids == [3, 4]


def test_a_page_stays_one_when_nothing_is_added():
    queue, _ = filled([(3, True), (0, False), (0, True)])
    assert queue.page.ids == [1, 2, 3]
