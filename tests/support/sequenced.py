"""What a reader of committed messages finds in a topic whose records are acknowledged."""

from itertools import chain

from confluent_kafka import Consumer, TopicPartition
from support.outbox import delivered

from harvest_lib.consume import Sequencer, read_committed


def ends_of(bootstrap_servers, topic):
    """Return the end of each partition, as an offset, by its number."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "asks"})
    try:
        partitions = consumer.list_topics(topic, 10).topics[topic].partitions
        return {each: consumer.get_watermark_offsets(TopicPartition(topic, each), 10)[1] for each in partitions}
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
