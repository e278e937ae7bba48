"""Reading a log whose brokers fall silent; the rest is tested with real ones."""

import time

import pytest
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException

from harvest_lib.audit import kafka_log
from harvest_lib.errors import KafkaAccessDenied, KafkaError, KafkaUnavailable
from harvest_lib.kafka_client import LastError

pytestmark = pytest.mark.quick


class Silent:
    def consume(self, *_arguments, **_named):
        time.sleep(0.01)
        return []


def test_silence_before_the_end_is_an_error(monkeypatch):
    monkeypatch.setattr(kafka_log, "_SILENCE_TIMEOUT_SECONDS", 0.1)
    with pytest.raises(KafkaException, match="nothing came"):
        list(kafka_log._read(Silent(), {("t", 0): 1}, None))


def test_nothing_to_read_asks_for_nothing():
    assert list(kafka_log._read(Silent(), {}, None)) == []


@pytest.mark.parametrize(
    ("code", "said", "expected", "exit_code"),
    [
        (ClientError._TIMED_OUT, [], KafkaUnavailable, 6),
        (ClientError._TIMED_OUT, [ClientError._TRANSPORT, ClientError._ALL_BROKERS_DOWN], KafkaUnavailable, 6),
        (ClientError._TIMED_OUT, [ClientError._AUTHENTICATION], KafkaAccessDenied, 6),
        (ClientError.TOPIC_AUTHORIZATION_FAILED, [], KafkaAccessDenied, 6),
        (ClientError.OFFSET_OUT_OF_RANGE, [], KafkaError, 6),
    ],
)
def test_what_an_error_means(code, said, expected, exit_code):
    settings = {"bootstrap.servers": "somewhere:9092", "sasl.password": "canary"}
    last = LastError()
    for each in said:
        last(ClientError(each))
    error = kafka_log._translate(ClientError(code), last, settings)
    assert type(error) is expected
    assert error.exit_code == exit_code
    assert error.evidence
    assert "canary" not in str(error)
