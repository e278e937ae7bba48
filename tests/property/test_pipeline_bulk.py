"""A bulk that touches each row once leaves what its messages leave one after the other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvest_lib.pipeline.adaptors.postgres.writer import outcomes
from harvest_lib.pipeline.message import Op, PipelineMessage

pytestmark = pytest.mark.quick

_KEYS = st.integers(0, 2)
_FIELDS = st.dictionaries(st.sampled_from(["a", "b"]), st.integers(0, 9))
_CHANGES = st.tuples(_KEYS, st.sampled_from([Op.INSERT, Op.UPDATE, Op.DELETE]), _FIELDS)
_START = st.dictionaries(_KEYS, _FIELDS)


def one_by_one(table, changes):
    table = {key: dict(row) for key, row in table.items()}
    for key, op, data in changes:
        if op is Op.DELETE:
            table.pop(key, None)
        else:
            table[key] = {**table.get(key, {}), **data}
    return table


def in_bulk(table, changes):
    table = {key: dict(row) for key, row in table.items()}
    for key, outcome in outcomes((key, PipelineMessage(op, 0, "t", data)) for key, op, data in changes).items():
        if outcome.clears:
            table.pop(key, None)
        if outcome.data is not None:
            table[key] = {**table.get(key, {}), **outcome.data}
    return table


@given(_START, st.lists(_CHANGES, max_size=12))
def test_the_outcome_is_that_of_one_after_the_other(table, changes):
    assert in_bulk(table, changes) == one_by_one(table, changes)


@given(_START, st.lists(_CHANGES, max_size=12))
def test_a_second_time_changes_nothing(table, changes):
    once = in_bulk(table, changes)
    assert in_bulk(once, changes) == once
