"""Every limit has a reader: changed, it changes the harvester's behaviour. Times are those of a clock made by hand."""

import random
import threading
from functools import partial

import pytest
from support.batches import BatchRuns
from support.clock import Clock
from support.fakes import FakeSource, FakeTable
from support.rows import row

from harvest_lib import clock as clock_module
from harvest_lib.batching import batch as batch_module
from harvest_lib.config import HarvestConfig, Limits
from harvest_lib.delivery import BatchFailed
from harvest_lib.errors import ConfigError
from harvest_lib.events import MeterRead
from harvest_lib.harvester import terms
from harvest_lib.harvester.assembly.engine import make_size
from harvest_lib.harvester.assembly.pools import make_leadership
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.leadership import Solo, TermEnd
from harvest_lib.source import MarkPages, mark_batches

pytestmark = pytest.mark.quick

HERE = set()


def shows(*limits):
    """Note which limits a test shows to matter."""

    def note(test):
        HERE.update(limits)
        return test

    return note


def test_each_limit_has_a_test_that_it_matters_or_is_named_as_one_without_effect():
    without = Limits(send_concurrency=1, send_buffer=1)
    assert without.without_effect == ["sendConcurrency", "sendBuffer"]
    assert set(Limits.model_fields) == HERE | without.model_fields_set
    assert Limits(io_error_backoff_seconds=1).without_effect == []


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on only while somebody waits."""
    made = Clock()
    made.now = 0.0
    for module in (clock_module, batch_module, terms, mark_batches):
        monkeypatch.setattr(module, "boot_seconds", made)
    return made


class Stopping(threading.Event):
    """A stop that nobody asks for; `waits` are those of the loop."""

    def __init__(self):
        super().__init__()
        self.waits = []

    def wait(self, timeout=None):
        self.waits.append(timeout)
        return False


@shows("io_error_backoff_seconds")
@pytest.mark.parametrize("seconds", [0.5, 2.0])
def test_a_failed_batch_is_sent_again_after_the_io_error_backoff(seconds):
    runs = BatchRuns(limits=Limits(io_error_backoff_seconds=seconds))
    runs.table.insert(row(1, "a"))
    runs.kafka.broken = 3
    loop = runs.loop()
    loop._stopping = stopping = Stopping()
    while runs.kafka.ids != [1]:
        loop.turn()
    assert stopping.waits == [seconds] * 3


@shows("mark_backoff_seconds")
@pytest.mark.parametrize("seconds", [0.02, 0.2])
def test_after_a_mark_that_found_nothing_comes_the_mark_backoff(clock, seconds):
    source = FakeSource(FakeTable())
    pages = MarkPages(source, seconds)
    pages.open(None)
    for tenth in range(31):
        clock.now = tenth * seconds / 10 + 1e-9 * tenth
        assert pages.read(10) is None
    assert source.calls.count("fetch") == 4, "at 0, 10, 20 and 30 tenths"
    pages.close()


def sizes(**limits):
    """Return the largest batch and the largest page that full ones lead to, and the first of each."""
    size = make_size(HarvestConfig(leadership="solo", source="snapshot", limits=limits))
    first = size.records, size.page
    for _ in range(20):
        size.done(size.records, full=True)
        size.measured([row(each, "k") for each in range(size.page)], size.page)
    return first, (size.records, size.page)


@shows("max_in_flight_records")
def test_a_batch_has_no_more_records_than_may_be_in_flight():
    assert sizes() == ((1_000, 500), (50_000, 2_000))
    assert sizes(max_in_flight_records=3) == ((3, 500), (3, 2_000))
    assert sizes(max_in_flight_records=2_500) == ((1_000, 500), (2_500, 2_000))
    assert sizes(max_in_flight_records=10**9) == sizes()


@pytest.mark.parametrize("most", [1, 9, 300])
def test_nothing_that_happens_to_batches_makes_one_larger_than_may_be_in_flight(most):
    dice, size = random.Random(most), make_size(HarvestConfig(leadership="solo", limits={"maxInFlightRecords": most}))
    for each in (size, size.another()):
        for _ in range(500):
            records = dice.randint(1, each.records)
            dice.choice([each.late, each.refused, partial(each.done, full=dice.random() < 0.7)])(records)
            assert 1 <= each.records <= most


def test_shards_share_the_records_in_flight_and_each_needs_one():
    config = HarvestConfig(leadership="solo", source="snapshot", shards=4, limits={"maxInFlightRecords": 11})
    assert make_size(config).records == 2
    with pytest.raises(ConfigError, match=r"is 3, less than `shards` \(4\)") as refused:
        HarvestConfig(leadership="solo", source="snapshot", shards=4, limits={"maxInFlightRecords": 3})
    assert refused.value.field == "limits.max_in_flight_records"


@shows("mark_query_records")
def test_a_page_has_no_more_rows_than_a_mark_may_take():
    assert sizes(mark_query_records=7) == ((1_000, 7), (50_000, 7))
    assert sizes(mark_query_records=10**9) == sizes()


def seconds_until_given_up(clock, **limits):
    """Revoke a term whose batch never lands, and return how long that was waited for."""
    runs = BatchRuns(limits=Limits(io_error_backoff_seconds=0, **limits))
    runs.table.insert(row(1, "a"))
    loop = runs.loop()

    def never(_checkpoint, may_send, /):
        runs.term.end(TermEnd.REVOKED)
        began = clock.now
        while may_send():
            clock.now += 0.125
        waited.append(clock.now - began)
        return BatchFailed(reason="not acknowledged in time")

    waited, runs.delivery.commit = [], never
    loop.run()
    assert loop.abandoned == 1
    return waited[0]


@shows("drain_interval_seconds")
@pytest.mark.parametrize("seconds", [0.5, 4.0])
def test_a_revoked_term_waits_for_its_batch_as_long_as_the_drain_interval(clock, seconds):
    assert seconds_until_given_up(clock, drain_interval_seconds=seconds) == seconds


@shows("max_poll_interval_seconds", "drain_interval_seconds")
@pytest.mark.parametrize("seconds", [0.5, 4.0])
def test_by_default_it_waits_as_long_as_the_max_poll_interval(clock, seconds):
    assert seconds_until_given_up(clock, max_poll_interval_seconds=seconds) == seconds


@shows("queue_timeout_seconds")
def test_and_no_longer_than_the_queue_timeout(clock):
    assert seconds_until_given_up(clock, queue_timeout_seconds=1.0) == 1.0


@pytest.mark.parametrize("how", TermEnd)
def test_a_batch_that_lands_after_the_end_counts_if_the_term_was_revoked(how):
    runs = BatchRuns()
    runs.table.insert(row(1, "a"))
    loop, commit = runs.loop(), runs.delivery.commit

    def late(checkpoint, may_send, /):
        runs.term.end(how)
        return commit(checkpoint, may_send) if may_send() else BatchFailed(reason="the term is over")

    runs.delivery.commit = late
    loop.run()
    assert runs.delivered == int(how is TermEnd.REVOKED)
    assert bool(loop.abandoned) is (how is TermEnd.FENCED)


def test_a_revoked_term_whose_lease_has_run_out_waits_no_longer(clock):
    runs = BatchRuns()
    loop = runs.loop()
    runs.term._clock, runs.term._lease_until = clock, 1.0
    runs.term.end(TermEnd.REVOKED)
    assert loop._rights.may_finish()
    clock.now = 1.0
    assert not loop._rights.may_finish(), "another may lead by now"


@pytest.mark.parametrize(("drain_interval", "expected"), [("2s", 6.0), ("20s", 40.0)])
def test_a_rebalance_waits_longer_than_the_drain_interval_and_the_delivery_timeout(drain_interval, expected):
    assert chosen(drainInterval=drain_interval).quiesce_timeout_seconds == expected


def elected(**limits):
    config = HarvestConfig(leader_group_id="g", leadership="neli", session_timeout_seconds=30, limits=limits)
    return make_leadership(config)


def chosen(**limits):
    """Return the settings of an election."""
    return elected(**limits)._settings


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
    neli._membership.accept(0.0)
    neli._judge()
    term = neli.term(0)
    clock.now = seconds - 0.01
    assert term.is_live()
    clock.now = seconds
    assert term.ended is TermEnd.FENCED


@shows("min_poll_interval_seconds")
@pytest.mark.parametrize("seconds", [0.05, 1.0])
def test_the_leader_topic_is_polled_by_the_min_poll_interval(seconds):
    settings = chosen(minPollInterval=f"{seconds}s")
    assert settings.min_poll_interval_seconds == seconds
    assert settings.heartbeat_interval_seconds == max(seconds, 0.5), "heartbeats come no more often"


@shows("poll_duration_seconds")
@pytest.mark.parametrize("seconds", [0.001, 0.25])
def test_a_poll_of_the_leader_topic_waits_for_the_poll_duration(seconds):
    assert chosen(pollDuration=f"{seconds}s").poll_duration_seconds == seconds


@shows("min_metrics_interval_seconds")
@pytest.mark.parametrize(("interval", "expected"), [("2s", [3, 2, 2, 2]), ("4s", [5, 4])])
def test_the_meter_is_read_no_more_often_than_the_min_metrics_interval(clock, interval, expected):
    config = HarvestConfig(leadership="solo", limits={"minMetricsInterval": interval})
    harvest = Harvest(config, source=FakeSource(FakeTable()), leadership=Solo())
    read = []
    harvest.set_event_handler(lambda event: isinstance(event, MeterRead) and read.append(event.stats.interval_count))
    for _ in range(10):
        harvest._terms._delivered(0, 1)
        clock.now += 1.0
    assert read == expected
