"""Topics that take nothing now: how long they are waited for, and when their records are refused."""

from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclOperation
from support.clock import Clock
from support.rows import row

from harvest_lib.delivery import Topics
from harvest_lib.delivery.topic_troubles import (
    _GAP_SECONDS,
    _LONGEST_PROBE_SECONDS,
    _LONGEST_WAIT_SECONDS,
    _PATIENCE_SECONDS,
    _REFUSE_SECONDS,
)

pytestmark = pytest.mark.quick

WRITE = [AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE]
WELL = SimpleNamespace(id=0, leader=SimpleNamespace(id=1), replicas=[1, 2], isr=[1, 2])
LEADERLESS = SimpleNamespace(id=3, leader=None, replicas=[1, 2], isr=[2])
LEFT_ALONE = SimpleNamespace(id=4, leader=SimpleNamespace(id=1), replicas=[1, 2], isr=[1])


@dataclass
class Answer:
    """The answer of the brokers about a topic."""

    code: int | None = None
    operations: list | None = field(default_factory=lambda: WRITE)
    partitions: list = field(default_factory=lambda: [WELL])
    is_internal: bool = False
    config: dict = field(default_factory=dict)


class FakeAdmin:
    """`AdminClient` of brokers that say what `reported` has; `silent` ones do not answer, `late` ones not in time."""

    def __init__(self, **reported):
        self.reported, self.silent, self.late, self.asked = reported, False, False, 0

    def describe_topics(self, collection, **_):
        self.asked += 1
        if self.silent:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        if self.late:
            return {topic: Late() for topic in collection.topic_names}
        return {topic: _answer(self._described(topic)) for topic in collection.topic_names}

    def describe_configs(self, resources, **_):
        settings = {"max.message.bytes": "1000000", "cleanup.policy": "delete", "min.insync.replicas": "2"}
        return {
            each: _answer(
                {name: SimpleNamespace(value=v) for name, v in {**settings, **self.reported[each.name].config}.items()}
            )
            for each in resources
        }

    def _described(self, topic):
        reported = self.reported.get(topic, Answer(code=KafkaError.UNKNOWN_TOPIC_OR_PART))
        if reported.code is not None:
            return KafkaException(KafkaError(reported.code))
        return SimpleNamespace(
            is_internal=reported.is_internal, authorized_operations=reported.operations, partitions=reported.partitions
        )


class Late(Future):
    """An answer for which nobody waits long enough."""

    def result(self, timeout=None):
        assert timeout is not None
        return super().result(0)


def _answer(said):
    answer = Future()
    answer.set_exception(said) if isinstance(said, Exception) else answer.set_result(said)
    return answer


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr("harvest_lib.delivery.topics.boot_seconds", made)
    monkeypatch.setattr("harvest_lib.delivery.topic_troubles.boot_seconds", made)
    return made


def known(settings=None, own=lambda _: False, **reported):
    """Return what is known of topics, and the brokers that are asked."""
    topics = Topics(settings or {}, own=own)
    topics._admin = admin = FakeAdmin(**reported)
    return topics, admin


ROWS = [row(1, "a", topic="bad"), row(2, "b", topic="well")]


def seen(**reported):
    """Return `known` of topics whose records were let pass."""
    topics, admin = known(**reported)
    assert topics.refused(ROWS) == {}
    return topics, admin


def keep_failing(topics, clock, seconds, reason="too few replicas", rows=ROWS):
    """Fail as a delivery does, every five seconds; return what is refused at the end."""
    for _ in range(int(seconds // 5)):
        topics.blame("bad", reason)
        topics.refused(rows)
        clock.now += 5
    topics.blame("bad", reason)
    return topics.refused(rows)


@pytest.mark.parametrize(
    ("names", "contents", "said"),
    [
        ([["a"]], ["x"], "array of arrays"),
        (["a"], [["x"]], "array of arrays"),
        (["a", None], ["x", "y"], "without a name"),
        (["a"], ["x", "y"], "1 header names, 2 header values"),
    ],
)
def test_headers_that_no_client_takes_are_refused(names, contents, said):
    topics, _ = known(well=Answer())
    (reason,) = topics.refused([(1, "well", "k", "v", names, contents)]).values()
    assert said in reason


def test_a_topic_in_trouble_is_waited_for_and_then_refused(clock):
    topics, _ = seen(bad=Answer(), well=Answer())
    assert keep_failing(topics, clock, _PATIENCE_SECONDS - 5) == {}
    clock.now += 5
    assert keep_failing(topics, clock, 0) == {1: "too few replicas"}


@pytest.mark.parametrize(
    ("partition", "said"),
    [(LEADERLESS, "partition 3 of the topic has no leader"), (LEFT_ALONE, "partition 4 of the topic has 1 in-sync")],
)
def test_the_reason_is_what_the_brokers_say_of_the_topic(clock, partition, said):
    """Only then: its other partitions may be what is wanted."""
    topics, _ = seen(bad=Answer(partitions=[WELL, partition]), well=Answer())
    assert said in keep_failing(topics, clock, _PATIENCE_SECONDS)[1]


def test_while_nothing_takes_records_nothing_is_refused(clock):
    """Else an outage would park all that waits."""
    topics, admin = seen(bad=Answer(), well=Answer(partitions=[LEADERLESS]))
    assert keep_failing(topics, clock, 10 * _LONGEST_WAIT_SECONDS) == {}
    admin.reported["well"] = Answer()
    assert set(keep_failing(topics, clock, 5)) == {1}


def test_while_nobody_answers_nothing_is_refused(clock):
    topics, admin = seen(bad=Answer(), well=Answer())
    admin.silent = True
    assert keep_failing(topics, clock, 10 * _PATIENCE_SECONDS) == {}


def test_a_trouble_that_passed_is_forgotten(clock):
    topics, _ = seen(bad=Answer(), well=Answer())
    assert keep_failing(topics, clock, _PATIENCE_SECONDS - 5) == {}
    clock.now += _GAP_SECONDS + 1
    assert keep_failing(topics, clock, 10) == {}, "it is another one"


def test_a_topic_that_was_refused_is_tried_again_less_and_less_often(clock):
    topics, admin = seen(bad=Answer(), well=Answer())
    pauses = []
    assert keep_failing(topics, clock, _PATIENCE_SECONDS)
    for _ in range(6):
        began, asked = clock.now, admin.asked
        while topics.refused(ROWS):
            clock.now += 1
        assert admin.asked <= asked + 1
        pauses.append(clock.now - began)
        topics.blame("bad", "too few replicas")
        assert topics.refused(ROWS) == {1: "too few replicas"}, "at once: nothing has changed"
    assert pauses == [_REFUSE_SECONDS * times for times in (1, 2, 4, 8, 10, 10)]


DENIED = {
    "to see": Answer(code=KafkaError.TOPIC_AUTHORIZATION_FAILED),
    "to write": Answer(operations=[AclOperation.READ, AclOperation.DESCRIBE]),
}


@pytest.mark.parametrize("denied", DENIED.values(), ids=DENIED)
def test_a_topic_that_we_may_not_write_to_is_refused_and_hides_no_other(clock, denied):
    topics, _ = known(bad=denied, well=Answer())
    rows = [*ROWS, row(3, "c", topic="missing")]
    found = topics.refused(rows)
    assert "may not write" in found[1]
    assert found[3] == "the topic does not exist"
    assert set(found) == {1, 3}


def test_rights_that_are_taken_away_are_waited_for(clock):
    topics, admin = seen(bad=Answer(), well=Answer())
    admin.reported["bad"] = DENIED["to write"]
    topics.forget()
    assert topics.refused(ROWS) == {}
    admin.reported["well"] = DENIED["to write"]
    assert keep_failing(topics, clock, 2 * _PATIENCE_SECONDS) == {}, "all of them are"
    admin.reported["well"] = Answer()
    topics.forget()
    assert set(keep_failing(topics, clock, 5)) == {1}


def test_a_topic_that_we_never_might_write_to_holds_up_nobody_for_good(clock):
    """No other topic is known, as after a start, with thousands of its records at the head."""
    topics, _ = known(bad=DENIED["to write"])
    assert keep_failing(topics, clock, _LONGEST_WAIT_SECONDS - 10, "denied", ROWS[:1]) == {}
    clock.now += 10
    assert set(keep_failing(topics, clock, 0, "denied", ROWS[:1])) == {1}


def test_what_is_internal_by_the_brokers_is_refused(clock):
    topics, _ = known(bad=Answer(is_internal=True), well=Answer())
    assert topics.refused(ROWS) == {1: "the topic is Kafka's own"}


def test_an_answer_that_comes_too_late_stops_nothing(clock):
    """As in a process that was frozen while it waited."""
    topics, admin = known(bad=Answer(code=KafkaError.UNKNOWN_TOPIC_OR_PART), well=Answer())
    admin.late = True
    assert topics.refused(ROWS) == {}
    admin.late = False
    clock.now += 5
    assert set(topics.refused(ROWS)) == {1}


def test_own_topics_are_refused_whatever_the_brokers_say():
    topics, admin = known(own=lambda topic: topic == "bad")
    admin.silent = True
    rows = [*ROWS, row(3, "c", topic="__transaction_state")]
    assert topics.refused(rows) == {
        1: "the topic is the harvester's own, for election or checkpoints",
        3: "the topic is Kafka's own",
    }


def test_a_limit_that_was_raised_is_asked_again_before_a_record_is_refused(clock):
    topics, admin = known(well=Answer())
    large = [row(1, "a", "v" * 1_200_000, "well")]
    assert "above the topic's max.message.bytes, 1000000" in topics.refused(large)[1]
    admin.reported["well"] = Answer(config={"max.message.bytes": "5000000"})
    clock.now += 6
    assert topics.refused(large) == {}


@pytest.mark.parametrize("settings", [{"compression.type": "lz4"}, {"compression.codec": "zstd"}])
def test_what_may_be_compressed_is_tried(clock, settings):
    topics, _ = known(settings, well=Answer())
    assert topics.refused([row(1, "a", "v" * 1_200_000, "well")]) == {}


def test_the_client_s_own_limit_is_said_to_be_its_own(clock):
    settings = {"message.max.bytes": 2_000_000, "compression.type": "lz4"}
    topics, _ = known(settings, well=Answer(config={"max.message.bytes": "9000000"}))
    (reason,) = topics.refused([row(1, "a", "v" * 2_100_000, "well")]).values()
    assert "the client's message.max.bytes, 2000000" in reason


def test_a_topic_that_takes_records_again_is_not_refused(clock):
    topics, _ = seen(bad=Answer(), well=Answer())
    assert keep_failing(topics, clock, 20) == {}
    assert topics.in_trouble
    topics.well({"bad"})
    assert not topics.in_trouble
    clock.now += 15
    assert topics.refused(ROWS) == {}
    topics.blame("bad", "too few replicas")
    assert topics.refused(ROWS) == {}, "it is another trouble"


@pytest.mark.parametrize("takes", [True, False], ids=["delivered", "nothing sent"])
def test_two_short_troubles_are_not_one_long_one(clock, takes):
    topics, _ = seen(bad=Answer(), well=Answer())
    for _ in range(2):
        topics.blame("bad", "too few replicas")
        assert topics.refused(ROWS) == {}
        if takes:
            topics.well({"bad", "well"})
        clock.now += 19
    for _ in range(30):
        assert topics.refused(ROWS) == {}
        clock.now += 1
    if takes:
        topics.blame("bad", "too few replicas")
        assert topics.refused(ROWS) == {}


def test_a_record_that_is_taken_does_not_end_what_the_brokers_name(clock):
    """It may be of one partition; the others' records would have it waited for without end."""
    topics, _ = seen(bad=Answer(partitions=[WELL, LEADERLESS]), well=Answer())
    clock.now += 5
    for _ in range(int(_PATIENCE_SECONDS // 5)):
        topics.blame("bad", "timed out")
        assert topics.refused(ROWS) == {}
        topics.well({"bad"})
        clock.now += 5
    assert "has no leader" in keep_failing(topics, clock, 0)[1]


def test_a_trouble_that_the_brokers_name_no_more_is_over(clock):
    topics, admin = seen(bad=Answer(partitions=[LEADERLESS]), well=Answer())
    assert keep_failing(topics, clock, _PATIENCE_SECONDS - 1) == {}
    admin.reported["bad"] = Answer()
    clock.now += 6
    assert topics.refused(ROWS) == {}
    assert not topics.in_trouble


def test_after_a_time_without_brokers_a_topic_is_waited_for_anew(clock):
    """Else what comes first after an outage would be parked."""
    topics, admin = seen(bad=Answer(), well=Answer())
    admin.silent = True
    assert keep_failing(topics, clock, 2 * _PATIENCE_SECONDS) == {}
    admin.silent = False
    clock.now += 5
    assert keep_failing(topics, clock, _PATIENCE_SECONDS - 5) == {}
    clock.now += 5
    assert set(keep_failing(topics, clock, 0)) == {1}


@pytest.mark.parametrize(("partition", "most"), [(WELL, 1), (LEADERLESS, 11)], ids=["well", "in trouble"])
def test_many_pages_ask_once_a_second_at_most(clock, partition, most):
    topics, admin = seen(bad=Answer(), well=Answer())
    admin.reported["bad"] = Answer(partitions=[partition])
    topics.blame("bad", "timed out")
    admin.asked = 0
    for _ in range(1_000):
        clock.now += 0.01
        topics.refused(ROWS)
    assert 1 <= admin.asked <= most


@pytest.mark.parametrize(("characters", "too_large"), [(249_000, set()), (249_900, {1})])
def test_a_value_of_long_characters_is_found_too_large_where_its_length_alone_would_just_fit(characters, too_large):
    topics, _ = known(well=Answer())
    rows = [row(1, "k", value="\U0001f600" * characters, topic="well")]
    topics.refused(rows)  # which learns the limit
    assert topics.oversized(rows, characters) == too_large


def paused_by(clock, **reported):
    """Return topics of which `bad` has just failed, and the brokers."""
    topics, admin = seen(**reported)
    topics.blame("bad", "timed out")
    return topics, admin


def probes(topics, clock, seconds):
    """Probe as often as is asked for, each of which fails at once; return the times."""
    began, found = clock.now, []
    while clock.now < began + seconds:
        if topics.troubles.may_probe("bad"):
            found.append(clock.now - began)
            topics.blame("bad", "timed out")
        clock.now += 0.5
    return found


def test_a_topic_in_trouble_is_paused_only_while_another_takes_records(clock):
    topics, _ = paused_by(clock, bad=Answer(), well=Answer())
    assert topics.troubles.paused == {"bad"}
    topics.blame("well", "timed out")
    assert topics.troubles.paused == set()
    topics.well({"well"})
    assert topics.troubles.paused == {"bad"}
    topics.well({"bad"})
    assert topics.troubles.paused == set()


def test_a_topic_that_is_refused_is_not_paused_but_again_after_that(clock):
    topics, _ = paused_by(clock, bad=Answer(partitions=[LEADERLESS]), well=Answer())
    assert keep_failing(topics, clock, _PATIENCE_SECONDS)
    assert topics.troubles.paused == set()
    clock.now += _REFUSE_SECONDS
    assert topics.troubles.paused == {"bad"}


def test_probes_are_less_and_less_frequent(clock):
    topics, _ = paused_by(clock, bad=Answer(), well=Answer())
    assert probes(topics, clock, 23) == [1, 3, 7, 12, 17, 22]
    topics.well({"bad"})
    topics.blame("bad", "timed out")
    assert probes(topics, clock, _LONGEST_PROBE_SECONDS + 1) == [_LONGEST_PROBE_SECONDS], "it was well for a moment"


def test_a_trouble_that_the_brokers_name_is_not_probed_and_ends_with_the_patience(clock):
    topics, admin = paused_by(clock, bad=Answer(partitions=[LEADERLESS]), well=Answer())
    for _ in range(int(_PATIENCE_SECONDS)):
        assert topics.refused(ROWS) == {}
        assert topics.troubles.paused == {"bad"}
        assert not topics.troubles.may_probe("bad") or clock.now < 101
        clock.now += 1
    assert "has no leader" in topics.refused(ROWS)[1]
    admin.reported["bad"] = Answer()
    clock.now += _REFUSE_SECONDS
    assert topics.refused(ROWS) == {}
    assert topics.troubles.paused == set()


def test_once_brokers_answer_again_a_probe_is_due(clock):
    topics, admin = paused_by(clock, bad=Answer(), well=Answer())
    probes(topics, clock, 10)
    admin.silent = True
    topics.refused(ROWS)
    admin.silent = False
    clock.now += 6
    topics.blame("bad", "timed out")
    assert not topics.troubles.may_probe("bad")
    clock.now += 1
    topics.refused(ROWS)
    assert topics.troubles.may_probe("bad")


SMALL = Answer(config={"max.message.bytes": "2000"})
MEDIUM = "v" * 50_000


def rows_of(topic, value="v"):
    return [row(9, "k", value=value, topic=topic)]


def measures(topics, rows, monkeypatch):
    """Return how many rows are measured one by one when they are asked about."""
    measured = []
    with monkeypatch.context() as patched:
        patched.setattr(topics, "_is_too_large", lambda row: measured.append(row) or False)
        assert topics.refused(rows, len(MEDIUM)) == {}
    return len(measured)


def test_a_small_topic_costs_only_the_pages_that_name_it(clock, monkeypatch):
    topics, _ = known(well=Answer(), small=SMALL)
    topics.refused([*rows_of("well"), *rows_of("small")])
    assert topics.smallest_limit == 2_000
    assert topics.oversized(rows_of("well", MEDIUM), len(MEDIUM)) == set()
    assert topics.oversized(rows_of("small", MEDIUM), len(MEDIUM)) == {9}
    assert measures(topics, rows_of("well", MEDIUM), monkeypatch) == 0


def test_a_small_topic_that_nothing_names_any_more_is_forgotten(clock):
    topics, admin = known(well=Answer(), small=SMALL)
    topics.refused([*rows_of("well"), *rows_of("small")])
    assert topics.limit_of_producer() == 2_000
    clock.now += 59
    topics.refused(rows_of("well"))
    assert topics.smallest_limit == 2_000
    asked = admin.asked
    clock.now += 2
    topics.refused(rows_of("well"))
    assert topics.smallest_limit == 1_000_000
    assert not topics.is_producer_outdated, "it may be named again in a moment"
    clock.now += 60
    assert topics.is_producer_outdated
    assert topics.limit_of_producer() == 1_000_000
    assert not topics.is_producer_outdated
    assert admin.asked == asked


def test_a_limit_that_was_raised_is_noticed_while_its_topic_is_in_use(clock):
    topics, admin = known(small=SMALL)
    topics.refused(rows_of("small"))
    topics.limit_of_producer()
    for _ in range(5):
        clock.now += 61
        topics.refused(rows_of("small"))
        assert topics.smallest_limit == 2_000, "asked again, it is as it was"
        assert not topics.is_producer_outdated
    admin.reported["small"] = Answer()
    clock.now += 61
    assert topics.refused(rows_of("small", MEDIUM)) == {}
    assert topics.oversized(rows_of("small", MEDIUM), len(MEDIUM)) == set()
    clock.now += 61
    assert topics.is_producer_outdated


def test_a_small_topic_that_was_deleted_is_forgotten(clock):
    topics, admin = known(small=SMALL)
    topics.refused(rows_of("small"))
    admin.reported["small"] = Answer(code=KafkaError.UNKNOWN_TOPIC_OR_PART)
    clock.now += 61
    assert topics.refused(rows_of("small")) == {9: "the topic does not exist"}
    assert topics.smallest_limit == 1_000_000


def test_a_producer_made_after_a_refusal_is_made_for_the_limits_known_until_then_and_a_new_term_for_none(clock):
    topics, _ = known(small=SMALL)
    topics.refused(rows_of("small"))
    topics.ask_again()
    assert topics.limit_of_producer() == 2_000
    topics.forget()
    assert topics.limit_of_producer() == 1_000_000


def test_a_hundred_topics_that_were_deleted_hide_none_that_takes_records(clock):
    gone = [f"a{number:03}" for number in range(100)]
    topics, admin = known(**{each: Answer() for each in gone}, bad=Answer(), well=Answer())
    topics.refused([*ROWS, *[row(number, "k", topic=each) for number, each in enumerate(gone, 10)]])
    for each in gone:
        admin.reported[each] = Answer(code=KafkaError.UNKNOWN_TOPIC_OR_PART)
    assert set(keep_failing(topics, clock, 3 * _PATIENCE_SECONDS)) == {1}
