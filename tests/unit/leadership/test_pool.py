"""The identity of a pool, as a process of another version may have published it."""

import pytest

from harvest_lib.leadership.pool import Pool

pytestmark = pytest.mark.quick


def test_what_is_published_comes_back():
    pool = Pool(leadership="neli", group="orders", table="public.outbox")
    assert Pool.of_json(pool.as_json()) == pool


@pytest.mark.parametrize("value", [{"color": "red"}, {"group": 5}, {"group": None, "color": 5}])
def test_what_another_version_adds_or_spells_otherwise_is_left_out(value):
    assert Pool.of_json({"leadership": "neli", **value}) == Pool(leadership="neli")


@pytest.mark.parametrize("value", [None, [], "neli", {}, {"leadership": 5}])
def test_what_is_no_pool_is_none(value):
    assert Pool.of_json(value) is None


def test_text_is_cut():
    assert Pool.of_json({"leadership": "neli", "group": "x" * 5_000}).group == "x" * 300
