"""What can never be sent, in the loop by laps over fakes: set aside before it is passed, and found out quickly."""

import pytest
from support.batches import BatchRuns
from support.rows import row

from harvest_lib.delivery import BatchFailed
from harvest_lib.errors import RecordError
from harvest_lib.leadership import TermEnd

both = pytest.mark.parametrize("one_per_key", [False, True], ids=["any_per_key", "one_per_key"])


def fill(laps, number, *, keys=50):
    laps.table.insert(*[row(n, f"k{n % keys}") for n in range(1, number + 1)])


def steps_back(log):
    last, count = {}, 0
    for record_id, _, key, *_ in log:
        count += record_id < last.get(key, 0)
        last[key] = record_id
    return count


@pytest.fixture(params=["before_it_is_sent", "by_the_client", "by_kafka", "by_kafka_when_alone"])
def refuse(request):
    """Make records of a bench ones that can never be sent."""

    def mark(laps, *ids, reason="bad"):
        found = {
            "before_it_is_sent": laps.topics.bad,
            "by_the_client": laps.delivery.refused,
        }.get(request.param, laps.kafka.poison)
        found.update(dict.fromkeys(ids, reason))
        if request.param == "by_kafka_when_alone":
            laps.topics.large.update(ids)

    return mark


@both
def test_each_refused_record_costs_its_key_only(refuse, one_per_key):
    laps = BatchRuns(one_per_key=one_per_key)
    fill(laps, 1_200)
    refuse(laps, 7, 500, 501, 1_199)
    laps.run()._end()
    bad = {7, 500, 501, 1_199}
    first = {each % 50: each for each in sorted(bad, reverse=True)}
    held = {n for n in range(1, 1_201) if n > first.get(n % 50, n)}
    assert {record_id for record_id, state in laps.places.states.items() if state == "held"} == held
    assert {record_id for record_id, state in laps.places.states.items() if state == "bad"} == bad - held
    assert sorted(laps.kafka.ids) == sorted(set(range(1, 1_201)) - held - bad)
    assert steps_back(laps.kafka.log) == 0
    assert laps.kafka.checkpoint.holds == 7
    assert laps.store.mirror.holds == 7


@both
def test_a_key_is_held_in_its_topic_alone(refuse, one_per_key):
    """Who may write to one topic cannot hold back what others write to theirs."""
    laps = BatchRuns(one_per_key=one_per_key)
    laps.table.insert(*[row(n, "account-1", topic="orders" if n % 2 else "payments") for n in range(1, 9)])
    refuse(laps, 3)
    laps.run()._end()
    assert {record_id for record_id, state in laps.places.states.items() if state == "held"} == {5, 7}
    assert sorted(laps.kafka.ids) == [1, 2, 4, 6, 8]
    laps.topics.bad.clear()
    laps.kafka.poison.clear()
    laps.delivery.refused.clear()


@both
def test_under_skip_the_key_goes_on(refuse, one_per_key):
    laps = BatchRuns(policy="skip", one_per_key=one_per_key)
    fill(laps, 1_000)
    refuse(laps, 300, 350)
    laps.run()
    assert laps.places.states == {300: "bad", 350: "bad"}
    assert sorted(laps.kafka.ids) == sorted(set(range(1, 1_001)) - {300, 350})


def test_under_stop_the_harvester_ends(refuse):
    laps = BatchRuns(policy="stop")
    fill(laps, 100)
    refuse(laps, 50)
    with pytest.raises(RecordError, match="record 50 "):
        laps.run()
    assert laps.places.rows == {}
    assert 50 not in laps.kafka.ids


def test_a_refused_record_is_alone_after_a_few_laps():
    laps = BatchRuns()
    fill(laps, 12_000)
    laps.kafka.poison[9_000] = "bad"
    laps.run()
    assert sorted({*range(1, 12_001)} - {*laps.kafka.ids}) == sorted(laps.places.rows)
    failed = [place for place, (_, went) in enumerate(laps.kafka.batches) if not went]
    assert failed[-1] - failed[0] <= 14, "halves of halves"
    assert laps.kafka.batches[failed[-1]][0] == 1
    assert len(laps.kafka.batches) < failed[-1] + 20, "and afterwards laps grow again"


def test_what_may_be_refused_travels_alone_and_what_need_not_be_is_kept():
    """Nothing fails but the one lap that has to."""
    laps = BatchRuns()
    fill(laps, 1_500)
    laps.topics.large.update({500, 501, 900})
    laps.kafka.poison[501] = "bad"
    laps.run()
    assert laps.kafka.batches.count((1, True)) >= 2
    assert [lap for lap in laps.kafka.batches if not lap[1]] == [(1, False)]
    assert laps.places.states[501] == "bad"
    assert {500, 900} <= set(laps.kafka.ids)


def test_nothing_is_passed_that_is_not_written_down():
    """I8: the write comes first, and a leader that was fenced meanwhile commits nothing."""
    laps = BatchRuns()
    fill(laps, 10)
    laps.topics.bad[5] = "bad"
    laps.places.fenced = True
    loop = laps.loop()
    loop.turn()
    assert laps.kafka.ids == []
    assert loop._term.ended is TermEnd.FENCED


def test_a_lap_that_is_repeated_passes_over_what_is_set_aside():
    laps = BatchRuns()
    fill(laps, 100)
    laps.topics.bad[5] = "bad"
    laps.kafka.broken = 3
    laps.run()
    assert laps.places.states == {5: "bad", 55: "held"}
    assert sorted(laps.kafka.ids) == sorted(set(range(1, 101)) - {5, 55})


@pytest.mark.parametrize("lost", [False, True], ids=["not_committed", "committed"])
@both
def test_what_is_retried_comes_once_and_in_order(one_per_key, lost):
    """Also when nobody knows whether the lap was committed: then the checkpoint says so."""
    laps = BatchRuns(one_per_key=one_per_key)
    fill(laps, 200)
    laps.topics.bad[5] = "bad"
    loop = laps.run()
    assert laps.places.states == {5: "bad", 55: "held", 105: "held", 155: "held"}
    laps.topics.bad.clear()
    laps.places.retry(5)
    laps.table.insert(*[row(n, f"k{n % 50}") for n in range(201, 301)])
    laps.kafka.broken, laps.kafka.lost = 2, lost
    loop._redelivery._look_at = 0.0
    for _ in range(50):
        loop.turn()
        loop._redelivery._look_at = 0.0
    assert laps.places.rows == {}
    assert sorted(laps.kafka.ids) == list(range(1, 301))
    assert steps_back(laps.kafka.log) == 0
    assert laps.kafka.checkpoint.holds is None
    assert laps.kafka.most_of_a_key == 1 or not one_per_key


def test_a_leader_that_dies_before_it_forgets_what_it_retried_repeats_nothing():
    laps = BatchRuns()
    fill(laps, 60)
    laps.topics.bad[5] = "bad"
    laps.run()
    laps.topics.bad.clear()
    laps.places.retry(5)

    def die(ids):
        raise InterruptedError

    laps.places.before_release = die
    with pytest.raises(InterruptedError):
        laps.run()
    assert laps.kafka.ids.count(5) == 1
    assert 5 in laps.places.rows
    laps.places.before_release = None
    laps.table.insert(row(61, "k5"))
    laps.run()
    assert [each for each in laps.kafka.ids if each % 50 == 5 or each == 61] == [5, 55, 61]
    assert laps.places.rows == {}


def test_a_retry_that_kafka_refuses_is_parked_again_and_the_others_go():
    laps = BatchRuns()
    fill(laps, 100, keys=100)
    bad = range(10, 20)
    laps.topics.bad.update(dict.fromkeys(bad, "bad"))
    laps.run()
    laps.topics.bad.clear()
    laps.kafka.poison[15] = "too large"
    laps.places.retry(*bad)
    laps.run()
    assert laps.places.states == {15: "too large"}
    assert laps.places.rows[15][3] is False
    assert sorted(laps.kafka.ids) == sorted(set(range(1, 101)) - {15})


@both
def test_a_retry_that_is_refused_before_it_is_sent_keeps_holding_its_key(one_per_key):
    laps = BatchRuns(one_per_key=one_per_key)
    fill(laps, 100)
    laps.topics.bad.update({5: "bad", 6: "bad"})
    laps.run()
    laps.topics.bad = {5: "still bad"}
    laps.places.retry(5, 6)
    laps.run()
    assert laps.places.states == {5: "still bad", 55: "held"}
    assert {6, 56} <= set(laps.kafka.ids)


def test_what_is_gone_from_the_outbox_is_forgotten():
    laps = BatchRuns()
    fill(laps, 100)
    laps.topics.bad[5] = "bad"
    laps.run()
    del laps.table.rows[5]
    laps.places.retry(5)
    laps.run()
    assert laps.places.rows == {}
    assert laps.kafka.ids[-1] == 55


def test_dropping_lets_go_of_what_is_behind_up_to_the_next_that_is_parked():
    laps = BatchRuns()
    fill(laps, 200)
    laps.topics.bad.update({5: "bad", 105: "bad"})
    laps.run()
    laps.places.rows[105] = [("t", "k5"), "bad", False, False]  # as under another policy before
    del laps.places.rows[5]
    laps.run()
    assert laps.places.states == {105: "bad", 155: "held"}
    assert 55 in laps.kafka.ids


def test_nothing_is_sent_again_before_the_source_has_passed_it():
    """Set aside at once, before the lap that passes it: were it sent and forgotten, the source would bring it again."""
    laps = BatchRuns()
    fill(laps, 2_500)
    laps.delivery.refused[2_000] = "too large"
    loop = laps.loop()
    while 2_000 not in laps.places.rows:
        loop.turn()
    laps.delivery.refused.clear()
    laps.places.retry(2_000)
    while not loop.idle:
        loop.turn()
    assert sorted(laps.kafka.ids) == list(range(1, 2_501))
    assert steps_back(laps.kafka.log) == 0


def test_a_topic_that_nobody_names_is_found_by_smaller_batches():
    """A transaction is refused as a whole for one of its topics, and does not say for which."""
    laps = BatchRuns()
    laps.table.insert(*(row(n, f"k{n}", topic="bad" if n == 700 else "t") for n in range(1, 1_001)))
    commit = laps.delivery.commit

    def refuse_unless_it_is_known(checkpoint, may_send):
        if "bad" in {row[1] for row in laps.delivery._batch}:
            laps.kafka.batches.append((len(laps.delivery._batch), False))
            return BatchFailed(reason="not authorized", unnamed=True)
        return commit(checkpoint, may_send)

    laps.delivery.commit = refuse_unless_it_is_known
    laps.topics.blame = lambda topic, reason: laps.topics.bad.update({700: f"{topic}: {reason}"})
    laps.run()
    assert laps.places.states == {700: "bad: not authorized"}
    assert laps.kafka.ids == [number for number in range(1, 1_001) if number != 700]
    assert len([went for _, went in laps.kafka.batches if not went]) <= 11, "as many as the number has binary digits"


@both
@pytest.mark.parametrize("page", [1, 2, 50])
def test_one_that_is_too_large_for_company_has_none(one_per_key, page):
    """Whether what comes next was read already or not: else it would be refused with it."""
    laps = BatchRuns(one_per_key=one_per_key)
    fill(laps, 40, keys=40)
    laps.topics.large.update({7, 8, 30})
    loop = laps.loop()
    sizes = {}
    committed = laps.delivery.commit
    laps.delivery.commit = lambda *given: (
        sizes.update({row[0]: len(laps.delivery._batch) for row in laps.delivery._batch}),
        committed(*given),
    )[1]
    loop._size.page, loop._size.measured = page, lambda *_: 0
    while not loop.idle:
        loop.turn()
    assert sorted(laps.kafka.ids) == list(range(1, 41))
    assert {record_id for record_id, size in sizes.items() if size == 1} >= {7, 8, 30}
    assert max(sizes.values()) > 1
