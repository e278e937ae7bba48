"""The ranges of offsets of a topic have no gaps and do not overlap."""

import dagster as dg
import pytest

from dagster_harvest.topic_ends import OFFSETS, ends_of, passed, ranges

pytestmark = pytest.mark.quick


def test_ranges_begin_where_the_last_ended():
    before = {"0": 5, "1": 7}
    found = ranges(before, {"0": 9, "1": 7, "10": 2, "2": 0})
    assert found == {"0": [5, 9], "1": [7, 7], "2": [0, 0], "10": [0, 2]}
    assert list(found) == ["0", "1", "2", "10"]
    assert passed(found) == 6


def test_a_partition_that_did_not_answer_keeps_its_end():
    first = ranges({}, {"0": 5, "1": 7})
    second = ranges({number: end for number, (_, end) in first.items()}, {"0": 8})
    assert second == {"0": [5, 8], "1": [7, 7]}


def test_a_log_that_was_made_anew_begins_at_its_beginning():
    assert ranges({"0": 9}, {"0": 3}) == {"0": [0, 3]}


def test_the_ends_are_read_from_the_last_materialization():
    metadata = {OFFSETS: dg.MetadataValue.json(ranges({}, {"0": 5, "1": 7}))}
    assert ends_of(metadata) == {"0": 5, "1": 7}
    assert ends_of({}) == {}


@pytest.mark.parametrize("offsets", [[1, 2], {"0": 5}, {"0": [1, 2, 3]}, "5", None])
def test_offsets_of_another_form_are_no_ends(offsets):
    assert ends_of({OFFSETS: dg.MetadataValue.json(offsets)}) == {}
