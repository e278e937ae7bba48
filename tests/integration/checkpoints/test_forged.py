"""Entries of the checkpoint topic that no leader of ours has written, and a topic that is not the one it was."""

import json

import pytest
from support.outbox import read_topic
from support.servers import await_replicated, standby_of
from support.subscribed import Subscribed
from support.waiting import eventually

from harvest_lib.checkpoints import kafka_store
from harvest_lib.errors import CheckpointError, KafkaUnavailable, ServerRegressed
from harvest_lib.kafka_topics import topic_missing
from harvest_lib.local_stack.postgres import PostgresServer

pytestmark = pytest.mark.full

EXACTLY_ONCE = {"delivery": "transactional"}


def drain(outbox, **settings):
    outbox.harvest(**EXACTLY_ONCE, **settings).drain(60)


def checkpoint_topic(outbox):
    return f"{outbox.group}.default.checkpoint"


def last(outbox):
    records = read_topic(outbox.servers, checkpoint_topic(outbox), isolation="read_committed")
    return records[-1].offset, json.loads(records[-1].value)


def put(outbox, producer, value):
    """Write to the checkpoint topic as anybody may who has the right to; return the offset."""
    offsets = []
    producer.produce(
        checkpoint_topic(outbox), value, "default/0", 0, lambda _error, message: offsets.append(message.offset())
    )
    assert producer.flush(60) == 0
    return offsets[0]


def forged(record, **changes):
    """Return a record of ours that was changed so; one that is changed to None is left out."""
    position = {**record["position"], "prev": "900000:900000:"}
    changed = {**record, "number": record["number"] + 1, "position": position, **changes}
    return json.dumps({name: value for name, value in changed.items() if value is not None}).encode()


UNREADABLE = "it cannot be read"
GARBAGE = {
    "no JSON": b"\x00\xffnonsense",
    "cut off": b'{"generation": 0, "num',
    "another shape": b'"checkpoint"',
    "a list": b"[1, 2]",
    "without a number": b'{"generation": 0, "position": null, "kept_in": "kafka"}',
    "a number that is none": b'{"generation": 0, "number": "7", "position": null, "kept_in": "kafka"}',
    "true for a number": b'{"generation": 0, "number": true, "position": null, "kept_in": "kafka"}',
    "nested": b"[" * 100_000,
}
FORGED = {
    "an epoch that was never given": ({"epoch": 99}, "epoch 99"),
    "a leader that was never recorded": ({"leader_id": "0b5c1b4e-0000-4000-8000-000000000000"}, "0b5c1b4e-0000-4000"),
    "another subscription's": ({"subscription": "other"}, "'other'"),
    "another shard's": ({"shard": 1}, "shard 1"),
    "a generation to come": ({"generation": 2**62}, "generation"),
    "nobody's": ({"identity": None, "epoch": None, "leader_id": None}, "does not name the outbox"),
    "a position that is none": ({"position": {"source": "snapshot", "prev": "x"}}, "position"),
    "a position of another source": ({"position": {"source": "transaction_id"}}, "position"),
}


@pytest.mark.parametrize("kind", [*GARBAGE, *FORGED])
def test_what_no_leader_has_written_is_named_and_rewinding_mends_it(outbox, producer, kind):
    outbox.write("1", "2")
    drain(outbox)
    changes, why = FORGED.get(kind, ({}, UNREADABLE))
    offset = put(outbox, producer, GARBAGE.get(kind) or forged(last(outbox)[1], **changes))
    outbox.write("3")
    for _ in range(2):
        with pytest.raises(CheckpointError) as error:
            drain(outbox)
        assert f"topic {checkpoint_topic(outbox)}, partition 0, offset {offset}" in error.value.evidence
        assert why in error.value.evidence
        assert "harvest subscriptions rewind default --to mirror" in error.value.next_step
    outbox.subscriptions.rewind("default", to="mirror")
    drain(outbox)
    assert outbox.committed() == [1, 2, 3]
    outbox.write("4")
    drain(outbox)
    assert outbox.committed() == [1, 2, 3, 4], "and it stays mended"


def test_a_checkpoint_of_another_outbox_is_not_read_as_forged(outbox, producer):
    outbox.write("1")
    drain(outbox)
    _, record = last(outbox)
    put(outbox, producer, forged(record, identity="7/7/7", epoch=99))
    with pytest.raises(CheckpointError, match="another outbox"):
        drain(outbox)


def test_leaders_that_die_before_their_mirror_is_written_are_remembered(outbox, monkeypatch):
    """The last in Kafka may be of a leader some epochs ago."""
    outbox.write("1")
    drain(outbox)
    _, before = last(outbox)
    monkeypatch.setattr("harvest_lib.batching.loop.BatchLoop._require_saved", lambda _self: None)
    outbox.write("2")
    drain(outbox)
    monkeypatch.undo()
    _, record = last(outbox)
    assert record["epoch"] > before["epoch"]
    lead_and_die(outbox, monkeypatch, times=3)
    outbox.write("3")
    drain(outbox)
    assert outbox.committed() == [1, 2, 3]


# -- records that a leader of ours has written


def row(outbox):
    statement = "SELECT epoch, leader_id, checkpoint FROM outbox_subscriptions"
    return dict(zip(("epoch", "leader_id", "checkpoint"), outbox.connection.execute(statement).fetchone(), strict=True))


def change(outbox, expression, **values):
    statement = "UPDATE outbox_subscriptions SET checkpoint = checkpoint "
    outbox.connection.execute(statement + expression, values)


def lead_and_die(outbox, monkeypatch, times=1):
    with monkeypatch.context() as patch:
        patch.setattr("harvest_lib.checkpoints.kafka_store.KafkaStore.load", lambda _self: 1 / 0)
        for _ in range(times):
            with pytest.raises(ZeroDivisionError), outbox.harvest(**EXACTLY_ONCE) as harvest:
                harvest.await_stopped(60)


def test_a_position_of_another_source_and_an_earlier_generation_does_not_count(outbox):
    outbox.write("1", "2")
    drain(outbox, source="transaction_id")
    outbox.subscriptions.rewind("default", to="mirror", source="snapshot")  # which repeats what it cannot express
    outbox.harvest(delivery="barrier").drain(60)
    outbox.write("3")
    drain(outbox)
    assert set(outbox.committed()) == {1, 2, 3}


def test_one_from_before_a_delivery_without_transactions_does_not_count(outbox):
    """Its writer is not listed any more, and need not be."""
    outbox.write("1")
    drain(outbox)
    outbox.write("2")
    outbox.harvest(delivery="barrier").drain(60)
    outbox.write("3")
    drain(outbox)
    assert outbox.committed() == [1, 2, 3]


def test_the_list_of_leaders_stays_short(outbox, monkeypatch):
    outbox.write("1")
    drain(outbox)
    saved = row(outbox)
    author = str(saved["epoch"])
    many = {str(each): str(saved["leader_id"]) for each in range(1 - 3000, saved["epoch"] + 1)}
    change(outbox, "|| jsonb_build_object('leaders', %(many)s::jsonb)", many=json.dumps(many))
    lead_and_die(outbox, monkeypatch)
    assert len(row(outbox)["checkpoint"]["leaders"]) == 256
    drain(outbox)
    assert list(row(outbox)["checkpoint"]["leaders"]) == [author, str(saved["epoch"] + 1), str(saved["epoch"] + 2)]
    for _ in range(3):
        drain(outbox)
    monkeypatch.setattr("harvest_lib.checkpoints.authors._RECENT_LEADERS", 2)
    drain(outbox)
    last_two = [str(row(outbox)["epoch"] - 1), str(row(outbox)["epoch"])]
    assert sorted(row(outbox)["checkpoint"]["leaders"], key=int) == [author, *last_two]
    outbox.write("2")
    drain(outbox)
    assert outbox.committed() == [1, 2]


def save_without_a_commit(outbox, **settings):
    """Have a leader with nothing to deliver save, by giving it a place to stop."""
    before = row(outbox)["checkpoint"]["leader_id"]
    with outbox.running(**EXACTLY_ONCE, **settings) as harvest:
        eventually(lambda: harvest._terms.loops and harvest._terms.loops[0].idle, "it leads")
        outbox.connection.execute("UPDATE outbox_subscriptions SET until = pg_current_snapshot()")
        eventually(lambda: row(outbox)["checkpoint"]["leader_id"] != before, "it saves")
    outbox.connection.execute("UPDATE outbox_subscriptions SET until = NULL")


def test_a_save_without_a_commit_keeps_who_wrote_what_is_in_kafka(outbox):
    outbox.write("1")
    drain(outbox)
    author = row(outbox)
    save_without_a_commit(outbox)
    assert row(outbox)["checkpoint"]["leaders"][str(author["epoch"])] == str(author["leader_id"])
    outbox.write("2")
    drain(outbox)
    assert outbox.committed() == [1, 2]


@pytest.fixture
def primary(tmp_path):
    made = PostgresServer(tmp_path / "primary", durable=False)
    made.start()
    yield made
    made.kill()


def test_a_promoted_standby_that_lacks_the_last_epoch_is_not_gone_on_from(
    primary, tmp_path, make_topic, bootstrap_servers, group_id
):
    """Of marked rows too: ids that Kafka's checkpoint has to purge may be those of other records now."""
    outbox = Subscribed(primary.dsn, make_topic(), bootstrap_servers, group_id)
    outbox.write("1", "2", "3")
    drain(outbox, source="mark")
    outbox.write("4")
    standby = standby_of(primary, tmp_path / "standby")
    try:
        await_replicated(primary, standby)
        standby.stop()
        drain(outbox, source="mark")
        epoch, record = row(outbox)["epoch"], last(outbox)[1]
        outbox.close()
        primary.kill()
        standby.start()
        standby.promote()
        outbox = Subscribed(standby.dsn, outbox.topic, bootstrap_servers, group_id)
        assert row(outbox)["epoch"] == epoch - 1 == record["epoch"] - 1
        outbox.write("5")
        for _ in range(2):
            with pytest.raises(ServerRegressed, match="rewind default --to mirror`"):
                drain(outbox, source="mark")
        outbox.subscriptions.rewind("default", to="mirror")
        drain(outbox, source="mark")
        found = outbox.committed()
        assert found[:4] == [1, 2, 3, 4]
        assert len(set(found)) == 5, "4 may come again: that it was marked is lost too"
        assert row(outbox)["checkpoint"]["timeline"] == "00000002"
    finally:
        outbox.close()
        standby.kill()


# -- a group or a topic that is another


def test_another_group_is_said_to_be_what_changed(outbox):
    outbox.write("1")
    drain(outbox)
    group = outbox.group
    outbox.group = f"{group}2"
    with pytest.raises(CheckpointError) as error:
        drain(outbox)
    assert "the configuration names another" in error.value.cause
    assert "recreated" not in str(error.value)
    assert f"`leaderGroupID` was '{group}' and is '{group}2'" in error.value.evidence
    outbox.group = group
    outbox.write("2")
    drain(outbox)
    assert outbox.committed() == [1, 2], "set back, it goes on"


def test_another_group_is_taken_on_purpose(outbox):
    outbox.write("1")
    drain(outbox)
    outbox.group = f"{outbox.group}2"
    outbox.subscriptions.rewind("default", to="mirror")
    outbox.write("2")
    drain(outbox)
    assert outbox.committed() == [1, 2]


def test_another_name_of_the_topic_is_said_to_be_what_changed(outbox):
    outbox.write("1")
    drain(outbox, checkpoint_topic=f"{outbox.group}.one")
    with pytest.raises(CheckpointError) as error:
        drain(outbox, checkpoint_topic=f"{outbox.group}.two")
    assert f"`checkpointTopic` was '{outbox.group}.one' and is '{outbox.group}.two'" in error.value.evidence
    assert "leaderGroupID" not in error.value.evidence


def test_a_topic_that_was_deleted_is_told_by_its_id(outbox, admin):
    outbox.write("1")
    drain(outbox)
    topic = checkpoint_topic(outbox)
    admin.delete_topics([topic])[topic].result(60)
    eventually(lambda: topic not in admin.list_topics(timeout=60).topics, "it is gone")
    with pytest.raises(CheckpointError, match="behind its mirror") as error:
        drain(outbox)
    assert "the topic was deleted" in error.value.cause
    assert "the topic's id was" in error.value.evidence


@pytest.mark.full
@pytest.mark.parametrize("late", [2, 10**9])
def test_a_topic_that_only_a_broker_does_not_know_yet_is_not_said_to_be_deleted(outbox, monkeypatch, late):
    outbox.write("1")
    drain(outbox)
    real, answers = kafka_store.read_checkpoints, []

    def lagging(settings, topic, *rest, **named):
        answers.append(topic)
        if len(answers) <= late:
            raise topic_missing(topic, partitions=1, evidence="Broker: Unknown topic or partition")
        return real(settings, topic, *rest, **named)

    monkeypatch.setattr(kafka_store, "read_checkpoints", lagging)
    monkeypatch.setattr(kafka_store, "_CATCH_UP_SECONDS", 0.5, raising=False)
    outbox.write("2")
    if late > 2:
        with pytest.raises(KafkaUnavailable, match="the controller knows it"):
            drain(outbox)
    else:
        drain(outbox)
        assert outbox.committed() == [1, 2]


# -- a subscription that was removed, and names that meet


def test_a_removed_subscription_begins_where_the_message_says(outbox):
    outbox.write("1", "2")
    drain(outbox)
    outbox.subscriptions.remove("default", force=True)  # the last session may still be closing
    outbox.write("3")
    for _ in range(2):
        with pytest.raises(CheckpointError) as error:
            drain(outbox)
        assert "`harvest subscriptions rewind default --to beginning|now|SNAPSHOT`" in error.value.next_step
        assert "mirror" not in error.value.next_step
    outbox.subscriptions.rewind("default", to="now")
    outbox.write("4")
    drain(outbox)
    assert outbox.committed() == [1, 2, 4]


def test_a_removed_subscription_that_was_added_again_goes_on(outbox):
    outbox.write("1", "2")
    drain(outbox)
    outbox.subscriptions.remove("default", force=True)  # the last session may still be closing
    outbox.subscriptions.add("default", start="now")
    outbox.write("3")
    drain(outbox)
    assert outbox.committed() == [1, 2, 3]


def test_two_names_that_make_one_topic_do_not_fence_each_other(outbox):
    """Group x with y.z, and group x.y with z."""
    first = {"leader_group_id": outbox.group, "subscription": "y.z"}
    second = {"leader_group_id": f"{outbox.group}.y", "subscription": "z"}
    outbox.write("1")
    with outbox.running(**EXACTLY_ONCE, **first) as harvest:
        eventually(lambda: harvest.delivered_records == 1, "the first delivers")
        with pytest.raises(CheckpointError, match="two configurations share the checkpoint topic") as error:
            drain(outbox, **second)
        assert "`checkpointTopic`" in error.value.next_step
        outbox.write("2")
        eventually(lambda: harvest.delivered_records == 2, "it was not fenced")
    drain(outbox, **second, checkpoint_topic=f"{outbox.group}.own")
    drain(outbox, **first)


def test_a_subscription_may_keep_the_topic_of_its_former_name(outbox):
    topic = f"{outbox.group}.old.checkpoint"
    outbox.write("1")
    drain(outbox, subscription="old")
    drain(outbox, subscription="new", checkpoint_topic=topic)
    drain(outbox, subscription="new", checkpoint_topic=topic)
    assert outbox.committed() == [1, 1]
