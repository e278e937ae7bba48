"""Parked records that are retried, in the loop in batches on fakes: sent once and in order."""

from functools import partial

import pytest
from support.batches import BatchRuns, assert_in_order, fill, filled, look_again, steps_back
from support.rows import row

pytestmark = pytest.mark.quick

both = pytest.mark.parametrize("one_per_key", [False, True], ids=["any_per_key", "one_per_key"])


@pytest.fixture
def places_asked(monkeypatch):
    """A bench, and what its leader asks of the table of parked ids."""
    runs, asked = BatchRuns(one_per_key=True), []

    def noted(name, call, *values, **named):
        asked.append(name)
        return call(*values, **named)

    for name in ("load", "moved", "due", "release", "add"):
        monkeypatch.setattr(runs.places, name, partial(noted, name, getattr(runs.places, name)))
    return runs, asked


def retried(runs, number, *, keys):
    """Have all records of a bench parked, and retried; return a loop that has sent the first of them."""
    fill(runs, number, keys=keys)
    runs.topics.bad.update(dict.fromkeys(range(1, number + 1), "bad"))
    runs.run()
    assert len(runs.places.rows) == number
    runs.topics.bad.clear()
    runs.places.retry(*range(1, keys + 1))
    loop = runs.loop()
    while not runs.kafka.ids:
        loop.turn()
    return loop


def until_idle(loop):
    while not loop.idle:
        loop.turn()
        look_again(loop)


@pytest.mark.parametrize("lost", [False, True], ids=["not_committed", "committed"])
@both
def test_what_is_retried_comes_once_and_in_order(one_per_key, lost):
    """Also when nobody knows whether the batch was committed: then the checkpoint says so."""
    runs = filled(200, one_per_key=one_per_key)
    runs.topics.bad[5] = "bad"
    loop = runs.run()
    assert runs.places.states == {5: "bad", 55: "held", 105: "held", 155: "held"}
    runs.topics.bad.clear()
    runs.places.retry(5)
    runs.table.insert(*[row(n, f"k{n % 50}") for n in range(201, 301)])
    runs.kafka.broken, runs.kafka.lost = 2, lost
    look_again(loop)
    for _ in range(50):
        loop.turn()
        look_again(loop)
    assert runs.places.rows == {}
    assert_in_order(runs, 300)
    assert runs.kafka.checkpoint.retention_hold is None
    assert runs.kafka.most_of_a_key == 1 or not one_per_key


def test_what_is_retried_of_a_key_is_freed_in_runs(places_asked):
    """One of a key goes at a time, but they are asked for by the hundred, and others of other keys are not kept."""
    runs, asked = places_asked
    fill(runs, 600, keys=6)
    runs.topics.bad.update(dict.fromkeys(range(1, 7), "bad"))
    runs.run()
    assert len(runs.places.rows) == 600
    runs.topics.bad.clear()
    runs.places.retry(*range(1, 7))
    asked.clear()
    runs.kafka.batches.clear()
    runs.run()
    assert runs.places.rows == {}
    assert_in_order(runs, 600)
    assert runs.kafka.most_of_a_key == 1
    assert asked.count("due") <= 4
    assert asked.count("release") <= 3
    assert len(runs.kafka.batches) <= 110, "each key has a hundred"


def test_a_key_with_a_long_run_does_not_keep_another_one():
    runs = BatchRuns(one_per_key=True)
    runs.table.insert(*[row(n, "long" if n <= 1_500 else "short") for n in range(1, 1_511)])
    runs.topics.bad.update({1: "bad", 1_501: "bad"})
    runs.run()
    runs.topics.bad.clear()
    runs.places.retry(1, 1_501)
    runs.run()
    assert runs.places.rows == {}
    assert sorted(runs.kafka.ids) == list(range(1, 1_511))
    assert runs.kafka.ids.index(1_510) < 50
    assert steps_back(runs.kafka.log) == 0


@pytest.mark.parametrize("lost", [False, True], ids=["not_committed", "committed"])
def test_a_run_that_was_freed_survives_its_leader(lost):
    """Unsent records of the run are deferred in the checkpoint, and go first under the next leader."""
    runs = filled(120, keys=3, one_per_key=True)
    runs.topics.bad.update({1: "bad", 2: "bad", 3: "bad"})
    runs.run()
    runs.topics.bad.clear()
    runs.places.retry(1, 2, 3)
    first = runs.loop()
    while len(runs.kafka.ids) < 30:
        first.turn()
    assert runs.places.rows == {}
    deferred = runs.kafka.checkpoint.position["deferred"]
    assert len(deferred) >= 80
    assert runs.kafka.checkpoint.retention_hold == min(deferred), "retention keeps them"
    runs.table.insert(*[row(n, f"k{n % 3}") for n in range(121, 151)])
    runs.kafka.broken, runs.kafka.lost = 2, lost
    runs.run()
    assert_in_order(runs, 150)


@pytest.mark.gate
def test_no_more_is_freed_before_a_run_has_gone():
    """Memory, and the ids in a checkpoint, are bounded by one run."""
    runs = filled(3_000, keys=20, one_per_key=True)
    first = range(1, 21)
    runs.topics.bad.update(dict.fromkeys(first, "bad"))
    runs.run()
    runs.topics.bad.clear()
    runs.places.retry(*first)
    loop, most = runs.loop(), 0
    while not loop.idle:
        loop.turn()
        look_again(loop)
        most = max(most, len(loop._batch.barrier.deferred_ids))
    assert sorted(runs.kafka.ids) == list(range(1, 3_001))
    assert 0 < most <= 2_000


@pytest.mark.parametrize("keys", [6_000, 2_000])
def test_what_is_parked_is_not_read_whole_for_each_batch_of_what_is_retried(places_asked, keys):
    runs, asked = places_asked
    loop = retried(runs, 6_000, keys=keys)
    asked.clear()
    until_idle(loop)
    assert runs.places.rows == {}
    assert_in_order(runs, 6_000)
    assert asked.count("release") >= 3
    assert asked.count("load") + asked.count("moved") + asked.count("due") <= 3


@both
@pytest.mark.parametrize("keys", [1_200, 400])
def test_while_others_are_sent_again_a_key_is_held_as_long_as_any_of_it_is_parked(keys, one_per_key):
    runs = BatchRuns(one_per_key=one_per_key)
    loop = retried(runs, 1_200, keys=keys)
    first = runs.kafka.ids[0]
    more = any(each > first and each % keys == first % keys for each in runs.places.rows)
    assert more == (keys == 400)
    runs.table.insert(row(1_201, f"k{first % keys}"), row(1_202, f"k{first % keys}"))
    loop.turn()
    assert (1_201 in runs.places.rows) == more
    for each in range(1_203, 1_223):
        runs.table.insert(row(each, f"k{first % keys}"))
        loop.turn()
    until_idle(loop)
    assert runs.places.rows == {}
    assert_in_order(runs, 1_222)


def test_while_others_are_sent_again_what_was_held_since_keeps_its_key():
    runs = BatchRuns()
    loop = retried(runs, 6_000, keys=6_000)
    runs.table.insert(row(6_001, "k1000"))
    while 1_000 not in runs.kafka.ids:
        assert len(runs.kafka.ids) < 1_000
        loop.turn()
    assert 6_001 in runs.places.rows
    assert len(runs.places.rows) > 1_000, "others are still to be sent"
    runs.table.insert(row(6_002, "k1000"))
    until_idle(loop)
    assert_in_order(runs, 6_002)


def test_what_is_dropped_while_others_are_sent_again_is_not_sent():
    runs = BatchRuns()
    loop = retried(runs, 1_200, keys=1_200)
    del runs.places.rows[1_200], runs.places.rows[1_100]
    until_idle(loop)
    assert sorted(runs.kafka.ids) == sorted(set(range(1, 1_201)) - {1_100, 1_200})


def test_a_leader_that_dies_before_it_forgets_what_it_retried_repeats_nothing():
    runs = filled(60)
    runs.topics.bad[5] = "bad"
    runs.run()
    runs.topics.bad.clear()
    runs.places.retry(5)

    def die(ids):
        raise InterruptedError

    runs.places.before_release = die
    with pytest.raises(InterruptedError):
        runs.run()
    assert runs.kafka.ids.count(5) == 1
    assert 5 in runs.places.rows
    runs.places.before_release = None
    runs.table.insert(row(61, "k5"))
    runs.run()
    assert [each for each in runs.kafka.ids if each % 50 == 5 or each == 61] == [5, 55, 61]
    assert runs.places.rows == {}


def test_a_retry_that_kafka_refuses_is_parked_again_and_the_others_go():
    runs = filled(100, keys=100)
    bad = range(10, 20)
    runs.topics.bad.update(dict.fromkeys(bad, "bad"))
    runs.run()
    runs.topics.bad.clear()
    runs.kafka.poison[15] = "too large"
    runs.places.retry(*bad)
    runs.run()
    assert runs.places.states == {15: "too large"}
    assert runs.places.rows[15][3] is False
    assert sorted(runs.kafka.ids) == sorted(set(range(1, 101)) - {15})


@both
def test_a_retry_that_is_refused_before_it_is_sent_keeps_holding_its_key(one_per_key):
    runs = filled(100, one_per_key=one_per_key)
    runs.topics.bad.update({5: "bad", 6: "bad"})
    runs.run()
    runs.topics.bad = {5: "still bad"}
    runs.places.retry(5, 6)
    runs.run()
    assert runs.places.states == {5: "still bad", 55: "held"}
    assert {6, 56} <= set(runs.kafka.ids)


def test_what_is_gone_from_the_outbox_is_forgotten():
    runs = filled(100)
    runs.topics.bad[5] = "bad"
    runs.run()
    del runs.table.rows[5]
    runs.places.retry(5)
    runs.run()
    assert runs.places.rows == {}
    assert runs.kafka.ids[-1] == 55


def test_nothing_is_sent_again_before_the_source_has_passed_it():
    """Parked at once, before the batch that passes it: were it sent and forgotten, the source would bring it again."""
    runs = filled(2_500)
    runs.delivery.refused[2_000] = "too large"
    loop = runs.loop()
    while 2_000 not in runs.places.rows:
        loop.turn()
    runs.delivery.refused.clear()
    runs.places.retry(2_000)
    while not loop.idle:
        loop.turn()
    assert_in_order(runs, 2_500)


@both
def test_a_stop_before_retried_records_are_sent_loses_none(one_per_key):
    """They are forgotten as parked, and travel in the checkpoint until they go."""
    runs = filled(20, keys=5, one_per_key=one_per_key)
    runs.topics.bad = {5: "no topic"}
    loop = runs.run()
    runs.topics.bad = {}
    runs.places.retry(5)
    find = loop._batch.redelivery.next

    def find_and_stop(barrier):
        found = find(barrier)
        if found is not None:
            runs.stopping.set()
        return found

    loop._batch.redelivery.next = find_and_stop
    look_again(loop)
    loop.run()
    assert loop.abandoned == 0
    assert 5 not in runs.kafka.ids
    runs.run()
    assert sorted(runs.kafka.ids) == list(range(1, 21))
    assert steps_back([each for each in runs.kafka.log if each[0] % 5 == 0]) == 0
