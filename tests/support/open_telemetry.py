"""OpenTelemetry's SDK in memory, as the provider of the whole process for as long as a test lasts."""

from opentelemetry import trace
from opentelemetry.metrics import _internal as metrics_api
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Histogram, InMemoryMetricReader, Sum
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from harvest_lib.telemetry.trace_context import SCOPE

UNITS = {"s": "_seconds", "By": "_bytes", "{message}": "", "": ""}
"""Suffixes that OpenTelemetry's rules for Prometheus add to a name for a unit, unless it ends so; `_total` for sums."""


class Traces:
    """Spans that ended, ours apart from those of the writers that a test makes with `tracer`."""

    def __init__(self, monkeypatch):
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", self.provider)
        self.tracer = self.provider.get_tracer("writers")

    @property
    def all(self):
        return self._exporter.get_finished_spans()

    @property
    def ours(self):
        return [each for each in self.all if each.instrumentation_scope.name == SCOPE]

    @property
    def linked(self):
        """Return what ours are linked to, as headers."""
        return {_header(link.context) for each in self.ours for link in each.links}


class Metrics:
    """Metrics that are reported at the moment."""

    def __init__(self, monkeypatch):
        self._reader = InMemoryMetricReader()
        monkeypatch.setattr(metrics_api, "_METER_PROVIDER", MeterProvider([self._reader]))

    def by_name(self):
        """Return values by name and attributes, in order of their names."""
        return {
            (metric.name, tuple(sorted(point.attributes.items()))): point.value
            for metric in self._reported()
            if not isinstance(metric.data, Histogram)
            for point in metric.data.data_points
        }

    def for_prometheus(self):
        """Return them as a collector writes them for Prometheus: by its name, and by values of labels."""
        return {
            (
                prometheus_name(metric.name, metric.unit, is_sum=isinstance(metric.data, Sum)),
                tuple(value for _, value in sorted(point.attributes.items())),
            ): point.value
            for metric in self._reported()
            if not isinstance(metric.data, Histogram)
            for point in metric.data.data_points
        }

    def histogram(self, name, attributes):
        """Return bounds, counts and sum of a histogram."""
        (found,) = (
            point
            for metric in self._reported()
            if metric.name == name
            for point in metric.data.data_points
            if tuple(sorted(point.attributes.items())) == attributes
        )
        return tuple(found.explicit_bounds), tuple(found.bucket_counts), found.sum

    def _reported(self):
        data = self._reader.get_metrics_data()
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics] if data else []
        return [metric for scope in scopes if scope.scope.name == SCOPE for metric in scope.metrics]


def prometheus_name(name, unit, *, is_sum):
    """Return the name that a collector writes for Prometheus."""
    plain = name.replace(".", "_").removesuffix(UNITS[unit]) + UNITS[unit]
    return f"{plain}_total" if is_sum else plain


def context(span):
    """Return the context of a span as it comes out of the header of a record."""
    of = span.get_span_context()
    return trace.SpanContext(of.trace_id, of.span_id, is_remote=True, trace_flags=of.trace_flags)


def header(span):
    """Return the `traceparent` of a span."""
    return _header(span.get_span_context())


def _header(of):
    return f"00-{of.trace_id:032x}-{of.span_id:016x}-{of.trace_flags:02x}"
