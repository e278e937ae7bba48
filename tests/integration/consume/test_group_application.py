"""Applications that take what one acknowledgement commits by one call: as exact as message by message."""

from contextlib import suppress

import psycopg
import pytest
from support.consuming import Counting, Running, read_keys
from support.waiting import eventually

pytestmark = pytest.mark.gate


class AtOnce(Counting):
    """Takes groups, and notes how large they were."""

    def __init__(self, *options, **named):
        super().__init__(*options, **named)
        self.sizes = []

    def consume_messages(self, transaction, messages):
        self.sizes.append(len(messages))
        for message in messages:
            self.consume_message(transaction, message)


def publish(counted, *groups):
    """Write messages of these keys, a group for each acknowledgement."""
    publisher = counted.publisher()
    for keys in groups:
        for key in keys:
            publisher.publish_uncommitted(counted.topic, b"v", key=key)
        publisher.acknowledge(publisher.intents())
    publisher.flush()


def test_what_one_acknowledgement_commits_comes_by_one_call(counted, make_topic):
    derived = make_topic(name=f"{counted.topic}-derived")
    publish(counted, "abc", "d", "ef")
    counted.write(["g"])
    application = AtOnce(derived)
    shard = counted.shard(application)
    running = Running(shard.run)
    eventually(lambda: counted.counts() == dict.fromkeys("abcdefg", 1), "counted")
    assert running.end() is None
    assert application.sizes == [3, 2], "what is alone comes alone"
    assert shard.committed == 7
    assert read_keys(counted.settings, derived, 7) == list("abcdefg")


def test_what_the_ring_does_not_hold_comes_one_by_one(counted):
    publish(counted, [str(number % 7) for number in range(100)])
    application = AtOnce()
    running = Running(counted.shard(application, ring=10).run)
    eventually(lambda: sum(counted.counts().values()) == 100, "counted")
    assert running.end() is None
    assert application.sizes == []


def test_of_a_group_that_fails_only_the_bad_message_is_parked(counted):
    publish(counted, ["a", "b"], ["c", "bad", "d"], ["e", "f"])
    application = AtOnce(fails=("bad",))
    running = Running(counted.shard(application, max_attempts=3).run)
    eventually(lambda: counted.counts() == dict.fromkeys("abcdef", 1), "the others are counted")
    assert running.end() is None
    assert application.calls["bad"] == 1 + 3, "with its group, and three times alone"
    assert [(key, reason) for _, key, reason in counted.parked()] == [(b"bad", "ValueError: not bad")]


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK", "SELECT 1/0"])
def test_a_group_that_ends_or_breaks_the_transaction_is_not_kept(counted, statement):
    class Breaking(AtOnce):
        def consume_message(self, transaction, message):
            super().consume_message(transaction, message)
            if message.record.key() == b"bad":
                with suppress(psycopg.Error):
                    transaction.state.execute(statement)

    publish(counted, ["a", "bad", "b"])
    running = Running(counted.shard(Breaking(), max_attempts=2).run)
    eventually(lambda: counted.counts() == {"a": 1, "b": 1}, "the others are counted")
    assert running.end() is None
    ((_, key, reason),) = counted.parked()
    assert key == b"bad"
    assert "the transaction" in reason
