"""Waiting for the markers that end Kafka's transactions: they may come after the commit has returned."""

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from support.waiting import PATIENCE_SECONDS, eventually


def await_markers(servers, topic, *, seconds=PATIENCE_SECONDS, **client):
    """Wait until no transaction is open in a topic: readers of committed records read to its end then."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0, **client})
    places = [TopicPartition(topic, number) for number in admin.list_topics(topic, 60).topics[topic].partitions]

    def ends(isolation):
        wanted = dict.fromkeys(places, OffsetSpec.latest())
        found = admin.list_offsets(wanted, isolation_level=isolation)
        return {place.partition: answer.result(60).offset for place, answer in found.items()}

    eventually(
        lambda: ends(IsolationLevel.READ_COMMITTED) == ends(IsolationLevel.READ_UNCOMMITTED),
        f"no transaction is open in {topic}",
        seconds=seconds,
    )
