"""The place where a watcher of a topic begins, by the offsets that it commits for its group."""

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewTopic
from support.waiting import eventually

from harvest_lib.airflow.triggers.topic_events import TopicEvents

pytestmark = pytest.mark.gate

NO_COORDINATOR = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)


@pytest.fixture
def consumer(bootstrap_servers, group_id):
    made = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": group_id, "enable.auto.commit": False})
    yield made
    made.close()


def events(topic):
    return TopicEvents(topics=[topic], kafka_config_id="watch", start="now", poll_timeout=1.0)


def begin(watcher, consumer, topic):
    """Begin, as soon as the brokers have a coordinator for the group."""

    def begun():
        try:
            watcher._begin(consumer, topic)
        except KafkaException as error:
            if error.args[0].code() in NO_COORDINATOR:
                return False
            raise
        return True

    eventually(begun, "the watcher begins")


def written(bootstrap_servers, topic, count):
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for _ in range(count):
        producer.produce(topic, "v")
    producer.flush(60)


def committed(consumer, topic):
    return consumer.committed([TopicPartition(topic, 0)], timeout=60)[0].offset


def test_a_topic_that_is_there_begins_at_its_end_once(make_topic, consumer, bootstrap_servers):
    topic = make_topic(partitions=1)
    written(bootstrap_servers, topic, 3)
    begin(events(topic), consumer, topic)
    written(bootstrap_servers, topic, 2)
    begin(events(topic), consumer, topic)
    assert committed(consumer, topic) == 3


def test_a_topic_that_comes_after_the_start_begins_at_its_beginning(admin, unique, consumer, bootstrap_servers):
    topic = unique("late")
    watcher = events(topic)
    with pytest.raises(KafkaException, match="Unknown topic"):
        watcher._begin(consumer, topic)
    admin.create_topics([NewTopic(topic, 1)])[topic].result(60)
    written(bootstrap_servers, topic, 3)
    eventually(lambda: consumer.list_topics(topic, timeout=60).topics[topic].error is None, "the topic is known")
    begin(watcher, consumer, topic)
    assert committed(consumer, topic) == 0
