"""Spans of batches: when they begin and end, how they end, and what they are linked to."""

import uuid

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode
from support.batches import START, FakeBatchDelivery, FakeKafka
from support.open_telemetry import Traces, context, header
from support.rows import Page, row

from harvest_lib.batching.observers import BatchObservers
from harvest_lib.config import HarvestConfig
from harvest_lib.delivery import BatchFenced
from harvest_lib.harvester.observers.tracing import MOST_ROWS, batch_tracing
from harvest_lib.telemetry.batch_span import MOST_LINKS

pytestmark = pytest.mark.quick

CONFIG = HarvestConfig(leader_group_id="group", subscription="reports", delivery="transactional")


def yes():
    return True


@pytest.fixture
def traces(monkeypatch):
    return Traces(monkeypatch)


@pytest.fixture
def kafka():
    return FakeKafka()


@pytest.fixture
def delivery(kafka):
    return FakeBatchDelivery(kafka)


class Observed:
    """A delivery whose batches are observed, as the loop observes them."""

    def __init__(self, delivery, shard):
        self._delivery, self._observers = delivery, BatchObservers(batch_tracing(CONFIG, shard))
        delivery.begin(uuid.uuid4(), yes)

    def send(self, rows):
        self._observers.handing_over(rows)
        self._delivery.send(rows, yes)

    def commit(self):
        self._observers.committed(self._delivery.commit(START, yes), 0.0)

    def abandon(self):
        self._observers.abandoned(repeats=False)


@pytest.fixture
def observed(traces, delivery):
    assert len(batch_tracing(CONFIG, 3)) == 1
    return Observed(delivery, 3)


def written(number, traceparent, topic="t"):
    return (number, topic, "k", "v", ["traceparent"], [traceparent])


def test_nothing_is_observed_where_nobody_traces():
    assert batch_tracing(CONFIG, 0) == []


def test_a_batch_has_a_span_from_its_first_record_to_its_commit(traces, observed, kafka):
    with traces.tracer.start_as_current_span("write") as one, traces.tracer.start_as_current_span("write") as other:
        pass
    observed.send([])
    observed.send([row(1, "k"), written(2, header(one))])
    observed.send([written(3, header(other)), written(4, header(one))])
    assert traces.ours == []
    observed.commit()
    (span,) = traces.ours
    assert (span.name, span.kind, span.parent) == ("send t", SpanKind.CLIENT, None)
    assert span.status.status_code is StatusCode.UNSET
    assert dict(span.attributes) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "t",
        "messaging.batch.message_count": 4,
        "harvest.outbox": "outbox",
        "harvest.subscription": "reports",
        "harvest.shard": 3,
        "harvest.delivery": "transactional",
    }
    assert [link.context for link in span.links] == [context(one), context(other)]
    assert kafka.ids == [1, 2, 3, 4]


def test_a_batch_is_no_part_of_the_trace_that_made_the_harvester(traces, observed):
    with traces.tracer.start_as_current_span("embedding"):
        observed.send([row(1, "k")])
        observed.commit()
    assert traces.ours[0].parent is None


def test_a_batch_of_several_topics_names_none(traces, observed):
    observed.send([row(1, "k"), row(2, "k", topic="u")])
    observed.commit()
    (span,) = traces.ours
    assert span.name == "send"
    assert "messaging.destination.name" not in span.attributes


def test_a_commit_without_records_has_no_span(traces, observed):
    observed.send([])
    observed.commit()
    observed.abandon()
    assert traces.ours == []


def test_a_span_says_how_its_batch_failed(traces, observed, delivery, kafka, monkeypatch):
    kafka.poison, kafka.broken = {1: "too large"}, 1
    observed.send([row(1, "k")])
    observed.commit()  # refused
    observed.send([row(2, "k")])
    observed.commit()  # failed
    observed.abandon()
    monkeypatch.setattr(delivery, "commit", lambda *_: BatchFenced(reason="another leads"))
    observed.send([row(3, "k")])
    observed.commit()
    observed.send([row(4, "k")])
    observed.abandon()
    observed.abandon()
    found = [(each.attributes["error.type"], each.status.description) for each in traces.ours]
    assert found == [
        ("refused", "too large"),
        ("failed", "injected"),
        ("fenced", "another leads"),
        ("abandoned", "the batch was abandoned before its end was known"),
    ]
    assert {each.status.status_code for each in traces.ours} == {StatusCode.ERROR}


def test_links_are_bounded_and_of_no_malformed_header(traces, observed):
    contexts = [f"00-{number:032x}-{number:016x}-01" for number in range(2 * MOST_LINKS)]  # the first is not valid
    observed.send([written(number, each) for number, each in enumerate(contexts)])
    observed.send([written(1_000, "00-bad" + "x" * 48 + "1")])
    observed.commit()
    (span,) = traces.ours
    assert len(span.links) <= MOST_LINKS
    assert [link.context.span_id for link in span.links][:3] == [1, 2, 3]
    assert span.attributes["messaging.batch.message_count"] == 2 * MOST_LINKS + 1
    assert span.dropped_links == 0


@pytest.mark.parametrize("made", [list, Page])
def test_a_long_batch_costs_nothing_for_each_row_that_python_made(made, traces, observed):
    late = written(MOST_ROWS, f"00-{8:032x}-{8:016x}-01")
    observed.send(made([row(number, "k") for number in range(MOST_ROWS - 1)]))
    observed.send(made([written(MOST_ROWS - 1, f"00-{7:032x}-{7:016x}-01"), late, late]))
    observed.send(made([late]))
    observed.commit()
    (span,) = traces.ours
    linked = [link.context.span_id for link in span.links]
    assert (span.name, linked) == (("send", [7]) if made is list else ("send t", [7, 8]))
    assert span.attributes["messaging.batch.message_count"] == MOST_ROWS + 3


def test_a_span_that_is_not_recorded_looks_at_no_row(monkeypatch, traces, delivery):
    monkeypatch.setattr(traces.provider, "sampler", ALWAYS_OFF)
    observed = Observed(delivery, 0)
    observed.send(Untouched([row(1, "k")]))
    observed.commit()
    assert traces.ours == []


class Untouched(Page):
    """Rows of which nobody may ask anything but to be sent."""

    summary = property(lambda _: pytest.fail("asked"))

    def sampled_traceparents(self, most):  # noqa: ARG002 - as above
        pytest.fail("asked")
