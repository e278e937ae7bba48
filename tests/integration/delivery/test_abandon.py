"""Whatever is on the wire when it is given up, giving up is not what kills a harvester."""

import uuid

import pytest
from confluent_kafka.admin import AdminClient
from support.batches import START
from support.outbox import read_topic
from support.rows import row

from harvest_lib.delivery import AtLeastOnce, BatchDeliverySettings, Topics
from harvest_lib.delivery.errors import raised

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def bootstrap_servers(breakable_stack):
    return breakable_stack.bootstrap_servers


@pytest.fixture(scope="module")
def admin(bootstrap_servers):
    return AdminClient({"bootstrap.servers": bootstrap_servers})


@pytest.fixture
def freeze(breakable_stack):
    """Freeze the broker: requests go on the wire and are not answered."""
    yield breakable_stack.kafka.suspend
    breakable_stack.kafka.resume()


@pytest.fixture
def thaw(breakable_stack):
    return breakable_stack.kafka.resume


def always():
    return True


def test_a_batch_on_the_wire_can_be_abandoned_and_begun_again(freeze, thaw, make_topic, bootstrap_servers):
    """The client calls it fatal, amid the reports of what was purged."""
    topic = make_topic(partitions=2)
    kafka = {"bootstrap.servers": bootstrap_servers, "linger.ms": 0}
    made = BatchDeliverySettings(kafka=kafka, delivery_timeout_seconds=600)
    delivery = AtLeastOnce(made, Topics(made.kafka))
    delivery.begin(uuid.uuid4(), always)
    delivery.send([row(1, "k", topic=topic)], always)
    delivery.commit(START, always)
    freeze()
    delivery.send([row(number, f"k-{number % 50}", topic=topic) for number in range(2, 2_000)], always)
    delivery._producer._client.flush(0.2)
    delivery.abandon()
    thaw()
    delivery.begin(uuid.uuid4(), always)
    delivery.send([row(number, "again", topic=topic) for number in range(2_000, 2_003)], always)
    delivery.commit(START, always)
    delivery.abandon()
    found = [record.outbox_id for record in read_topic(bootstrap_servers, topic) if record.key == "again"]
    assert found == [2_000, 2_001, 2_002]


def test_an_error_that_is_not_the_clients_is_raised():
    with pytest.raises(SystemError, match="another"):
        raised(SystemError("another"))
