"""An outbox whose checkpoints are tested, and a producer that writes to their topic."""

import pytest
from confluent_kafka import Producer
from support.subscribed import Subscribed


@pytest.fixture
def outbox(dsn, make_topic, bootstrap_servers, group_id):
    made = Subscribed(dsn, make_topic(partitions=4), bootstrap_servers, group_id)
    yield made
    made.close()


@pytest.fixture
def producer(bootstrap_servers):
    return Producer({"bootstrap.servers": bootstrap_servers})
