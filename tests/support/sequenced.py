"""Records that a reader of committed messages finds in a topic with acknowledgements."""

from itertools import chain

from confluent_kafka import Consumer, TopicPartition
from support.outbox import delivered

from harvest_lib.consume import MessageId, Sequencer, read_committed, read_uncommitted, unpack


def ends_of(bootstrap_servers, topic):
    """Return the end of each partition, as an offset, by its number."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "asks"})
    try:
        partitions = consumer.list_topics(topic, 60).topics[topic].partitions
        return {each: consumer.get_watermark_offsets(TopicPartition(topic, each), 60)[1] for each in partitions}
    finally:
        consumer.close()


def read_acknowledged(bootstrap_servers, topic, *, ring=8_192):
    """Read what is committed by now of all partitions, in the order in which it comes of each."""
    settings = {"bootstrap.servers": bootstrap_servers}
    return [
        delivered(message.record)
        for partition, end in sorted(ends_of(bootstrap_servers, topic).items())
        for message in chain.from_iterable(
            read_committed(settings, topic, partition, sequencer=Sequencer(ring=ring), end=end)
        )
    ]


def read_ids(bootstrap_servers, topic):
    """Read the ids of all messages of all partitions, acknowledgements and repeated ones too, by partition."""
    settings = {"bootstrap.servers": bootstrap_servers}
    return {
        partition: [
            unpack(message.id)
            for batch in read_uncommitted(settings, topic, partition, begin=0, end=end)
            for message in batch
        ]
        for partition, end in ends_of(bootstrap_servers, topic).items()
    }


def check_ids(by_partition):
    """Each id ticks: none is shared by two messages, wherever they are, and they rise in each partition."""
    ids: list[MessageId] = [each for found in by_partition.values() for each in found]
    assert ids
    assert len({(each.producer, each.clock) for each in ids}) == len(ids)
    for found in by_partition.values():
        for producer in {each.producer for each in found}:
            clocks = [each.clock for each in found if each.producer == producer]
            assert clocks == sorted(clocks)
