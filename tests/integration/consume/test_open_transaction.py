"""A Kafka transaction that stays open hides what comes after it: readers of committed records say that they wait."""

import json

import pytest
from confluent_kafka import Producer
from support.consuming import Counting, Running
from support.outbox import harvest_config
from support.subscribed import Subscribed
from support.waiting import eventually

from harvest_lib.harvester.harvest import Harvest
from harvest_lib.kafka_offsets import open_transactions
from harvest_lib.kafka_offsets.open_transactions import settled_ends
from harvest_lib.pipeline.adaptors import reading

pytestmark = pytest.mark.gate


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(open_transactions, "LOOK_SECONDS", 0.0)


@pytest.fixture
def hanging(bootstrap_servers, unique):
    """Have a transaction of another program open in a topic; ended by the test, or at its end."""
    made = []

    def begin(topic):
        producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": unique("hangs")})
        made.append(producer)
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce(topic, b"never", key=b"never", partition=0)
        assert producer.flush(60) == 0
        return producer

    yield begin
    for each in made:
        each.close()


def said(caplog):
    return [(each.reason, each.next_step) for each in caplog.records if each.getMessage() == "transaction_open"]


def test_a_consumer_says_what_it_waits_for_and_goes_on(counted, hanging, caplog):
    counted.write(["a"])
    producer = hanging(counted.topic)
    counted.write(["b", "c"])
    running = Running(counted.shard(Counting()).run)
    eventually(lambda: said(caplog), "it is said")
    assert counted.counts() == {"a": 1}
    producer.abort_transaction(60)
    eventually(lambda: counted.counts() == {"a": 1, "b": 1, "c": 1}, "it goes on")
    assert running.end() is None
    ((reason, step),) = said(caplog)
    assert reason.startswith(f"a transaction is open in partition 0 of {counted.topic!r} since offset 1: 3 offsets")
    assert step.endswith(f"abort --topic {counted.topic} --partition 0 --start-offset 1")


def test_a_pipeline_says_so_too(bootstrap_servers, make_topic, hanging, caplog):
    topic = make_topic(partitions=1)
    producer = hanging(topic)
    side = reading("kafka")
    reader = side.make(side.options(kafka={"bootstrap.servers": bootstrap_servers}, topics=[topic], content="record"))
    batches = reader.read({})
    eventually(lambda: next(batches) is not None and said(caplog), "it is said")
    producer.commit_transaction(60)
    eventually(lambda: any(each.data.get("key") == "never" for each in next(batches)), "it goes on")
    reader.close()
    assert len(said(caplog)) == 1


@pytest.mark.full
def test_the_status_says_so_of_topics_that_are_harvested(
    dsn, bootstrap_servers, make_topic, group_id, harvest, hanging
):
    topic = make_topic(partitions=1)
    outbox = Subscribed(dsn, topic, bootstrap_servers, group_id)
    outbox.fill(3)
    config = harvest_config(dsn, bootstrap_servers, group_id, delivery="barrier", source="snapshot")
    asked = "SELECT leader -> 'topics' ? %s FROM outbox_subscriptions"
    with Harvest(config):
        eventually(lambda: outbox.connection.execute(asked, (topic,)).fetchone() == (True,), "the topic is known")
    servers = {
        "HARVEST_DSN": dsn,
        "HARVEST_BOOTSTRAP_SERVERS": bootstrap_servers,
        "HARVEST_LEADER_GROUP_ID": group_id,
    }
    eventually(
        lambda: "transaction" not in " ".join(json.loads(harvest("status", "--json", **servers).stdout)["notes"]),
        "nothing is said once Kafka answers in time",
    )
    outbox.connection.execute(
        """UPDATE outbox_subscriptions SET leader = jsonb_set(leader, '{topics,deleted}', '{"partitions": 3}')"""
    )
    producer = hanging(topic)
    said_so = f"a transaction is open in partition 0 of {topic!r}"
    eventually(
        lambda: said_so in " ".join(json.loads(harvest("status", "--json", **servers).stdout)["notes"]),
        "it is said once Kafka answers in time",
    )
    producer.abort_transaction(60)
    away = {**servers, "HARVEST_BOOTSTRAP_SERVERS": "127.0.0.1:1"}
    notes = " ".join(json.loads(harvest("status", "--json", **away).stdout)["notes"])
    assert "whether transactions are open in its topics is not known: Kafka at 127.0.0.1:1" in notes
    outbox.close()


def test_a_transaction_that_ends_meanwhile_is_waited_for(bootstrap_servers, make_topic, hanging):
    topic = make_topic(partitions=2)
    producer = hanging(topic)
    real, looks = open_transactions._ends, []

    def ends(*arguments):
        if len(looks) == 2:
            producer.commit_transaction(60)
        looks.append(real(*arguments))
        return looks[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_transactions, "_ends", ends)
        found = settled_ends({"bootstrap.servers": bootstrap_servers}, [(topic, 0), (topic, 1)], patience_seconds=60)
    assert found == {(topic, 0): 1, (topic, 1): 0}
