"""The number of shards changes while records come: each key's order is kept, nothing is lost, nothing comes twice."""

import threading

import psycopg
import pytest
from support.outbox import read_topic, steps_back
from support.subscribed import Subscribed
from support.waiting import eventually

from harvest_lib.errors import CheckpointError
from harvest_lib.leadership.pool import announced
from harvest_lib.outbox import append
from harvest_lib.record import OutboxRecord
from harvest_lib.source import SnapshotSource
from harvest_lib.source.sharding import shard_of
from harvest_lib.subscriptions.resharding import Resharding

pytestmark = pytest.mark.full

KEYS = 30


@pytest.fixture
def outbox(dsn, make_topic, bootstrap_servers, group_id):
    made = Subscribed(dsn, make_topic(partitions=4), bootstrap_servers, group_id)
    yield made
    made.close()


@pytest.fixture
def writer(outbox):
    """Something that writes all the time, one key after the other; its end is awaited."""
    stopping, written = threading.Event(), []

    def write():
        with psycopg.connect(outbox.dsn, autocommit=True) as connection:
            while not stopping.is_set():
                records = [OutboxRecord(topic=outbox.topic, key=f"k{n}", value="v") for n in range(KEYS)]
                append(connection, records)
                written.append(len(records))
                stopping.wait(0.03)  # under the barrier a key's records go one by one

    def stop():
        stopping.set()
        thread.join(60)
        return sum(written)

    thread = threading.Thread(target=write)
    thread.start()
    yield stop
    stop()


def reshard(outbox, shards, seconds=60):
    return Resharding(outbox.subscriptions, "default", shards).run(seconds)


def await_shards(outbox, number):
    eventually(lambda: len([each for each in outbox.subscriptions.shards() if each.is_led]) == number)


def waiting(outbox):
    return sum(outbox.subscriptions.lag(each).records for each in outbox.subscriptions.shards())


@pytest.mark.parametrize("source", ["snapshot", "transaction_id"])
@pytest.mark.parametrize("delivery", ["barrier", "pipelined", "transactional", "sequenced"])
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2)])
def test_each_key_keeps_its_order_across_the_change(outbox, writer, source, delivery, before, after):
    settings = {"source": source, "delivery": delivery}
    with outbox.made(shards=before, **settings) as old, outbox.made(shards=after, **settings) as new:
        old.start()
        await_shards(outbox, before)
        eventually(lambda: old.delivered_records > 2 * KEYS, "there are records before the change")
        done = reshard(outbox, after)
        assert (done.before, done.after) == (before, after)
        with pytest.raises(CheckpointError, match=f"divided into {after}, not {before}"):
            outbox.harvest(shards=before, **settings).start()
        new.start()
        await_shards(outbox, after)
        eventually(lambda: new.delivered_records > 2 * KEYS, "and after it")
        total = writer()
        eventually(lambda: waiting(outbox) == 0)
        with pytest.raises(CheckpointError, match=f"divided into {after}, not {before}"):
            old.await_stopped(60)
    records = read_topic(outbox.servers, outbox.topic, isolation="read_committed")
    assert sorted(record.outbox_id for record in records) == list(range(1, total + 1))
    assert steps_back(records) == 0
    assert {each.shards for each in outbox.subscriptions.shards()} == {after}
    assert all(each.until is None for each in outbox.subscriptions.shards())


def test_a_shard_that_nobody_leads_is_named_and_the_others_go_on(outbox):
    outbox.fill(20)
    outbox.harvest(shards=2).drain(60)
    outbox.connection.execute(
        "UPDATE outbox_subscriptions SET checkpoint = jsonb_set(checkpoint, '{position,prev}', '\"1:1:\"') "
        "WHERE shard = 1"
    )
    reported = []
    with pytest.raises(CheckpointError, match=r"which has no leader"):
        Resharding(outbox.subscriptions, "default", 3, tell=reported.append).run(0.5)
    assert reported == ["waiting for shard 0, which has no leader"]
    assert [(each.shards, each.until) for each in outbox.subscriptions.shards()] == [(2, None)] * 2


@pytest.mark.parametrize("source", ["snapshot", "transaction_id"])
def test_shards_at_rest_in_one_place_need_no_harvester(outbox, source):
    outbox.fill(20)
    outbox.subscriptions.add("default", source=source, shards=2, keys="^key-")
    (before,) = {each.generation for each in outbox.subscriptions.shards()}
    reshard(outbox, 4)
    shards = outbox.subscriptions.shards()
    assert [(each.shard, each.shards, each.keys) for each in shards] == [(n, 4, "^key-") for n in range(4)]
    assert min(each.generation for each in shards) > before
    outbox.harvest(shards=4, source=source).drain(60)
    assert sorted(outbox.arrived()) == list(range(1, 21))


@pytest.mark.gate
def test_a_leader_that_ends_without_hearing_of_it_is_not_waited_for(outbox):
    """As one that was stopped a moment before: its session is not over yet."""
    outbox.fill(20)
    outbox.harvest().drain(60)
    eventually(lambda: not outbox.shard().is_led)
    ending = psycopg.connect(outbox.dsn, application_name=announced(outbox.shard().leader_id))
    assert outbox.shard().is_led
    reported = []

    def tell(text):
        reported.append(text)
        ending.close()

    assert Resharding(outbox.subscriptions, "default", 3, tell=tell).run(60).after == 3
    assert reported == ["waiting for shard 0"]
    outbox.fill(20)
    outbox.harvest(shards=3).drain(60)
    assert sorted(outbox.arrived()) == list(range(1, 41))


def test_a_transaction_that_is_open_during_the_change_is_delivered_once_after_it(outbox):
    with outbox.made(shards=1) as harvest, psycopg.connect(outbox.dsn) as late:
        harvest.start()
        await_shards(outbox, 1)
        append(late, [OutboxRecord(topic=outbox.topic, key=f"k{n}", value="v") for n in range(10)])
        reshard(outbox, 2)
        late.commit()
    outbox.harvest(shards=2).drain(60)
    assert sorted(outbox.arrived()) == list(range(1, 11))


def test_the_same_number_again_lets_go_of_shards_that_were_told_to_stop(outbox):
    """Somebody killed the command in the middle."""
    with outbox.running():
        await_shards(outbox, 1)
        outbox.connection.execute("UPDATE outbox_subscriptions SET until = pg_current_snapshot()")
        eventually(lambda: outbox.shard().checkpoint and "until" in outbox.shard().checkpoint.position)
        outbox.fill(10)
        assert outbox.subscriptions.lag(outbox.shard()).records == 10
        reshard(outbox, 1)
        eventually(lambda: len(outbox.arrived()) == 10)


def test_a_leader_that_begins_in_the_middle_of_a_change_that_is_called_off_goes_on(outbox, monkeypatch):
    """It read the one thing and its source the other: to stop, and at the next look no longer to stop."""
    opened, first_read = SnapshotSource.open, SnapshotSource.read
    reported, called_off = [], []

    def open_when_told(source, position):
        if not reported:
            reported.append(outbox.connection.execute("UPDATE outbox_subscriptions SET until = pg_current_snapshot()"))
        return opened(source, position)

    def read_when_called_off(source, limit):
        if not called_off:
            called_off.append(outbox.connection.execute("UPDATE outbox_subscriptions SET until = NULL"))
        return first_read(source, limit)

    monkeypatch.setattr(SnapshotSource, "open", open_when_told)
    monkeypatch.setattr(SnapshotSource, "read", read_when_called_off)
    with outbox.running():
        eventually(lambda: called_off)
        outbox.fill(10)
        eventually(lambda: len(outbox.arrived()) == 10)


def test_what_is_parked_goes_to_the_shards_that_its_keys_belong_to_now(outbox):
    outbox.harvest(shards=2).drain(60)
    outbox.subscriptions.remove("default", force=True)  # the last session may still be closing
    outbox.subscriptions.add("default", shards=2)
    outbox.connection.cursor().executemany(
        "INSERT INTO outbox_parked_ids (subscription, shard, id, kafka_topic, kafka_key, reason, held, transaction_id) "
        "VALUES ('default', %s, %s, 't', %s, 'r', false, '0')",
        [(shard_of(key, 2), number, key) for number, key in enumerate("abcdefgh")],
    )
    reshard(outbox, 3)
    rows = outbox.connection.execute("SELECT shard, kafka_key FROM outbox_parked_ids").fetchall()
    assert sorted(rows) == sorted((shard_of(key, 3), key) for key in "abcdefgh")
