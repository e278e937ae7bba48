"""Whatever is on the wire when it is given up, giving up is not what kills a harvester."""

import uuid

import pytest
from support.outbox import read_topic
from support.rows import row
from support.waiting import eventually

from harvest_lib.delivery import BatchDeliverySettings, LaneSettings, Pipelined, PipelinedBatches, Topics
from harvest_lib.delivery.errors import raised
from harvest_lib.record.rows import RowQueue


@pytest.fixture
def frozen(stack):
    """The broker is, while it is asked for: what is sent goes on the wire and is not answered."""
    yield stack.kafka.suspend
    stack.kafka.resume()


def always():
    return True


def settings(bootstrap_servers, kind):
    return kind(kafka={"bootstrap.servers": bootstrap_servers, "linger.ms": 0}, delivery_timeout_seconds=10)


def test_a_batch_on_the_wire_can_be_abandoned_and_begun_again(stack, frozen, make_topic, bootstrap_servers):
    """The client calls it fatal, amid the reports of what was purged."""
    topic = make_topic(partitions=2)
    made = settings(bootstrap_servers, BatchDeliverySettings)
    delivery = PipelinedBatches(made, Topics(made.kafka))
    delivery.begin(uuid.uuid4())
    delivery.send([row(1, "k", topic=topic)], always)
    delivery.flush(always)
    frozen()
    delivery.send([row(number, f"k-{number % 50}", topic=topic) for number in range(2, 2_000)], always)
    delivery._producer.flush(0.2)
    delivery.abandon()
    stack.kafka.resume()
    delivery.begin(uuid.uuid4())
    delivery.send([row(number, "again", topic=topic) for number in range(2_000, 2_003)], always)
    delivery.flush(always)
    delivery.close()
    found = [record.outbox_id for record in read_topic(bootstrap_servers, topic) if record.key == "again"]
    assert found == [2_000, 2_001, 2_002]


def test_so_can_records_of_a_lane(stack, frozen, make_topic, bootstrap_servers):
    topic = make_topic(partitions=2)
    made = settings(bootstrap_servers, LaneSettings)
    delivery = Pipelined(made, Topics(made.kafka))
    delivery.begin(uuid.uuid4())
    delivery.send(RowQueue([row(1, "k", topic=topic)]), always)
    assert eventually(lambda: delivery.poll(0.1).acknowledged)
    frozen()
    delivery.send(RowQueue([row(number, f"k-{number % 50}", topic=topic) for number in range(2, 2_000)]), always)
    delivery._producer.flush(0.2)
    assert len(delivery.abandon().failed) == 1_998
    stack.kafka.resume()
    delivery.begin(uuid.uuid4())
    delivery.send(RowQueue([row(2_000, "again", topic=topic)]), always)
    assert eventually(lambda: delivery.poll(0.1).acknowledged)
    delivery.close()


def test_an_error_that_is_not_the_clients_is_raised():
    with pytest.raises(SystemError, match="another"):
        raised(SystemError("another"))
