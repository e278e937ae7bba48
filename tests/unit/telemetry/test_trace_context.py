"""The trace context of records: written from the current span, read back where it is well-formed."""

import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import TraceState
from support.open_telemetry import Traces, context, header
from support.rows import Page, row

from harvest_lib.record.rows import sampled_traceparents
from harvest_lib.telemetry.trace_context import configured_tracer, context_of, current_headers

pytestmark = pytest.mark.quick

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GOOD = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture
def traces(monkeypatch):
    return Traces(monkeypatch)


def traced(number, *values, names=None):
    return (number, "t", "k", "v", names or ["traceparent"] * len(values), list(values))


def test_there_are_no_headers_without_a_span():
    assert current_headers() == ()


def test_the_headers_are_those_of_the_current_span(traces):
    with traces.tracer.start_as_current_span("write") as span:
        assert current_headers() == (("traceparent", header(span)),)
        assert context_of(header(span)) == context(span)


def test_the_state_of_the_trace_goes_along(traces):
    state = TraceState([("vendor", "1")])
    outer = trace.SpanContext(int(TRACE, 16), int(SPAN, 16), is_remote=True, trace_state=state)
    with trace.use_span(trace.NonRecordingSpan(outer)):
        assert current_headers() == (("traceparent", f"00-{TRACE}-{SPAN}-00"), ("tracestate", "vendor=1"))


def test_nobody_traces_until_a_provider_is_set(monkeypatch):
    assert configured_tracer() is None
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", trace.NoOpTracerProvider())
    assert configured_tracer() is None
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", TracerProvider())
    assert configured_tracer() is not None


@pytest.mark.parametrize(
    "bad",
    [
        GOOD.replace("00-", "01-", 1),
        GOOD.replace("00-", "ff-", 1),
        GOOD.upper(),
        GOOD.replace(TRACE, "0" * 32),
        GOOD.replace(SPAN, "0" * 16),
        GOOD.replace("-", "_"),
        GOOD.replace(TRACE, "g" * 32),
        GOOD.replace(TRACE, "٣" * 32),
        "x" * 54 + "1",
    ],
)
def test_what_is_not_well_formed_names_no_context(bad):
    assert context_of(GOOD) is not None
    assert context_of(bad) is None


@pytest.mark.parametrize("made", [list, Page])
def test_the_traceparents_of_rows_are_those_of_recorded_spans(made):
    other = GOOD.replace(SPAN, "1" * 16)
    rows = [
        row(1, "k"),
        traced(2, GOOD),
        traced(3, GOOD),
        traced(4, GOOD[:-1] + "0"),
        traced(5, None),
        traced(6, "short"),
        traced(7, GOOD + "-more"),
        traced(8, other, GOOD),
        (9, "t", "k", "v", ["a", "traceparent"], ["1", GOOD]),
        (10, "t", "k", "v", ["traceparent"], []),
        (11, "t", "k", "v", None, None),
        traced(12, other),
    ]
    assert sampled_traceparents(made(rows), 10) == [GOOD, other, GOOD, other]
    assert sampled_traceparents(made(rows), 2) == [GOOD, other]
    if made is Page:
        page = Page(rows)
        sampled_traceparents(page, 10)
        assert page.made == []


@pytest.mark.parametrize("module", ["harvest_lib", "harvest_lib.outbox", "harvest_lib.harvester.observers.tracing"])
def test_nothing_of_opentelemetry_is_imported(module):
    program = f"import sys, {module}; print(*[each for each in sys.modules if each.startswith('opentelemetry')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
