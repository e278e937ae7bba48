"""The end of a batch under the key barrier: with a page that is mostly deferred, and without new rows if many wait."""

import pytest
from support.batches import BatchRuns
from support.rows import row

pytestmark = pytest.mark.quick


def turns_of(runs):
    """Harvest until there is nothing to do; yield the loop after each batch."""
    loop = runs.loop()
    while not loop.idle:
        loop.turn()
        yield loop


def test_few_ids_are_deferred_though_much_could_be_read():
    runs = BatchRuns(one_per_key=True)
    runs.table.insert(*(row(number, f"k{number % 1_000}") for number in range(1, 15_001)))
    most = max(len(loop._batch.barrier.deferred_ids) for loop in turns_of(runs))
    assert sorted(runs.kafka.ids) == list(range(1, 15_001))
    assert most <= 4_000, "each of them is named in every checkpoint until it goes"
    assert len(runs.kafka.batches) <= 30, "a batch has most of the keys all the same"


def test_a_batch_goes_on_while_little_is_deferred():
    runs = BatchRuns(one_per_key=True)
    runs.table.insert(*(row(number, f"k{number % 9_000}") for number in range(1, 9_001)))
    for _ in turns_of(runs):
        pass
    assert len(runs.kafka.batches) <= 5


def test_others_go_on_while_much_of_a_few_keys_waits():
    """Of few keys a batch without new rows would be small, and the rest would wait for all of theirs."""
    runs = BatchRuns(one_per_key=True)
    burst = [row(number, f"busy {number % 50}") for number in range(1, 4_001)]
    runs.table.insert(*burst, *(row(4_000 + number, f"other {number}") for number in range(1, 1_001)))
    for _ in turns_of(runs):
        if runs.kafka.ids.count(5_000):
            break
    assert len(runs.kafka.batches) <= 20
    assert len(runs.kafka.ids) < 5_000
