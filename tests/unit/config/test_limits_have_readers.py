"""Every limit has a reader: changed, it changes what the harvester does. Times are those of a clock made by hand."""

import re
import uuid
from itertools import pairwise
from pathlib import Path

import pytest
from support.bench import Bench
from support.fakes import FakeDelivery, FakeSource, FakeTable
from support.rows import LANDED, row

from harvest_lib import clock as clock_module
from harvest_lib.config import HarvestConfig, Limits
from harvest_lib.delivery import Topics
from harvest_lib.events import MeterRead
from harvest_lib.harvester import harvest as harvester
from harvest_lib.harvester.factory import make_delivery, make_leadership
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.leadership import Solo, TermEnd
from harvest_lib.marking import loop as term_loop
from harvest_lib.record.rows import RowQueue

pytestmark = pytest.mark.quick

TESTS = Path(__file__).parents[2]
HERE = set()
STEPS = "unit/marking/test_mark_purge_reset.py"
ELSEWHERE = {
    "max_in_flight_records": (
        "unit/marking/test_mark_purge_reset.py",
        "test_a4_the_window_is_drained_before_the_next_record",
    ),
    "mark_query_records": (
        "unit/marking/test_mark_purge_reset.py",
        "test_a3_a_mark_takes_the_head_under_the_leader_id",
    ),
    "queue_timeout_seconds": (
        "unit/marking/test_parking.py",
        "test_records_that_wait_longer_than_the_queue_timeout_are_marked_again",
    ),
    "send_buffer": ("integration/delivery/test_lane.py", "test_the_send_buffer_bounds_what_waits_for_a_full_producer"),
}


def shows(*limits):
    """Note which limits a test shows to matter."""

    def note(test):
        HERE.update(limits)
        return test

    return note


def test_each_limit_has_a_test_that_it_matters():
    assert set(Limits.model_fields) == HERE | ELSEWHERE.keys()


@pytest.mark.parametrize(("name", "place"), ELSEWHERE.items(), ids=ELSEWHERE)
def test_the_tests_elsewhere_are_there_and_set_the_limit(name, place):
    file, test = place
    text = (TESTS / file).read_text(encoding="utf-8")
    (body,) = re.findall(rf"^def {test}\(.*?(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    assert f"{name}=" in body


class Clock:
    """A clock that goes on only while somebody waits."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    for module in (clock_module, term_loop, harvester):
        monkeypatch.setattr(module, "boot_seconds", made)
    return made


class Timed(Bench):
    """A loop whose waiting for reports is what makes time pass. `sent_at`, `asked_at`: the times of sends, of calls."""

    def __init__(self, clock, **settings):
        super().__init__(**settings)
        self.clock, self.sent_at, self.asked_at = clock, [], {}
        poll, called = self.delivery.poll, self.source._called

        def wait(timeout_seconds):
            clock.now += timeout_seconds
            return poll(timeout_seconds)

        def ask(name):
            self.asked_at.setdefault(name, []).append(clock.now)
            called(name)

        self.delivery.poll, self.source._called = wait, ask
        self.delivery.before_send = lambda _sending: self.sent_at.append(clock.now)


def gaps(times):
    return [later - earlier for earlier, later in pairwise(times)]


@shows("io_error_backoff_seconds")
@pytest.mark.parametrize("seconds", [0.5, 2.0])
def test_a_failed_record_is_sent_again_after_the_io_error_backoff(clock, seconds):
    bench = Timed(clock, io_error_backoff_seconds=seconds)
    bench.table.insert(row(1, "a"))
    bench.delivery.fail = {1: 3}
    bench.begin().turns(500)
    assert len(bench.sent_at) == 4
    assert gaps(bench.sent_at) == pytest.approx([seconds] * 3, abs=0.1)


@shows("io_error_backoff_seconds")
@pytest.mark.parametrize("seconds", [0.5, 2.0])
def test_a_lost_database_is_asked_again_after_the_io_error_backoff(clock, seconds):
    bench = Timed(clock, io_error_backoff_seconds=seconds)
    bench.source.outages = 3
    bench.begin().turns(500)
    assert len(bench.asked_at["open"]) == 4
    assert gaps(bench.asked_at["open"]) == pytest.approx([seconds] * 3, abs=0.1)


@shows("mark_backoff_seconds")
@pytest.mark.parametrize(("seconds", "expected"), [(0.02, [0.02, 0.03, 0.045, 0.0675, 0.07]), (0.2, [0.2] * 5)])
def test_after_a_mark_that_found_nothing_comes_the_mark_backoff(clock, seconds, expected):
    bench = Timed(clock, mark_backoff_seconds=seconds).begin()
    bench.turns(100)
    assert gaps(bench.asked_at["fetch"])[:5] == pytest.approx(expected, abs=0.0011), "in whole milliseconds, rounded up"


def seconds_until_given_up(clock, **limits):
    """Revoke a term whose record never lands, and return how long that was waited for."""
    bench = Timed(clock, **{"drain_interval_seconds": None, **limits})
    bench.table.insert(row(1, "a"))
    bench.delivery.hold = True
    bench.begin().turns(5)
    bench.term.end(TermEnd.REVOKED)
    began = clock.now
    bench.loop.run()
    assert bench.loop.abandoned == 1
    return clock.now - began


@shows("drain_interval_seconds")
@pytest.mark.parametrize("seconds", [0.5, 4.0])
def test_a_revoked_term_waits_for_what_is_in_flight_as_long_as_the_drain_interval(clock, seconds):
    assert seconds_until_given_up(clock, drain_interval_seconds=seconds) == pytest.approx(seconds, abs=0.01)


@shows("max_poll_interval_seconds", "drain_interval_seconds")
@pytest.mark.parametrize("seconds", [0.5, 4.0])
def test_by_default_it_waits_as_long_as_the_max_poll_interval(clock, seconds):
    assert seconds_until_given_up(clock, max_poll_interval_seconds=seconds) == pytest.approx(seconds, abs=0.01)


@shows("queue_timeout_seconds")
def test_and_no_longer_than_the_queue_timeout(clock):
    limits = {"queue_timeout_seconds": 1.0, "drain_interval_seconds": 4.0}
    assert seconds_until_given_up(clock, **limits) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(("drain_interval", "expected"), [("2s", 6.0), ("20s", 40.0)])
def test_a_rebalance_waits_longer_than_the_drain_interval_and_the_delivery_timeout(drain_interval, expected):
    assert elected(drainInterval=drain_interval)._settings.quiesce_timeout_seconds == expected


def elected(**limits):
    config = HarvestConfig(leader_group_id="g", leadership="neli", session_timeout_seconds=30, limits=limits)
    return make_leadership(config)


@shows("heartbeat_timeout_seconds")
@pytest.mark.parametrize("name", ["heartbeatTimeout", "receiveDeadline"])
@pytest.mark.parametrize("seconds", [3.0, 9.0])
def test_a_leader_that_has_not_heard_itself_for_the_heartbeat_timeout_is_fenced(clock, name, seconds):
    neli = elected(**{name: f"{seconds}s"})
    (candidacy,) = neli._candidacies
    candidacy._clock = clock
    candidacy.assigned = True
    candidacy.begin()
    candidacy.receive(candidacy.heartbeat(0.0), 0)
    neli._on_commit_accepted(0.0)
    neli._judge()
    term = neli.term(0)
    clock.now = seconds - 0.01
    assert term.is_live()
    clock.now = seconds
    assert term.ended is TermEnd.FENCED


@pytest.mark.parametrize("seconds", [3.0, 9.0])
def test_by_default_a_record_may_wait_in_the_producer_for_the_heartbeat_timeout(seconds):
    made = []
    config = HarvestConfig(leadership="solo", session_timeout_seconds=30, limits={"heartbeatTimeout": f"{seconds}s"})
    make_delivery(config, Topics({}), lambda settings: made.append(settings) or Producer())
    assert {settings["message.timeout.ms"] for settings in made} == {seconds * 1000}


@shows("min_poll_interval_seconds")
@pytest.mark.parametrize("seconds", [0.05, 1.0])
def test_the_leader_topic_is_polled_by_the_min_poll_interval(seconds):
    neli = elected(minPollInterval=f"{seconds}s")
    assert neli._settings.min_poll_interval_seconds == seconds
    assert neli._heartbeat_interval == max(seconds, 0.5), "heartbeats come no more often"


@shows("poll_duration_seconds")
@pytest.mark.parametrize("seconds", [0.001, 0.25])
def test_a_poll_of_the_leader_topic_waits_for_the_poll_duration(seconds):
    assert elected(pollDuration=f"{seconds}s")._settings.poll_duration_seconds == seconds


class Producer:
    """A producer that keeps what it is given, up to `room` records, and reports it when it is polled."""

    def __init__(self, room=1_000):
        self.keys = []
        self._room = room
        self._callbacks = []

    def produce(self, _topic, _value, key, _partition, callback, *_):
        if len(self._callbacks) == self._room:
            raise BufferError
        self.keys.append(key)
        self._callbacks.append(callback)

    def poll(self, _timeout_seconds):
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            if callback is not None:
                callback(None, LANDED)
        return len(callbacks)

    def __len__(self):
        return len(self._callbacks)


def lanes(producers, delivery="barrier", room=1_000, **limits):
    """Make a delivery whose producers come into the list."""

    def provide(_settings):
        producers.append(Producer(room))
        return producers[-1]

    config = HarvestConfig(leadership="solo", delivery=delivery, limits=limits)
    made = make_delivery(config, Topics({}), provide)
    made.begin(uuid.uuid4())
    return made


@shows("send_concurrency")
@pytest.mark.parametrize("delivery", ["barrier", "pipelined"])
@pytest.mark.parametrize("number", [1, 3, 8])
def test_there_are_as_many_producers_as_the_send_concurrency(delivery, number):
    producers = []
    lanes(producers, delivery, send_concurrency=number)
    assert len(producers) == number


def test_by_default_there_are_eight():
    producers = []
    lanes(producers)
    assert len(producers) == 8


@pytest.mark.parametrize("delivery", ["barrier", "pipelined"])
def test_a_key_always_takes_the_same_lane_and_all_lanes_are_taken(delivery):
    producers, keys = [], [f"k{number}" for number in range(100)]
    made = lanes(producers, delivery, send_concurrency=4)
    for turn in range(3):
        rows = RowQueue(row(turn * 101 + number, key) for number, key in enumerate(keys))
        made.send(rows, lambda: True)
        assert not rows
        assert len(made.poll(0).acknowledged) == 100
        made.begin(uuid.uuid4())
    taken = [set(producer.keys) for producer in producers]
    assert all(taken)
    assert sum(map(len, taken)) == len(set().union(*taken)) == 100
    assert all(producer.keys.count(key) == 3 for producer in producers for key in set(producer.keys))


@shows("send_buffer")
@pytest.mark.parametrize("send_buffer", [0, 4])
def test_each_lane_keeps_as_many_records_behind_a_full_producer_as_the_send_buffer(send_buffer):
    producers = []
    made = lanes(producers, room=10, send_concurrency=1, send_buffer=send_buffer)
    rows = RowQueue(row(number, "k") for number in range(20))
    made.send(rows, lambda: True)
    assert len(rows) == 10 - send_buffer


@shows("min_metrics_interval_seconds")
@pytest.mark.parametrize(("interval", "expected"), [("2s", [3, 2, 2, 2]), ("4s", [5, 4])])
def test_the_meter_is_read_no_more_often_than_the_min_metrics_interval(clock, interval, expected):
    config = HarvestConfig(leadership="solo", limits={"minMetricsInterval": interval})
    harvest = Harvest(config, source=FakeSource(FakeTable()), delivery=FakeDelivery(), leadership=Solo())
    read = []
    harvest.set_event_handler(lambda event: isinstance(event, MeterRead) and read.append(event.stats.interval_count))
    for _ in range(10):
        harvest._delivered(0, 1)
        clock.now += 1.0
    assert read == expected
