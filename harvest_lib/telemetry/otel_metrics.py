"""Reports the metrics of `/metrics` to OpenTelemetry, if the process has a meter provider.

A metric's name is its Prometheus name with a point after `harvest`. The name lacks `_total` and `_seconds`, because the
metric's type and unit express them. A collector that exports to Prometheus restores the Prometheus name. Metrics that
OpenTelemetry's conventions for messaging define are also reported under the conventions' name. Counters and gauges are
read when OpenTelemetry collects. Each value of a histogram is recorded in a histogram of OpenTelemetry too; histograms
get a value for each batch, not for each record. A process reports at most one harvester, one consumer and one pipeline
at a time: the latest of each.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from harvest_lib.telemetry import catalogue
from harvest_lib.telemetry.catalogue import Metric, Reading, Readings
from harvest_lib.telemetry.counts import Histogram, HistogramReading, Labels, Observer, safe_value
from harvest_lib.telemetry.harmless import Harmless
from harvest_lib.telemetry.process import ProcessReadings
from harvest_lib.telemetry.trace_context import SCOPE, is_imported, version

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation
    from opentelemetry.metrics import Histogram as OtelHistogram

    _Callback = Callable[[CallbackOptions], Iterable[Observation]]

_log = logging.getLogger(__name__)

_API = "opentelemetry.metrics"
"""Module of OpenTelemetry's API. The providers in this module report nothing."""
_MESSAGE = "{message}"


_Histograms = Mapping[Metric, Histogram]


class _Instrument(NamedTuple):
    """A metric in OpenTelemetry: name, unit and attributes. `labels` are the names of the metric's labels.
    `attributes` are constant attributes of all its series."""

    metric: Metric
    name: str
    unit: str
    labels: tuple[str, ...]
    attributes: Mapping[str, str]


def instrument_name(metric: Metric) -> tuple[str, str]:
    """Return the name and the unit of a metric in OpenTelemetry."""
    name = metric.name.removesuffix("_total").replace("harvest_", "harvest.", 1)
    if name.endswith("_seconds"):
        return name.removesuffix("_seconds"), "s"
    return name, "By" if name.endswith("_bytes") else ""  # `_bytes` stays, because a counter may have the short name


_OURS = [
    _Instrument(metric, *instrument_name(metric), tuple(metric.labels), {})
    for metric in catalogue.ALL
    if metric.kind != "histogram"
]
_SENT = {"messaging.system": "kafka", "messaging.operation.name": "send"}
_BY_CONVENTION = [
    _Instrument(
        catalogue.DELIVERED,
        "messaging.client.sent.messages",
        _MESSAGE,
        ("harvest.shard",),
        _SENT,
    ),
    _Instrument(
        catalogue.CONSUMER_MESSAGES,
        "messaging.client.consumed.messages",
        _MESSAGE,
        ("messaging.destination.name",),
        {"messaging.system": "kafka", "messaging.operation.name": "consume"},
    ),
]
_HISTOGRAMS = [
    *(
        _Instrument(metric, *instrument_name(metric), tuple(metric.labels), {})
        for metric in catalogue.ALL
        if metric.kind == "histogram"
    ),
    _Instrument(catalogue.BATCH_SECONDS, "messaging.client.operation.duration", "s", ("harvest.shard",), _SENT),
]


class _Reported:
    """The instruments of a meter provider, and the sources of their values."""

    def __init__(self, meter: "Meter") -> None:
        self._lock = threading.Lock()
        self._sources: list[Readings] = []
        self._last: Mapping[str, Reading] = {}
        self._told: set[str] = set()
        for each in (*_OURS, *_BY_CONVENTION):
            observe, unit, meaning = [self._callback(each)], each.unit, each.metric.help
            if each.metric.kind == "counter":
                meter.create_observable_counter(each.name, observe, unit, meaning)
            else:
                meter.create_observable_gauge(each.name, observe, unit, meaning)
        self._meter = meter
        self._histograms: dict[str, Sequence[tuple[_Instrument, OtelHistogram]]] = {}
        self._observed: list[_Histograms] = []

    def observe(self, histograms: _Histograms) -> None:
        """Record the values of the given histograms from now on. They replace the previous set of histograms."""
        with self._lock:
            self._observed.append(histograms)
            self._observe_last()

    def release(self, histograms: _Histograms) -> None:
        """Stop recording the given histograms. Resume the latest earlier set that was not released, if there is one."""
        with self._lock:
            self._observed = [each for each in self._observed if each is not histograms]
            for each in histograms.values():
                each.observer = None
            self._observe_last()

    def _observe_last(self) -> None:
        for histograms in self._observed:
            for histogram in histograms.values():
                histogram.observer = None
        for metric, histogram in self._observed[-1].items() if self._observed else ():
            histogram.observer = self._recorder(metric, histogram)

    def _recorder(self, metric: Metric, histogram: Histogram) -> Observer:
        """Return a function that records a histogram's values in OpenTelemetry, with the same bounds. The function logs
        its first error, and records nothing after that."""

        def record(value: float, labels: Labels) -> None:
            try:
                for instrument, counted in self._instruments(metric, histogram.bounds):
                    counted.record(value, {**instrument.attributes, **_attributes(instrument, labels)})
            except BaseException:  # noqa: BLE001 - the user's provider must not end deliveries
                histogram.observer = None
                _log.exception("histogram_not_reported", extra={"metric": metric.name})

        return record

    def _instruments(self, metric: Metric, bounds: Sequence[float]) -> Sequence[tuple[_Instrument, "OtelHistogram"]]:
        if metric.name not in self._histograms:
            self._histograms[metric.name] = [
                (
                    each,
                    self._meter.create_histogram(
                        each.name, each.unit, metric.help, explicit_bucket_boundaries_advisory=bounds
                    ),
                )
                for each in _HISTOGRAMS
                if each.metric == metric
            ]
        return self._histograms[metric.name]

    def add(self, source: Readings) -> None:
        """Report a source from now on, and remove the sources that have ended."""
        with self._lock:
            self._sources = [each for each in self._sources if not isinstance(each, _Ended)] + [source]

    def end(self, source: Readings) -> None:
        """Replace a source by its last values, because OpenTelemetry may collect once more while the process ends."""
        last = _Ended(_read(source))
        with self._lock:
            # At the front, so that the values of sources that still work override the last values.
            self._sources = [last, *(each for each in self._sources if each is not source)]

    def _callback(self, instrument: _Instrument) -> "_Callback":
        from opentelemetry.metrics import Observation  # noqa: PLC0415 - a process with a meter has it

        def observe(_options: "CallbackOptions") -> Iterator[Observation]:
            for labels, value in self._series(instrument).items():
                if not isinstance(value, HistogramReading):
                    yield Observation(value, {**instrument.attributes, **_attributes(instrument, labels)})

        return observe

    def _series(self, instrument: _Instrument) -> Mapping[Labels, float | HistogramReading]:
        """Return the current series of a metric. All metrics are read together, once for each collection. A second
        request for the same metric shows that a new collection has begun."""
        with self._lock:
            if instrument.name in self._told or not self._told:
                self._last = {reading[0].name: reading for source in self._sources for reading in _read(source)}
                self._told = set()
            self._told.add(instrument.name)
            found = self._last.get(instrument.metric.name)
        return found[1] if found is not None else {}


def _attributes(instrument: _Instrument, labels: Labels) -> Mapping[str, str]:
    return dict(zip(instrument.labels, map(safe_value, labels), strict=True))


class _Ended:
    """A source that returns the last readings of a source that has ended."""

    def __init__(self, readings: Sequence[Reading]) -> None:
        self._readings = readings

    def readings(self) -> Sequence[Reading]:
        return self._readings


def _read(source: Readings) -> Sequence[Reading]:
    """Return the readings of a source; an empty list if the source raises."""
    try:
        return [*source.readings()]
    except Exception:  # noqa: BLE001 - a missing number must not end the process
        _log.exception("scrape_failed")
        return []


_reported: "WeakKeyDictionary[MeterProvider, _Reported]" = WeakKeyDictionary()
_reporting = threading.Lock()


def is_reported() -> bool:
    """Return True if the process has a meter provider."""
    return _configured_provider() is not None


@contextmanager
def reported(subject: Readings) -> Iterator[None]:
    """Report metrics to OpenTelemetry, if the process has a meter provider. While the context is active, report the
    current values; after the context, the last values."""
    provider = _configured_provider()
    if provider is None:
        yield
        return
    to = None
    with _reporting, Harmless(_log, "metrics_not_reported"):
        if provider not in _reported:
            _reported[provider] = _Reported(provider.get_meter(SCOPE, version()))
        to = _reported[provider]
    if to is None:
        yield
        return
    process = ProcessReadings()
    sources: tuple[Readings, ...] = (process, subject)
    with process.counting():
        for each in sources:
            to.add(each)
        histograms = dict(getattr(subject, "histograms", {}))
        to.observe(histograms)
        try:
            yield
        finally:
            to.release(histograms)
            for each in sources:
                to.end(each)


def _configured_provider() -> "MeterProvider | None":
    if not is_imported("metrics"):
        return None
    from opentelemetry import metrics  # noqa: PLC0415

    provider = metrics.get_meter_provider()
    return None if type(provider).__module__.startswith(_API) else provider
