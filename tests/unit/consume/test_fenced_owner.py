"""An owner that was fenced off leaves the shard alone for a session: it does not fence its successor in turn."""

import time

import pytest
from support.waiting import eventually

from harvest_lib.consume import Consumer, Fenced, ShardId
from harvest_lib.consume.consumer import _Ownership

pytestmark = pytest.mark.quick

SESSION_SECONDS = 0.8


class _Deposed:
    """A shard that finds, each time, that it is another's."""

    committed = transactions = parked = 0
    position = -1

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
        self.began = []

    def make_shard(self, _shard):
        self.began.append(time.monotonic())
        return _Deposed()


def test_who_was_fenced_off_waits_for_a_session():
    consumer = _Counting()
    ownership = _Ownership(consumer, ShardId("counts", "flights", 0))
    eventually(lambda: len(consumer.began) == 2, "it begins again")
    ownership.stopping.set()
    ownership.await_end(10)
    first, second = consumer.began
    assert second - first >= SESSION_SECONDS
    assert consumer.fenced >= 1
