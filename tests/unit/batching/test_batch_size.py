"""How much is delivered at a time."""

import pytest
from support.rows import row

from harvest_lib.batching.batch_size import BatchSize

pytestmark = pytest.mark.quick


def rows(count, value="v"):
    return [row(each, "k", value=value) for each in range(count)]


def test_a_small_page_does_not_make_the_next_ones_small():
    """More than fits a page takes several statements, when something has come that stood still for a while."""
    size = BatchSize()
    first = size.page
    size.measured(rows(1), 500)
    assert size.page >= first


def test_a_page_of_large_values_makes_the_next_one_small_at_once():
    size = BatchSize()
    size.measured(rows(3, "v" * 100_000), 500)
    assert size.page == 19


def test_pages_grow_under_a_backlog():
    size, pages = BatchSize(), []
    for _ in range(4):
        size.measured(rows(size.page), size.page)
        pages.append(size.page)
    assert pages == [1_000, 2_000, 2_000, 2_000]
