"""The path of a task: equal for its tries, another one after a clear, for each mapped index, and never too long."""

from types import SimpleNamespace

import pytest

from harvest_lib.airflow.tasks import task_path

pytestmark = pytest.mark.quick


def instance(**changes):
    return SimpleNamespace(**{"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1, "max_tries": 2, **changes})


def test_a_clear_changes_the_path_and_an_edited_number_of_retries_does_not():
    first = task_path(instance(try_number=1), with_clears=True)
    assert task_path(instance(try_number=2, task=SimpleNamespace(retries=9)), with_clears=True) == first == "d/r/t/2"
    assert task_path(instance(max_tries=3), with_clears=True) == "d/r/t/3"
    assert task_path(instance(max_tries=3)) == task_path(instance()) == "d/r/t"


def test_a_mapped_task_has_a_path_for_each_index():
    assert [task_path(instance(map_index=each)) for each in (0, 1)] == ["d/r/t/0", "d/r/t/1"]


def test_long_paths_are_cut_and_stay_different():
    found = [task_path(instance(run_id="r" * 250, task_id=each)) for each in "ab"]
    assert {len(each) for each in found} == {200}
    assert found[0] != found[1]
