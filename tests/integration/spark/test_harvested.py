"""`harvested`: the records delivered to topics, each once, whatever was aborted, repeated or is pending."""

import random

import pytest
from pyspark.sql.types import StructType
from support.outbox import read_topic
from support.subscribed import Subscribed
from support.topic_sender import Pending, Sender, in_transactions

from harvest_lib.consume import Sequencer
from harvest_lib.errors import ConfigError, TopicMissing
from harvest_lib.sequencing import message_id
from harvest_lib.sequencing.batch import Message
from harvest_lib.sequencing.message_id import Flag, new_producer_id, pack
from harvest_lib.spark.data_source.harvested import harvested
from harvest_lib.spark.sequenced import committed

pytestmark = [pytest.mark.full, pytest.mark.spark]

_MESSAGES = "topic string, partition int, offset bigint, headers array<struct<key: string, value: binary>>"


@pytest.fixture
def outbox(dsn, make_topic, bootstrap_servers, group_id):
    made = Subscribed(dsn, make_topic(partitions=3), bootstrap_servers, group_id)
    yield made
    made.close()


def ids(spark, servers, topic):
    return sorted(row.outbox_id for row in harvested(spark, [topic], kafka={"bootstrap.servers": servers}).collect())


@pytest.mark.full
@pytest.mark.parametrize("delivery", ["barrier", "transactional", pytest.param("sequenced", marks=pytest.mark.gate)])
def test_what_was_delivered_comes_as_it_was_written(spark, outbox, bootstrap_servers, delivery):
    outbox.fill(40)
    outbox.harvest(delivery=delivery).drain()
    rows = harvested(spark, [outbox.topic], kafka={"bootstrap.servers": bootstrap_servers}).collect()
    found = {row.outbox_id: (row.key, bytes(row.value), [(k, bytes(v)) for k, v in row.headers]) for row in rows}
    assert len(rows) == len(found)
    asked = "SELECT id, kafka_key, kafka_value, kafka_header_keys, kafka_header_values FROM outbox"
    assert found == {
        record_id: (key, value.encode(), [(name, text.encode()) for name, text in zip(names, texts, strict=True)])
        for record_id, key, value, names, texts in outbox.connection.execute(asked)
    }
    (leader,) = {row.leader for row in rows}
    assert leader == str(read_topic(bootstrap_servers, outbox.topic)[0].leader_id)


def test_a_record_that_was_sent_again_comes_once_and_what_is_not_ours_never(spark, make_topic, bootstrap_servers):
    topic = make_topic(partitions=1)
    sender = Sender(bootstrap_servers, topic)
    for record_id in (1, 2, 2, 3, 2, 3, 4):
        sender.send(record_id)
    sender.producer.produce(topic, value=b"foreign", partition=0)
    sender.flush()
    rows = harvested(spark, [topic], kafka={"bootstrap.servers": bootstrap_servers}).collect()
    assert sorted((row.outbox_id, row.offset) for row in rows) == [(1, 0), (2, 1), (3, 3), (4, 6)]


def test_headers_of_the_row_that_have_our_names_come_too(spark, make_topic, bootstrap_servers):
    topic = make_topic(partitions=1)
    sender = Sender(bootstrap_servers, topic)
    given = [("harvest", b"mine"), ("harvest", None), ("message-id", b"order-7"), ("harvest", b"x" * 25)]
    sender.send(1, *given)
    sender.flush()
    (row,) = harvested(spark, [topic], kafka={"bootstrap.servers": bootstrap_servers}).collect()
    assert row.outbox_id == 1
    assert [(name, value and bytes(value)) for name, value in row.headers] == [*given, ("event", b"e")]


def test_what_kafka_aborted_or_has_open_does_not_come(spark, make_topic, bootstrap_servers, unique):
    topic = make_topic(partitions=1)
    sender = in_transactions(bootstrap_servers, topic, unique("t"))
    assert ids(spark, bootstrap_servers, topic) == [1, 2, 5]
    sender.producer.abort_transaction(30)


def test_what_is_pending_or_rolled_back_does_not_come(spark, make_topic, bootstrap_servers):
    topic = make_topic(partitions=1)
    sender = Sender(bootstrap_servers, topic)
    first, second = Pending(sender), Pending(sender)
    acknowledged = first.send(1)
    second.send(2)
    first.send(3)
    first.acknowledge(acknowledged)  # the first, not the second
    second.send(4)
    assert ids(spark, bootstrap_servers, topic) == [1]
    second.acknowledge()
    second.send(5)
    assert ids(spark, bootstrap_servers, topic) == [1, 2, 4]


def _producers(count):
    return [new_producer_id() for _ in range(count)]


def _history(draw):
    """Return messages of a few producers, whose clocks rise, fall, and repeat."""
    producers = _producers(draw.randint(1, 3))
    for offset in range(draw.randint(1, 25)):
        kind = draw.random()
        if kind < 0.04:
            yield offset, None
        elif kind < 0.08:
            yield offset, draw.choice([b"", b"x" * 16, message_id.ZERO, b"\xff" * 16])
        else:
            clock = draw.choice([0, *range(1, 12), 2**63 + 3, 2**64 - 1])
            flag = draw.choice([Flag.CONTINUE_TXN] * 5 + [Flag.ACK_TXN] * 3 + [Flag.OUTSIDE_TXN, 7])
            yield offset, pack(draw.choice(producers), clock, flag)


def test_committed_is_what_the_sequencer_returns(spark):
    seed = random.randrange(10**6)
    draw, rows, wanted = random.Random(seed), [], set()
    for partition in range(1_500):
        history = list(_history(draw))
        taken = Sequencer(ring=1_000).take([Message(offset, given, None) for offset, given in history])
        wanted |= {(partition, message.offset) for some in taken for message in some}
        rows += [
            ("t", partition, offset, None if given is None else [("other", b"1"), (message_id.HEADER_NAME, given)])
            for offset, given in history
        ]
    frame = spark.createDataFrame(rows, StructType.fromDDL(_MESSAGES))
    found = {(row.partition, row.offset) for row in committed(frame).collect()}
    assert found == wanted, f"seed {seed}"


def test_a_topic_that_is_not_there_and_settings_that_spark_cannot_be_told(spark, bootstrap_servers):
    with pytest.raises(TopicMissing, match="does not exist"):
        harvested(spark, ["nowhere"], kafka={"bootstrap.servers": bootstrap_servers})
    with pytest.raises(ConfigError, match=r"ssl\.key\.location"):
        harvested(spark, ["t"], kafka={"bootstrap.servers": bootstrap_servers, "ssl.key.location": "/k"})
