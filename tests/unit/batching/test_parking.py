"""Records that can never be sent, in the loop in batches on fakes: parked before they are passed, and found quickly."""

from functools import partial

import pytest
from support.batches import BatchRuns, look_again
from support.rows import row

from harvest_lib.delivery import BatchFailed
from harvest_lib.errors import RecordError
from harvest_lib.leadership import TermEnd

pytestmark = pytest.mark.quick

both = pytest.mark.parametrize("one_per_key", [False, True], ids=["any_per_key", "one_per_key"])


def fill(runs, number, *, keys=50):
    runs.table.insert(*[row(n, f"k{n % keys}") for n in range(1, number + 1)])


def filled(number, *, keys=50, **settings):
    runs = BatchRuns(**settings)
    fill(runs, number, keys=keys)
    return runs


def steps_back(log):
    last, count = {}, 0
    for record_id, _, key, *_ in log:
        count += record_id < last.get(key, 0)
        last[key] = record_id
    return count


def assert_in_order(runs, last):
    """Assert that all records up to the last went once, those of a key in order."""
    assert sorted(runs.kafka.ids) == list(range(1, last + 1))
    assert steps_back(runs.kafka.log) == 0


@pytest.fixture(params=["before_it_is_sent", "by_the_client", "by_kafka", "by_kafka_when_alone"])
def refuse(request):
    """Make records of a bench ones that can never be sent."""

    def mark(runs, *ids, reason="bad"):
        found = {
            "before_it_is_sent": runs.topics.bad,
            "by_the_client": runs.delivery.refused,
        }.get(request.param, runs.kafka.poison)
        found.update(dict.fromkeys(ids, reason))
        if request.param == "by_kafka_when_alone":
            runs.topics.large.update(ids)

    return mark


@both
def test_each_refused_record_costs_its_key_only(refuse, one_per_key):
    runs = filled(1_200, one_per_key=one_per_key)
    refuse(runs, 7, 500, 501, 1_199)
    runs.run()
    runs.end()
    bad = {7, 500, 501, 1_199}
    first = {each % 50: each for each in sorted(bad, reverse=True)}
    held = {n for n in range(1, 1_201) if n > first.get(n % 50, n)}
    assert {record_id for record_id, state in runs.places.states.items() if state == "held"} == held
    assert {record_id for record_id, state in runs.places.states.items() if state == "bad"} == bad - held
    assert sorted(runs.kafka.ids) == sorted(set(range(1, 1_201)) - held - bad)
    assert steps_back(runs.kafka.log) == 0
    assert runs.kafka.checkpoint.retention_hold == 7
    assert runs.store.mirror.retention_hold == 7


@both
def test_a_key_is_held_in_its_topic_alone(refuse, one_per_key):
    """A writer of one topic cannot hold back what others write to theirs."""
    runs = BatchRuns(one_per_key=one_per_key)
    runs.table.insert(*[row(n, "account-1", topic="orders" if n % 2 else "payments") for n in range(1, 9)])
    refuse(runs, 3)
    runs.run()
    runs.end()
    assert {record_id for record_id, state in runs.places.states.items() if state == "held"} == {5, 7}
    assert sorted(runs.kafka.ids) == [1, 2, 4, 6, 8]
    runs.topics.bad.clear()
    runs.kafka.poison.clear()
    runs.delivery.refused.clear()


@both
def test_under_skip_the_key_goes_on(refuse, one_per_key):
    runs = filled(1_000, policy="skip", one_per_key=one_per_key)
    refuse(runs, 300, 350)
    runs.run()
    assert runs.places.states == {300: "bad", 350: "bad"}
    assert sorted(runs.kafka.ids) == sorted(set(range(1, 1_001)) - {300, 350})


def test_under_stop_the_harvester_ends(refuse):
    runs = filled(100, policy="stop")
    refuse(runs, 50)
    with pytest.raises(RecordError, match="record 50 "):
        runs.run()
    assert runs.places.rows == {}
    assert 50 not in runs.kafka.ids


def test_a_refused_record_is_alone_after_a_few_batches():
    runs = filled(12_000)
    runs.kafka.poison[9_000] = "bad"
    runs.run()
    assert sorted({*range(1, 12_001)} - {*runs.kafka.ids}) == sorted(runs.places.rows)
    failed = [place for place, (_, went) in enumerate(runs.kafka.batches) if not went]
    assert failed[-1] - failed[0] <= 14, "halves of halves"
    assert runs.kafka.batches[failed[-1]][0] == 1
    assert len(runs.kafka.batches) < failed[-1] + 20, "and afterwards batches grow again"


def test_what_may_be_refused_travels_alone_and_what_need_not_be_is_kept():
    """Nothing fails but the one batch that has to."""
    runs = filled(1_500)
    runs.topics.large.update({500, 501, 900})
    runs.kafka.poison[501] = "bad"
    runs.run()
    assert runs.kafka.batches.count((1, True)) >= 2
    assert [batch for batch in runs.kafka.batches if not batch[1]] == [(1, False)]
    assert runs.places.states[501] == "bad"
    assert {500, 900} <= set(runs.kafka.ids)


def test_nothing_is_passed_that_is_not_written_down():
    """I8: the write comes first, and a leader that was fenced meanwhile commits nothing."""
    runs = filled(10)
    runs.topics.bad[5] = "bad"
    runs.places.fenced = True
    loop = runs.loop()
    loop.turn()
    assert runs.kafka.ids == []
    assert runs.term.ended is TermEnd.FENCED


def test_a_batch_that_is_repeated_passes_over_what_is_parked():
    runs = filled(100)
    runs.topics.bad[5] = "bad"
    runs.kafka.broken = 3
    runs.run()
    assert runs.places.states == {5: "bad", 55: "held"}
    assert sorted(runs.kafka.ids) == sorted(set(range(1, 101)) - {5, 55})


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


def test_dropping_lets_go_of_what_is_behind_up_to_the_next_that_is_parked():
    runs = filled(200)
    runs.topics.bad.update({5: "bad", 105: "bad"})
    runs.run()
    runs.places.rows[105] = [("t", "k5"), "bad", False, False]  # as under another policy before
    del runs.places.rows[5]
    runs.run()
    assert runs.places.states == {105: "bad", 155: "held"}
    assert 55 in runs.kafka.ids


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


def test_a_topic_that_nobody_names_is_found_by_smaller_batches():
    """A transaction is refused as a whole for one of its topics, and does not say for which."""
    runs = BatchRuns()
    runs.table.insert(*(row(n, f"k{n}", topic="bad" if n == 700 else "t") for n in range(1, 1_001)))
    commit = runs.delivery.commit

    def refuse_unless_it_is_known(checkpoint, may_send):
        if "bad" in {row[1] for row in runs.delivery._batch}:
            runs.kafka.batches.append((len(runs.delivery._batch), False))
            return BatchFailed(reason="not authorized", unnamed=True)
        return commit(checkpoint, may_send)

    runs.delivery.commit = refuse_unless_it_is_known
    runs.topics.blame = lambda topic, reason: runs.topics.bad.update({700: f"{topic}: {reason}"})
    runs.run()
    assert runs.places.states == {700: "bad: not authorized"}
    assert runs.kafka.ids == [number for number in range(1, 1_001) if number != 700]
    assert len([went for _, went in runs.kafka.batches if not went]) <= 11, "as many as the number has binary digits"


@both
@pytest.mark.parametrize("page", [1, 2, 50])
def test_one_that_is_too_large_for_company_has_none(one_per_key, page):
    """It goes alone, with the next records read already or not: else they would be refused with it."""
    runs = filled(40, keys=40, one_per_key=one_per_key)
    runs.topics.large.update({7, 8, 30})
    loop = runs.loop()
    sizes = {}
    committed = runs.delivery.commit
    runs.delivery.commit = lambda *given: (
        sizes.update({row[0]: len(runs.delivery._batch) for row in runs.delivery._batch}),
        committed(*given),
    )[1]
    runs.ports.size.page, runs.ports.size.measured = page, lambda *_: 0
    while not loop.idle:
        loop.turn()
    assert sorted(runs.kafka.ids) == list(range(1, 41))
    assert {record_id for record_id, size in sizes.items() if size == 1} >= {7, 8, 30}
    assert max(sizes.values()) > 1


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
