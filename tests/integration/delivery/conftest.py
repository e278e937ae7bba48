"""Fixtures of the tests that drive one delivery."""

import pytest
from support.brokers import RealBroker


@pytest.fixture
def kafka(bootstrap_servers, make_topic):
    """A topic of a real broker, and deliveries to it."""
    broker = RealBroker(bootstrap_servers, make_topic())
    yield broker
    broker.close()
