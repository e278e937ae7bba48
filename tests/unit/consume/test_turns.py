"""Turns of partitions: each goes on in its turn, whatever its start takes, and a turn that ends well is a recovery."""

import threading

import pytest
from support.clock import Clock
from support.waiting import eventually

from harvest_lib.consume import Consumer, ShardId
from harvest_lib.consume.ownership import Ownership
from harvest_lib.consume.room import TURN_SECONDS
from harvest_lib.errors import DatabaseUnavailable

pytestmark = pytest.mark.quick


class Step:
    """A shard that runs until its turn ends, or fails at once."""

    committed = transactions = parked = 0
    position = offset = -1
    caught_up = is_between_attempts = False
    stuck_since = going_since = opened_at = None

    def __init__(self, error=None):
        self._error = error
        self.began = threading.Event()

    def run(self, stopping):
        self.began.set()
        if self._error is not None:
            raise self._error
        assert stopping.wait(60)


class Turned(Consumer):
    def __init__(self, *shards):
        super().__init__(None, name="counts", topics=["flights"], settings={}, store=None)
        self.shards = list(shards)
        self.has_room = True

    def make_shard(self, _shard):
        return self.shards.pop(0)

    def no_room(self, _ownership, _error):
        return not self.has_room


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("harvest_lib.consume.ownership.boot_seconds", clock)
    return clock


@pytest.fixture
def begin(clock):
    """Begin an ownership of some shards, one after the other."""
    begun = []

    def begin(*shards):
        consumer = Turned(*shards)
        ownership = Ownership(consumer, ShardId("counts", "flights", 0))
        begun.append(ownership)
        return consumer, ownership

    yield begin
    for each in begun:
        each.stop()
        each.await_end(60)


def at_work(ownership, shard):
    ownership.begin()
    assert shard.began.wait(60)


def ended(ownership):
    eventually(lambda: not ownership.is_at_work, "it has ended")


def failed(ownership, shard):
    at_work(ownership, shard)
    ended(ownership)


def test_a_turn_runs_from_when_the_shard_goes_on(clock, begin):
    shard = Step()
    _, ownership = begin(shard)
    at_work(ownership, shard)
    clock.now += 30 * TURN_SECONDS
    assert not ownership.has_had_its_turn  # it still restores
    shard.going_since = clock.now
    clock.now += TURN_SECONDS - 0.1
    assert not ownership.has_had_its_turn
    clock.now += 0.1
    assert ownership.has_had_its_turn


def test_a_turn_lasts_until_a_failing_message_is_kept_or_parked(clock, begin):
    shard = Step()
    _, ownership = begin(shard)
    at_work(ownership, shard)
    shard.going_since, shard.is_between_attempts = clock.now, True
    clock.now += 30 * TURN_SECONDS
    assert not ownership.has_had_its_turn
    shard.is_between_attempts = False
    assert ownership.has_had_its_turn


def test_a_turn_has_an_end(clock, begin):
    shard = Step()
    _, ownership = begin(shard)
    at_work(ownership, shard)
    shard.is_between_attempts = True
    clock.now += 900.0
    assert ownership.has_had_its_turn


def test_a_turn_that_ends_well_is_a_recovery(clock, begin):
    away = DatabaseUnavailable("Postgres does not answer", evidence="refused", next_step="wait")
    shards = [Step(away), Step(away), Step(), Step(), Step(away)]
    _, ownership = begin(*shards)
    failed(ownership, shards[0])
    clock.now += 60.0
    failed(ownership, shards[1])
    assert ownership.seen.stuck_since is not None
    clock.now += 60.0
    at_work(ownership, shards[2])
    shards[2].transactions = 1
    ownership.end_turn()
    ended(ownership)
    assert ownership.seen.stuck_since is None
    at_work(ownership, shards[3])
    assert ownership.seen.stuck_since is None
    ownership.end_turn()
    ended(ownership)
    failed(ownership, shards[4])
    assert ownership.begin_at == clock.now + 0.2  # the first pause


def test_a_turn_that_keeps_nothing_is_none(clock, begin):
    away = DatabaseUnavailable("Postgres does not answer", evidence="refused", next_step="wait")
    shards = [Step(away), Step()]
    _, ownership = begin(*shards)
    failed(ownership, shards[0])
    since = ownership.seen.stuck_since
    assert since is not None
    clock.now += 60.0
    at_work(ownership, shards[1])
    ownership.end_turn()
    ended(ownership)
    assert ownership.seen.stuck_since == since


def test_waiting_for_room_is_no_failure(clock, begin):
    full = DatabaseUnavailable("Postgres opens no session", evidence="full", next_step="wait")
    shards = [Step(full) for _ in range(9)]
    consumer, ownership = begin(*shards)
    consumer.has_room = False
    waits_since = ownership.begin_at
    for shard in shards[:8]:
        clock.now += 1.0
        failed(ownership, shard)
        assert ownership.begin_at == waits_since  # it keeps its place among those that wait
    assert ownership.seen.stuck_since is None
    consumer.has_room = True
    failed(ownership, shards[8])
    assert ownership.begin_at == clock.now + 0.2
