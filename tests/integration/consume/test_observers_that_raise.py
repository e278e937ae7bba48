"""Observers of a consumer may raise: it costs their observation, and each message is processed once all the same."""

import logging

import pytest
from support.consuming import Counting, Running
from support.raising_observers import Panic, Raising
from support.waiting import eventually

pytestmark = pytest.mark.gate


class Grouping(Counting):
    def consume_messages(self, transaction, messages):
        for message in messages:
            self.consume_message(transaction, message)


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3), Panic("broken")], ids=repr)
@pytest.mark.parametrize("step", ["on_start", "on_end", "sampler", "provider"])
def test_tracing_that_raises(counted, monkeypatch, caplog, step, error):
    raising = Raising(step, error)
    raising.use(monkeypatch)
    counted.write(["a", "b"])
    publisher = counted.publisher()
    for key in ("c", "d"):
        publisher.publish_uncommitted(counted.topic, b"v", key=key)
    publisher.acknowledge(publisher.intents())
    publisher.flush()
    application = Grouping()
    running = Running(counted.shard(application).run)
    eventually(lambda: counted.counts() == dict.fromkeys("abcd", 1), "all are counted")
    assert running.end() is None
    assert set(application.calls.values()) == {1}, "no transaction was repeated"
    assert raising.calls
    assert [record.levelno for record in caplog.records if record.msg == "transaction_not_observed"] == [logging.ERROR]


def test_callbacks_of_clients_that_raise(counted, caplog):
    called = []

    def failing(*_arguments):
        called.append(None)
        raise Panic

    counted.write(["a"])
    counted.settings |= {"stats_cb": failing, "statistics.interval.ms": 10, "throttle_cb": failing}
    application = Counting()
    running = Running(counted.shard(application).run)
    eventually(lambda: counted.counts() == {"a": 1} and len(called) > 3, "it is counted")
    assert running.end() is None
    assert application.calls == {"a": 1}
    assert [record.msg for record in caplog.records if record.msg == "client_callback_failed"]
