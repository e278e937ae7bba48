"""A batch under the key barrier of which some records failed: the rest counts as delivered."""

import pytest
from support.batches import BatchRuns
from support.rows import row

from harvest_lib.batching import batch as batch_module
from harvest_lib.delivery import BatchFailed
from harvest_lib.harvester.observers.measures import HarvestMeasures

pytestmark = pytest.mark.quick


class Runs(BatchRuns):
    """Loops of which one batch fails, for the records of `failed` alone; `fate` may change what is known of it."""

    def __init__(self, *failed, fate=None):
        super().__init__(one_per_key=True)
        self.table.insert(*[row(number, f"k{number}") for number in range(1, 6)], row(6, "k2"))
        self.delivery.is_exactly_once = False
        commit, keys = self.delivery.commit, {f"k{number}".encode() for number in failed}

        def commit_partly(checkpoint, may_send, /):
            self.delivery.commit = commit
            batch, self.delivery._batch = self.delivery._batch, []
            self.kafka.log += [each for each in batch if each[2].encode() not in keys]
            self.delivery.failed_keys = keys
            if fate is not None:
                fate(self.delivery)
            return BatchFailed(reason="injected")

        self.delivery.commit = commit_partly


def test_only_those_that_failed_are_sent_again_and_before_later_ones_of_their_key():
    runs = Runs(2, 4)
    runs.run()
    assert runs.kafka.ids == [1, 3, 5, 2, 4, 6]
    assert runs.delivered == 6


def test_where_all_failed_all_are_sent_again():
    runs = Runs(1, 2, 3, 4, 5)
    runs.run()
    assert runs.kafka.ids == [1, 2, 3, 4, 5, 6]


def unknown(delivery):
    delivery.failed_keys = None


def another(delivery):
    delivery.failed_keys = {b"k2", b"of another batch"}


@pytest.mark.parametrize("fate", [unknown, another])
def test_where_it_is_not_known_which_failed_all_are_sent_again(fate):
    runs = Runs(2, fate=fate)
    runs.run()
    assert runs.kafka.ids == [1, 3, 4, 5, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("failed", "fate", "expected"), [((2, 4), None, 0), ((2,), unknown, 5), ((1, 2, 3, 4, 5), None, 5)]
)
def test_only_records_whose_outcome_is_unknown_count_as_possible_duplicates(failed, fate, expected):
    runs, measures = Runs(*failed, fate=fate), HarvestMeasures()
    runs.observers = [measures.shard(0)]
    runs.run()
    assert sum(measures.possible_duplicates.read().values()) == expected


def test_while_records_may_still_arrive_nothing_counts():
    runs = Runs(2, fate=lambda delivery: setattr(delivery, "leaves_behind", True))
    loop = runs.loop()
    loop.run()
    assert runs.delivered == 0
    assert loop.abandoned == 5


def test_what_a_stop_left_unsent_is_not_lost_when_others_of_the_batch_fail(monkeypatch):
    monkeypatch.setattr(batch_module, "_SLICE", 2)
    runs = Runs(2)
    loop, send = runs.loop(), runs.delivery.send

    def send_and_stop(rows, may_send):
        runs.stopping.set()
        return send(rows, may_send)

    runs.delivery.send = send_and_stop
    loop.run()
    assert (runs.kafka.ids, runs.delivered) == ([1], 1)
    runs.delivery.send = send
    runs.run()
    assert sorted(runs.kafka.ids) == [1, 2, 3, 4, 5, 6]
    assert [each for each in runs.kafka.ids if each in {2, 6}] == [2, 6], "which are of one key"


def test_nothing_of_a_batch_that_failed_is_in_flight():
    runs = Runs(2, 4)
    loop, commit, seen = runs.loop(), runs.delivery.commit, []

    def note(checkpoint, may_send, /):
        seen.append((loop.in_flight, loop.keys_in_flight))
        return commit(checkpoint, may_send)

    runs.delivery.commit = note
    loop.turn()
    assert seen == [(5, ["k1", "k2", "k3", "k4", "k5"])]
    assert (loop.in_flight, loop.keys_in_flight) == (0, [])


def test_what_went_before_a_record_that_the_client_refuses_is_in_flight_until_the_batch_is_given_up():
    runs = BatchRuns(one_per_key=True)
    runs.table.insert(*[row(number, f"k{number}") for number in range(1, 5)])
    runs.delivery.refused = {3: "never"}
    loop, park, seen = runs.loop(), runs.places.add, []

    def note(entries):
        seen.append((loop.in_flight, loop.keys_in_flight))
        return park(entries)

    runs.places.add = note
    loop.turn()
    assert seen == [(2, ["k1", "k2"])]
    assert (loop.in_flight, loop.keys_in_flight) == (0, [])
