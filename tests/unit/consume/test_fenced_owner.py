"""An owner that was fenced off leaves the shard alone for a session: it does not fence its successor in turn."""

import pytest
from support.clock import Clock
from support.waiting import eventually

from harvest_lib.consume import Consumer, Fenced, ShardId
from harvest_lib.consume.ownership import Ownership
from harvest_lib.consume.telemetry import ConsumerTelemetry
from harvest_lib.telemetry.catalogue import CONSUMER_FENCED

pytestmark = pytest.mark.quick

SESSION_SECONDS = 45.0


class _Deposed:
    """A shard that finds, each time, that it is another's."""

    committed = transactions = parked = 0
    position = -1
    caught_up = False

    def run(self, _stopping):
        raise Fenced


class _Counting(Consumer):
    def __init__(self):
        super().__init__(
            None,
            name="counts",
            topics=["flights"],
            settings={"session.timeout.ms": int(SESSION_SECONDS * 1000)},
            store=None,
        )
        self.seen = []

    def make_shard(self, _shard):
        self.seen.append("begins")
        return _Deposed()


def test_who_was_fenced_off_waits_for_a_session(monkeypatch):
    consumer, clock = _Counting(), Clock()
    monkeypatch.setattr("harvest_lib.consume.ownership.boot_seconds", clock)
    ownership = Ownership(consumer, ShardId("counts", "flights", 0))

    def tended():
        ownership.begin()
        eventually(lambda: not ownership.is_at_work, "it has ended")
        return len(consumer.seen)

    assert tended() == 1
    clock.now += SESSION_SECONDS - 0.1
    assert tended() == 1
    clock.now += 0.1
    assert tended() == 2
    ownership.stop()
    ownership.await_end(60)
    assert consumer.fenced == 2
    said = next(values for metric, values in ConsumerTelemetry(consumer).readings() if metric is CONSUMER_FENCED)
    assert said == {(): consumer.fenced}
