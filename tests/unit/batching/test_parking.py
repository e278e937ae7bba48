"""Records that can never be sent, in the loop in batches on fakes: parked before they are passed, and found quickly."""

import pytest
from support.batches import BatchRuns, filled, steps_back
from support.rows import row

from harvest_lib.delivery import BatchFailed
from harvest_lib.errors import RecordError
from harvest_lib.leadership import TermEnd

pytestmark = pytest.mark.quick

both = pytest.mark.parametrize("one_per_key", [False, True], ids=["any_per_key", "one_per_key"])


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


def test_dropping_lets_go_of_what_is_behind_up_to_the_next_that_is_parked():
    runs = filled(200)
    runs.topics.bad.update({5: "bad", 105: "bad"})
    runs.run()
    runs.places.rows[105] = [("t", "k5"), "bad", False, False]  # as under another policy before
    del runs.places.rows[5]
    runs.run()
    assert runs.places.states == {105: "bad", 155: "held"}
    assert 55 in runs.kafka.ids
