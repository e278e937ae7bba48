"""An owner that was fenced off leaves the shard alone for a session: it does not fence its successor in turn."""

import threading
from types import SimpleNamespace

import pytest
from support.waiting import eventually

from harvest_lib.consume import Consumer, Fenced, ShardId
from harvest_lib.consume import consumer as consumer_module
from harvest_lib.consume.consumer import _Ownership
from harvest_lib.consume.telemetry import ConsumerTelemetry
from harvest_lib.telemetry.catalogue import CONSUMER_FENCED

pytestmark = pytest.mark.quick

SESSION_SECONDS = 45.0


class _Noted(threading.Event):
    """An event that says for how long it was to be waited for, and does not wait that long."""

    seen = None

    def wait(self, timeout=None):
        if self.seen is not None:
            self.seen.append(timeout)
        return super().wait(0.001)


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
    consumer = _Counting()
    monkeypatch.setattr(_Noted, "seen", consumer.seen)
    monkeypatch.setattr(consumer_module, "threading", SimpleNamespace(Event=_Noted, Thread=threading.Thread))
    ownership = _Ownership(consumer, ShardId("counts", "flights", 0))
    eventually(lambda: consumer.seen.count("begins") > 1, "it begins again")
    ownership.stopping.set()
    ownership.await_end(60)
    assert consumer.seen[:2] == ["begins", SESSION_SECONDS]
    assert consumer.fenced >= 1
    said = next(values for metric, values in ConsumerTelemetry(consumer).readings() if metric is CONSUMER_FENCED)
    assert said == {(): consumer.fenced}
