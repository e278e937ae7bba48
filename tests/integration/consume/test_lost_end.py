"""A topic that lost its end, and grew past a consumer's position again: the next start refuses, however long it is."""

from contextlib import suppress

import psycopg
import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec
from support.consuming import Counting, Running
from support.topics import recreate
from support.waiting import eventually

from harvest_lib.consume import PostgresStore
from harvest_lib.errors import CheckpointError

pytestmark = pytest.mark.gate


def run(counted, counts, application=None, **limits):
    """Run a shard until these are counted; return what it raised."""
    running = Running(counted.shard(application or Counting(), **limits).run)
    eventually(lambda: running.error is not None or counted.counts() == counts, "counted, or refused")
    return running.end()


def end(counted, admin):
    """Return the end of the log; None while the broker knows none."""
    partition = TopicPartition(counted.topic, 0)
    with suppress(KafkaException):
        # An answer that waits for the old topic's leader would take all the time that the caller has.
        return admin.list_offsets({partition: OffsetSpec.latest()}, request_timeout=2)[partition].result(60).offset
    return None


def replace(counted, admin, keys, **config):
    """Put another log in the place of the topic's; shards of `counted` know no topic's id."""
    recreate(admin, counted.topic, **config)
    eventually(lambda: end(counted, admin) == 0, "the broker has the new log: what comes earlier goes to the old one")
    counted.write(keys)


def execute(counted, statement):
    with psycopg.connect(counted.dsn, autocommit=True) as connection:
        assert connection.execute(statement).rowcount == 1


@pytest.mark.parametrize("written", [["x", "y"], ["x", "y", "z", "z"]])
def test_a_log_that_grew_again_is_refused_until_an_operator_decides(counted, admin, written):
    counted.write(["a", "b"])
    assert run(counted, {"a": 1, "b": 1}) is None
    replace(counted, admin, written)
    for _ in range(2):
        refused = run(counted, None)
        assert isinstance(refused, CheckpointError)
        assert "lost its end" in refused.cause
        counted.write(["z"])
    goes_on, again = refused.next_step.split("To continue there: ")[1].split(
        "; to read again from an offset N instead, "
    )
    where = goes_on[goes_on.index(" WHERE") :].replace("'NAME'", "'counts'")
    set_offset = again[: again.index(". With")].replace("N", "0")
    execute(counted, f"UPDATE consumers {set_offset}{where}")
    total = {"a": 1, "b": 1}
    for key in [*written, "z", "z"]:
        total[key] = total.get(key, 0) + 1
    assert run(counted, total) is None


def test_what_it_says_lets_it_go_on_from_there(counted, admin):
    counted.write(["a", "b"])
    assert run(counted, {"a": 1, "b": 1}) is None
    replace(counted, admin, ["x", "y", "z"])
    refused = run(counted, None)
    goes_on = refused.next_step.split("To continue there: ")[1].split(";")[0]
    execute(counted, goes_on.replace("'NAME'", "'counts'"))
    assert run(counted, {"a": 1, "b": 1, "z": 1}) is None


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_position_within_a_batch_is_known_by_its_records_time(counted, admin, is_replaced):
    """Content may have been changed by the application until then."""

    class Changing(Counting):
        def consume_message(self, transaction, message):
            super().consume_message(transaction, message)
            message.record.set_value(b"changed")

    class Crashing(PostgresStore):
        def commit(self, checkpoint):
            kept = super().commit(checkpoint)
            if checkpoint.offset == 7:
                raise KeyboardInterrupt
            return kept

    keys = [str(number) for number in range(20)]
    counted.write(keys)
    crashed = Running(counted.shard(Changing(), Crashing(counted.dsn, counted.place), max_txn_duration_seconds=0).run)
    eventually(lambda: crashed.error is not None, "it crashes")
    crashed.end()
    with psycopg.connect(counted.dsn) as connection:
        assert connection.execute("SELECT checkpoint -> 'last' ->> 2 FROM consumers").fetchone() == ("",)
    if is_replaced:
        replace(counted, admin, [*keys, *keys])
        assert isinstance(run(counted, None), CheckpointError)
    else:
        assert run(counted, dict.fromkeys(keys, 1), Changing()) is None


@pytest.mark.parametrize("to", [1, 2])
def test_a_record_that_retention_removed_tells_nothing(counted, to):
    counted.write(["a", "b"])
    assert run(counted, {"a": 1, "b": 1}) is None
    counted.delete_before(to)
    counted.write(["c"])
    assert run(counted, {"a": 1, "b": 1, "c": 1}) is None


@pytest.mark.parametrize(("policy", "is_refused"), [("compact", False), ("delete", True)])
def test_a_record_that_is_gone_was_compacted_or_lost(counted, admin, unique, policy, is_refused):
    """Here the end of a transaction is in its place."""
    counted.write(["a", "b"])
    assert run(counted, {"a": 1, "b": 1}) is None
    replace(counted, admin, ["x"], **{"cleanup.policy": policy})
    producer = Producer({**counted.settings, "transactional.id": unique("id")})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(counted.topic, b"v", key="y")
    producer.commit_transaction(60)
    eventually(lambda: end(counted, admin) == 3, "the marker is written: the answer comes before that")
    execute(counted, "UPDATE consumers SET checkpoint = jsonb_set(checkpoint, '{last,0}', '2')")
    counted.write(["z"])
    assert isinstance(run(counted, {"a": 1, "b": 1, "z": 1}), CheckpointError) is is_refused
