"""Errors that Kafka's clients report are counted, by each of those who hear of them."""

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError

from harvest_lib.consume import Consumer
from harvest_lib.kafka_client import LastError
from harvest_lib.telemetry.counts import KAFKA_ERRORS

pytestmark = pytest.mark.quick

ERROR = KafkaError(KafkaError._TRANSPORT)


def counted():
    return KAFKA_ERRORS.read().get(("_TRANSPORT",), 0)


def test_an_error_that_a_client_reports_by_itself_is_counted():
    before, last = counted(), LastError()
    last(ERROR)
    last(ERROR)
    assert counted() == before + 2


def test_an_error_of_a_consumer_s_group_is_counted():
    before = counted()
    consumer = Consumer(None, name="counts", topics=["flights"], settings={}, store=None)
    consumer._check_error(SimpleNamespace(error=lambda: ERROR))
    assert counted() == before + 1
    consumer._check_error(SimpleNamespace(error=lambda: None))
    consumer._check_error(None)
    assert counted() == before + 1
