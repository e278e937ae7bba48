"""The comparison that the pipeline's demo ends with notices what it is for."""

import pytest
from support.pipeline_files import writer

from harvest_lib.pipeline.message import Op, PipelineMessage
from infra.demo_pipeline import run
from infra.demo_pipeline.destinations import Arrived, differences, in_parquet
from infra.demo_pipeline.process import StateAfterKill

pytestmark = pytest.mark.quick

SOURCE = {1: {"id": 1, "year": 2013, "tailnum": "a"}, 2: {"id": 2, "year": 2013, "tailnum": None}}


def arrived(*offsets, rows=SOURCE):
    return Arrived(rows=rows, times={offset: offsets.count(offset) for offset in offsets})


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (SOURCE, []),
        ({1: SOURCE[1]}, ["2 is missing"]),
        ({**SOURCE, 3: {"id": 3}}, ["3 is not in the source"]),
        ({**SOURCE, 2: {**SOURCE[2], "tailnum": "b"}}, ["2 differs in tailnum"]),
        ({**SOURCE, 2: {"id": 2, "year": 2013}}, ["2 differs in tailnum"]),
        ({**SOURCE, 2: {**SOURCE[2], "more": 1}}, ["2 differs in more"]),
    ],
)
def test_a_row_that_is_missing_too_many_or_another_is_named(rows, says):
    assert differences(SOURCE, arrived(rows=rows)) == says


def test_what_transforms_change_is_no_difference_and_what_they_left_is():
    copied = {key: {"id": key, "aircraft": row["tailnum"]} for key, row in SOURCE.items()}
    assert differences(SOURCE, arrived(rows=copied), run._as_copied) == []
    assert len(differences(SOURCE, arrived(), run._as_copied)) == 2


def test_a_repeat_is_explained_by_kills_that_left_it_unflushed_once_each():
    kills = [StateAfterKill(resumes_at={"lake": 5}, end=8), StateAfterKill(resumes_at={"lake": 7}, end=9)]
    assert run._repeats(arrived(1, 2, 5, 5, 7, 7, 7), "lake", kills) == (3, 0)
    assert run._repeats(arrived(4, 4, 5, 5, 5, 8, 8), "lake", kills) == (4, 2)
    assert run._repeats(arrived(9, 9), "lake", kills) == (1, 1)


def test_the_newest_row_of_each_key_counts_until_it_is_deleted(tmp_path):
    made = writer(tmp_path, format="parquet")
    for offset, (op, key, note) in enumerate(
        [(Op.INSERT, 1, "a"), (Op.INSERT, 2, "b"), (Op.UPDATE, 1, "c"), (Op.DELETE, 2, None)]
    ):
        made.write([PipelineMessage(op, 1, "t", {"id": key, "note": note}, offset=offset)])
    found = in_parquet(tmp_path / "t")
    assert found.rows == {1: {"id": 1, "note": "c"}}
    assert found.times == {0: 1, 1: 1, 2: 1, 3: 1}
