"""Messages that are ours, and the failure for one that was not delivered."""

import uuid

import pytest
from confluent_kafka import KafkaError as ClientError

from harvest_lib.airflow.messages import delivered, event_of, harvested, smoke_answer, smoke_message
from harvest_lib.audit.kafka_log import _observe
from harvest_lib.errors import KafkaError
from harvest_lib.record.header import origin_of, stamp

pytestmark = pytest.mark.quick

LEADER = uuid.uuid4()


class Message:
    """As much of a Kafka message as is asked for."""

    def __init__(self, headers=None, key=None, error=None):
        self._headers, self._key, self._error = headers, key, error

    def headers(self):
        return self._headers

    def key(self):
        return self._key

    def value(self):
        return b"a record"

    def error(self):
        return self._error

    def timestamp(self):
        return 1, 0

    def topic(self):
        return "flights"

    def partition(self):
        return 3

    def offset(self):
        return 17


def test_a_harvested_message_says_where_it_came_from():
    found = harvested(Message([("trace", b"x"), ("harvest", stamp(LEADER)(5))]))
    assert found == {"topic": "flights", "partition": 3, "offset": 17, "outbox_id": 5, "leader_id": str(LEADER)}


@pytest.mark.parametrize(
    "before", [[("harvest", b"of the row")], [("harvest", None), ("harvest", b"")], [("harvest", b"\2" + bytes(24))]]
)
@pytest.mark.parametrize("after", [[], [("harvest", b"x" * 25)]])
def test_a_row_with_a_header_of_the_same_name_is_harvested_too(before, after):
    headers = [*before, ("harvest", stamp(LEADER)(5)), *after]
    assert origin_of(headers) == (LEADER, 5)
    assert harvested(Message(headers))["outbox_id"] == 5
    assert _observe(Message(headers), None)[0].id == 5  # the audit


def test_an_event_is_named_by_the_record_and_has_the_key_only_if_it_is_given():
    found = harvested(Message([("harvest", stamp(LEADER)(5))]))
    assert event_of(found, None) == {"id": "flights:5", **found}
    assert event_of(found, b"caf\xe9")["key"] == "caf\ufffd"


@pytest.mark.parametrize("headers", [None, [], [("other", b"x")], [("harvest", b"short")], [("harvest", None)]])
def test_what_others_write_is_not_ours(headers):
    assert harvested(Message(headers)) is None


def test_a_smoke_test_knows_its_own_message():
    ((key, value),) = smoke_message("manual__1")
    assert "manual__1" in value
    assert smoke_answer("manual__1", Message(key=key.encode()))["offset"] == 17
    assert smoke_answer("manual__2", Message(key=key.encode())) is None
    assert smoke_answer("manual__1", Message(error=ClientError(ClientError._PARTITION_EOF))) is None


def test_a_message_that_was_not_delivered_fails_its_task():
    delivered(None, Message())
    with pytest.raises(KafkaError, match="topic flights did not take the message"):
        delivered(ClientError(ClientError.UNKNOWN_TOPIC_OR_PART), Message())
