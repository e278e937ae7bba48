"""Renders readings in Prometheus' formats, with Prometheus' own client. The page is valid for any value of a label."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import CollectorRegistry

from harvest_lib.telemetry import catalogue
from harvest_lib.telemetry.catalogue import Readings
from harvest_lib.telemetry.counts import HistogramReading, Labels, safe_value


class Collector:
    """Collector for `prometheus_client`. `REGISTRY.register(Collector(…))` adds the metrics of the sources to your
    registry."""

    def __init__(self, *sources: Readings) -> None:
        self._sources = sources

    def describe(self) -> Iterable[Metric]:
        """Return no metrics, so that registering the collector queries no database."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all sources with their current values."""
        for source in self._sources:
            for metric, series in source.readings():
                yield _family(metric, series)


def page(collector: Collector) -> Callable[[str], tuple[bytes, str]]:
    """Return the function that renders `/metrics`. It takes the header `Accept`, and returns body and content type. The
    page also has Prometheus' metrics of the process, such as its memory."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    ProcessCollector(registry=registry)

    def render(accept: str) -> tuple[bytes, str]:
        encode, content_type = choose_encoder(accept)
        return encode(registry), content_type

    return render


def _family(metric: catalogue.Metric, series: Mapping[Labels, float | HistogramReading]) -> Metric:
    labels = [*metric.labels]
    match metric.kind:
        case "counter":
            family: Metric = CounterMetricFamily(metric.name, metric.help, labels=labels)
        case "histogram":
            family = HistogramMetricFamily(metric.name, metric.help, labels=labels)
        case "gauge" | "info":
            family = GaugeMetricFamily(metric.name, metric.help, labels=labels)
    for values, value in series.items():
        safe = [safe_value(each) for each in values]
        if isinstance(value, HistogramReading):
            assert isinstance(family, HistogramMetricFamily)  # noqa: S101 - only histograms are read as histograms
            buckets = [
                ("+Inf" if bound == float("inf") else str(bound), float(count)) for bound, count in value.buckets
            ]
            family.add_metric(safe, buckets, value.total)
        else:
            assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)  # noqa: S101 - as above
            family.add_metric(safe, value)
    return family
