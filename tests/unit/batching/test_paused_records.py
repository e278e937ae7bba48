"""Records of a topic in trouble, in the loop in batches on fakes: they wait, in order, and other topics go on."""

from itertools import chain
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batches import BatchRuns, FakeTopics, look_again
from support.rows import row

from harvest_lib.batching.key_barrier import KeyBarrier
from harvest_lib.batching.paused_records import PausedRecords

pytestmark = pytest.mark.quick

both = pytest.mark.parametrize("one_per_key", [False, True], ids=["any_per_key", "one_per_key"])

_TURNS = 20


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch):
    monkeypatch.setattr("harvest_lib.batching.paused_records._LOOK_SECONDS", 0.0)


def two_topics(one_per_key, number=40, **settings):
    """Return a bench with records of eight keys for `good` and `away`, of which the latter takes none."""
    runs = BatchRuns(one_per_key=one_per_key, **settings)
    runs.table.insert(*[row(n, f"k{n % 8}", topic="away" if n % 3 else "good") for n in range(1, number + 1)])
    runs.kafka.away["away"] = "no leader"
    return runs


def turned(runs, turns=_TURNS):
    loop = runs.loop()
    for _ in range(turns):
        loop.turn()
    return loop


def orders(log, *, by_topic):
    """Return the ids of each key, or of each key in its topic, in the order in which they went."""
    found = {}
    for record_id, topic, key, *_ in log:
        found.setdefault((topic, key) if by_topic else key, []).append(record_id)
    return found


def goes_back(log, *, by_topic):
    return [key for key, ids in orders(log, by_topic=by_topic).items() if ids != sorted(ids)]


@both
def test_other_topics_go_on_and_the_paused_one_follows_in_order(one_per_key):
    runs = two_topics(one_per_key)
    loop = turned(runs)
    good = [n for n in range(1, 41) if n % 3 == 0]
    free = [n for n in good if not one_per_key or all(m % 3 == 0 for m in range(n % 8 or 8, n, 8))]
    assert sorted(runs.kafka.ids) == free, "under the barrier none of a key passes one that waits"
    assert sum(not went for _, went in runs.kafka.batches) == 1, "the topic is found out once"
    assert not loop.idle
    runs.kafka.away.clear()
    runs.topics.probes.add("away")
    while not loop.idle:
        loop.turn()
    assert sorted(runs.kafka.ids) == list(range(1, 41))
    assert goes_back(runs.kafka.log, by_topic=not one_per_key) == []
    assert runs.places.rows == {}


def test_a_pause_and_its_end_are_logged_once(caplog):
    caplog.set_level("INFO", "harvest_lib.batching")
    runs = two_topics(one_per_key=False)
    loop = turned(runs)
    runs.kafka.away.clear()
    runs.topics.probes.add("away")
    while not loop.idle:
        loop.turn()
    said = [(each.message, each.topic) for each in caplog.records if each.message.startswith("topic_")]
    assert said == [("topic_paused", "away"), ("topic_resumed", "away")]
    (failed,) = (each for each in caplog.records if each.message == "batch_failed")
    assert failed.reason == "no leader"


@both
def test_a_probe_that_fails_fails_alone(one_per_key):
    runs = two_topics(one_per_key)
    loop = turned(runs)
    before = len(runs.kafka.ids)
    runs.topics.probes.add("away")
    for _ in range(_TURNS):
        loop.turn()
    assert [size for size, went in runs.kafka.batches if not went][1:] == [1]
    assert len(runs.kafka.ids) == before


@both
def test_the_next_leader_has_what_waits(one_per_key):
    runs = two_topics(one_per_key)
    turned(runs)
    runs.end()
    deferred = runs.kafka.checkpoint.position["deferred"]
    assert sorted([*deferred, *runs.kafka.ids]) == list(range(1, 41))
    assert runs.kafka.checkpoint.retention_hold == min(deferred)
    runs.kafka.away.clear()
    runs.topics.paused = frozenset()
    runs.run()
    runs.end()
    assert sorted(runs.kafka.ids) == list(range(1, 41))
    assert goes_back(runs.kafka.log, by_topic=not one_per_key) == []


@both
def test_what_is_given_up_is_parked_though_nothing_else_comes(one_per_key):
    runs = two_topics(one_per_key)
    loop = turned(runs)
    runs.topics.bad.update({n: "no leader" for n in range(1, 41) if n % 3})
    runs.topics.paused = frozenset()
    while not loop.idle:
        loop.turn()
    assert sorted(runs.kafka.ids) == [n for n in range(1, 41) if n % 3 == 0]
    assert sorted(runs.places.rows) == [n for n in range(1, 41) if n % 3]
    assert goes_back(runs.kafka.log, by_topic=False) == []


@both
def test_a_retried_record_waits_for_its_topic(one_per_key):
    """A retry of other topics' records does not fail with it."""
    runs = BatchRuns(one_per_key=one_per_key)
    runs.table.insert(row(1, "a", topic="away"), row(2, "b", topic="good"), row(3, "c", topic="good"))
    runs.topics.bad.update({1: "bad", 2: "bad"})
    loop = runs.run()
    assert sorted(runs.places.rows) == [1, 2]
    runs.topics.bad.clear()
    runs.kafka.away["away"] = "no leader"
    runs.topics.blame("away", "no leader")
    runs.places.retry(1, 2)
    look_again(loop)
    for _ in range(_TURNS):
        loop.turn()
    assert runs.kafka.ids == [3, 2]
    assert sorted(runs.places.rows) == [1]
    assert all(went for _, went in runs.kafka.batches)


def test_a_topic_that_is_the_only_one_is_tried_as_ever():
    runs = BatchRuns()
    runs.topics.only = "away"
    runs.table.insert(row(1, "a", topic="away"))
    runs.kafka.away["away"] = "no leader"
    loop = turned(runs, turns=5)
    assert [went for _, went in runs.kafka.batches] == [False] * 5
    runs.kafka.away.clear()
    while not loop.idle:
        loop.turn()
    assert runs.kafka.ids == [1]


def test_records_and_bytes_that_wait_are_bounded():
    topics = FakeTopics()
    topics.paused = frozenset({"away"})
    paused = PausedRecords(topics, None, one_per_key=False)
    assert paused.filter([row(n, "a", topic="away") for n in range(5_000)]) == []
    assert not paused.is_full
    paused.filter([row(5_000, "a", topic="away")])
    assert paused.is_full
    paused.begin()
    assert not paused.is_full
    paused.filter([row(1, "a", value="v" * 8_000_001, topic="away")])
    assert paused.is_full


EVENTS = st.lists(
    st.one_of(
        st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from("abc")), max_size=8),
        st.frozensets(st.sampled_from("xyz")),
        st.sampled_from(["saved", "probe"]),
    ),
    max_size=20,
)


@given(EVENTS)
def test_every_record_goes_once_and_a_key_never_goes_back(events):
    topics, barrier = FakeTopics(), KeyBarrier()
    paused, gone, number = PausedRecords(topics, None, one_per_key=True), [], 0
    for event in [*events, frozenset(), *["saved"] * 200]:
        if isinstance(event, list):
            rows = [row(number + place, key, topic=topic) for place, (topic, key) in enumerate(event)]
            number += len(rows)
            gone += chain.from_iterable(barrier.filter(paused.filter(rows), 3, first=True))
        elif isinstance(event, frozenset):
            topics.paused = event
            gone += chain.from_iterable(barrier.filter(paused.filter([]), 3, first=True))
        elif event == "saved":
            barrier.checkpoint_saved()
            gone += chain.from_iterable(barrier.filter(paused.filter([]), 3, first=True))
        else:
            topics.probes = set(topics.paused)
            probed = paused.probe(barrier.defers)
            gone += barrier.filter_retried([probed]) if probed is not None else []
        deferred = [*barrier.deferred_ids, *paused.ids]
        assert sorted([*deferred, *(each[0] for each in gone)]) == list(range(number))
    assert len(gone) == number
    assert goes_back(gone, by_topic=False) == []


@pytest.mark.parametrize("plain", [True, False])
def test_a_native_page_whose_summary_may_lack_topics_is_looked_at_row_by_row(monkeypatch, plain):
    """It names 64 topics at most, and none of a row with a header of ours."""

    class FakeNativeRows(list):
        summary = SimpleNamespace(is_plain=plain, topics=["good"])

    monkeypatch.setattr("harvest_lib.batching.paused_records.NativeRows", FakeNativeRows)
    topics = FakeTopics()
    topics.paused = frozenset({"away"})
    paused = PausedRecords(topics, None, one_per_key=False)
    paused.filter([row(1, "k", topic="away")])
    page = FakeNativeRows([row(2, "k", topic="good"), *([] if plain else [row(3, "k", topic="away")])])
    assert [each[0] for each in paused.filter(page)] == [2]
    assert paused.ids == ([1] if plain else [1, 3])


@both
def test_a_retried_record_does_not_pass_one_that_waits(one_per_key, monkeypatch):
    """Not when its topic is well again, before what waits has gone."""
    monkeypatch.setattr("harvest_lib.batching.redelivery._LOOK_SECONDS", 0.0)
    monkeypatch.setattr("harvest_lib.batching.redelivery._LOOKING_SHARE", 1e9)
    runs = BatchRuns(one_per_key=one_per_key)
    runs.kafka.away["away"] = "no leader"
    runs.table.insert(row(1, "other", topic="away"), row(2, "k", topic="away"), row(3, "x", topic="good"))
    loop = turned(runs, turns=8)
    runs.topics.bad[4] = "bad"
    runs.table.insert(row(4, "k", topic="away"))
    for _ in range(4):
        loop.turn()
    assert sorted(runs.places.rows) == [4]
    runs.topics.bad.clear()
    runs.places.retry(4)
    runs.kafka.away.clear()
    runs.topics.probes.add("away")
    while not (loop.idle and not runs.places.rows):
        loop.turn()
    assert [each[0] for each in runs.kafka.log if each[2] == "k"] == [2, 4]


def test_a_retried_record_probes_its_topic_if_nothing_else_names_it(monkeypatch):
    monkeypatch.setattr("harvest_lib.batching.redelivery._LOOK_SECONDS", 0.0)
    runs = BatchRuns()
    runs.table.insert(row(1, "a", topic="away"), row(2, "b", topic="good"))
    runs.topics.bad[1] = "bad"
    loop = runs.run()
    runs.topics.bad.clear()
    runs.topics.blame("away", "no leader")
    runs.places.retry(1)
    for _ in range(_TURNS):
        loop.turn()
    assert runs.kafka.ids == [2]
    runs.topics.probes.add("away")
    for _ in range(_TURNS):
        loop.turn()
    assert runs.kafka.ids == [2, 1]
    assert runs.places.rows == {}
