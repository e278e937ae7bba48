"""Spans of consumers: of each transaction, kept or not, linked to those who wrote its messages."""

import threading

import pytest
from confluent_kafka import Producer
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode
from support.consuming import Counting, Running
from support.open_telemetry import Traces, header
from support.waiting import eventually

from harvest_lib.consume import PostgresStore, Publisher

pytestmark = pytest.mark.gate


@pytest.fixture
def traces(monkeypatch):
    return Traces(monkeypatch)


class Grouping(Counting):
    """Counts many by a call."""

    def consume_messages(self, transaction, messages):
        for message in messages:
            self.consume_message(transaction, message)


class Tracing(Counting):
    """Makes a span of its own in each call."""

    def __init__(self, tracer, **named):
        super().__init__(**named)
        self._tracer = tracer

    def consume_message(self, transaction, message):
        with self._tracer.start_as_current_span("of the function"):
            super().consume_message(transaction, message)


def write(counted, keyed):
    """Write a message of each key, with the header that it has."""
    producer = Producer(counted.settings)
    for key, traceparent in keyed.items():
        headers = [("type", b"t"), ("traceparent", traceparent and traceparent.encode())]
        producer.produce(counted.topic, b"v", key=key, headers=headers)
    assert producer.flush(60) == 0


def written(traces):
    with traces.tracer.start_as_current_span("write") as span:
        return span


@pytest.mark.parametrize("application", [Counting, Grouping])
def test_a_transaction_leads_to_those_who_wrote_its_messages(counted, traces, application):
    one, other = written(traces), written(traces)
    write(
        counted, {"a": header(one), "b": header(other), "c": None, "d": header(one)[:-1] + "0", "e": "\xff" * 54 + "1"}
    )
    counted.write(["f"])
    running = Running(counted.shard(application()).run)
    eventually(lambda: sum(counted.counts().values()) == 6, "counted")
    assert running.end() is None
    assert sum(each.attributes["messaging.batch.message_count"] for each in traces.ours) == 6
    assert traces.linked == {header(one), header(other)}
    span = traces.ours[0]
    assert (span.name, span.kind, span.parent) == (f"process {counted.topic}", SpanKind.CONSUMER, None)
    named = {name: value for name, value in span.attributes.items() if name != "messaging.batch.message_count"}
    assert named == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": counted.topic,
        "messaging.destination.partition.id": "0",
        "messaging.consumer.group.name": "counts",
    }
    assert {each.status.status_code for each in traces.ours} == {StatusCode.UNSET}


def test_messages_that_were_published_are_linked_too(counted, traces):
    """Those of a transaction that waits for its acknowledgement, and is read again where the ring was too small."""
    span = written(traces)
    publisher: Publisher = counted.publisher()
    for number in range(20):
        publisher.publish_uncommitted(
            counted.topic, b"v", key=f"k{number}", partition=0, headers=[("traceparent", header(span).encode())]
        )
    publisher.acknowledge(publisher.intents())
    publisher.flush()
    running = Running(counted.shard(Counting(), ring=4).run)
    eventually(lambda: sum(counted.counts().values()) == 20, "counted")
    assert running.end() is None
    assert traces.linked == {header(span)}


def test_functions_run_in_the_span_of_their_transaction(counted, traces):
    counted.write(["a"])
    running = Running(counted.shard(Tracing(traces.tracer)).run)
    eventually(lambda: counted.counts() == {"a": 1}, "counted")
    assert running.end() is None
    (own,) = [each for each in traces.all if each.name == "of the function"]
    (ours,) = traces.ours
    assert own.parent == ours.context
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_a_transaction_that_is_not_kept_is_an_error(counted, traces):
    counted.write(["bad"])
    running = Running(counted.shard(Counting(fails=["bad"]), max_attempts=2).run)
    eventually(counted.parked, "parked")
    assert running.end() is None
    assert {each.attributes["error.type"] for each in traces.ours if not each.status.is_ok} == {"refused"}


def test_a_span_says_that_another_owns_the_shard(counted, traces):
    began, go_on = threading.Event(), threading.Event()

    class Frozen(PostgresStore):
        def commit(self, checkpoint):
            began.set()
            go_on.wait(60)
            return super().commit(checkpoint)

    counted.write(["a"])
    old = Running(counted.shard(Counting(), Frozen(counted.dsn, counted.place)).run)
    assert began.wait(60)
    new_store = counted.store()
    new_store.restore()
    new_store.close()
    go_on.set()
    eventually(lambda: old.error is not None, "it is reported")
    old.end()
    assert [each.attributes["error.type"] for each in traces.ours] == ["fenced"]
