"""Numbers for OpenTelemetry: the same as those of the page for Prometheus, under names that lead to the same."""

import logging

import pytest
from opentelemetry import metrics as otel_api
from prometheus_client.registry import CollectorRegistry
from support.open_telemetry import Metrics, prometheus_name

from harvest_lib.telemetry import catalogue
from harvest_lib.telemetry.counts import KAFKA_ERRORS, Histogram
from harvest_lib.telemetry.exposition import Collector
from harvest_lib.telemetry.otel_metrics import instrument_name, is_reported, reported

pytestmark = pytest.mark.quick


class Subject:
    """The subject of the numbers: `asked` says how often."""

    def __init__(self, delivered=7):
        self.delivered = delivered
        self.asked = 0

    def readings(self):
        self.asked += 1
        histogram = Histogram((1.0,))
        histogram.observe(0.5, "0")
        yield catalogue.DELIVERED, {("0",): self.delivered, ("1",): 2}
        yield catalogue.BACKLOG_AGE, {(): 1.5}
        yield catalogue.SEGMENTS_HELD_BYTES, {("reports",): 4096.0}
        yield catalogue.PARKED, {("hostile \udcff\n" + "x" * 500, "held"): 3.0}
        yield catalogue.BATCH_SECONDS, histogram.read()
        yield catalogue.CONSUMER_MESSAGES, {("orders",): 5.0}


@pytest.fixture
def metrics(monkeypatch):
    return Metrics(monkeypatch)


def test_nothing_is_reported_until_a_provider_is_set():
    assert not is_reported()
    subject = Subject()
    with reported(subject):
        assert subject.asked == 0


@pytest.mark.parametrize("metric", catalogue.ALL, ids=lambda metric: metric.name)
def test_a_name_is_that_of_prometheus_again(metric):
    name, unit = instrument_name(metric)
    assert name.startswith("harvest.")
    assert prometheus_name(name, unit, is_sum=metric.kind == "counter") == metric.name


def test_a_unit_is_said():
    assert instrument_name(catalogue.BACKLOG_AGE) == ("harvest.backlog_age", "s")
    assert instrument_name(catalogue.SEGMENTS_HELD_BYTES) == ("harvest.held_segments_bytes", "By")
    assert instrument_name(catalogue.SEGMENTS_HELD) == ("harvest.held_segments", "")


def test_no_two_have_one_name():
    assert len({instrument_name(metric)[0] for metric in catalogue.ALL}) == len(catalogue.ALL)


def test_every_metric_is_in_the_list_of_all():
    every = {value for value in vars(catalogue).values() if isinstance(value, catalogue.Metric)}
    assert every == set(catalogue.ALL)


def test_the_numbers_are_those_of_the_page(metrics):
    subject = Subject()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(subject))
    with reported(subject):
        found = metrics.for_prometheus()
    page = {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in registry.collect()
        if family.type != "histogram"
        for sample in family.samples
    }
    assert page.items() <= found.items()


def test_a_histogram_has_the_values_and_the_bounds_of_the_page(metrics):
    histogram = Histogram((0.5, 2.0))
    histogram.observe(9.0, "0")
    subject = Subject()
    subject.histograms = {catalogue.BATCH_SECONDS: histogram}
    with reported(subject):
        for value in (0.25, 1.0, 1.5, 7.0):
            histogram.observe(value, "0")
        ours = metrics.histogram("harvest.batch_duration", (("shard", "0"),))
        assert ours == ((0.5, 2.0), (1, 2, 1), 9.75), "from then on"
        sent = (("harvest.shard", "0"), ("messaging.operation.name", "send"), ("messaging.system", "kafka"))
        assert metrics.histogram("messaging.client.operation.duration", sent) == ours
    histogram.observe(1.0, "0")
    assert metrics.histogram("harvest.batch_duration", (("shard", "0"),)) == ours, "it has ended"
    assert histogram.read()["0",].total == 19.75


def measured():
    """Return a subject with a histogram of its batches, and that."""
    subject, histogram = Subject(), Histogram((0.5, 2.0))
    subject.histograms = {catalogue.BATCH_SECONDS: histogram}
    return subject, histogram


def test_of_two_at_once_the_values_of_the_later_one_are_recorded(metrics):
    (first, ours), (second, others) = measured(), measured()
    with reported(first):
        with reported(second):
            ours.observe(1.0, "0")
            others.observe(2.0, "0")
            with reported(second):
                others.observe(4.0, "0")
            others.observe(8.0, "0")
        ours.observe(16.0, "0")
        others.observe(32.0, "0")
    assert metrics.histogram("harvest.batch_duration", (("shard", "0"),))[2] == 2.0 + 4.0 + 8.0 + 16.0


def test_a_provider_that_fails_costs_its_histogram_and_nothing_else(metrics, monkeypatch, caplog):
    subject, histogram = measured()
    meter = type(otel_api.get_meter_provider().get_meter("a"))
    monkeypatch.setattr(meter, "create_histogram", lambda _, name, unit="", description="": None)  # as before 1.30
    with reported(subject):
        for value in (1.0, 2.0):
            histogram.observe(value, "0")
        assert metrics.by_name()["harvest.delivered_records", (("shard", "0"),)] == 7
    assert histogram.read()["0",].total == 3.0
    assert caplog.messages.count("histogram_not_reported") == 1


def test_what_the_conventions_name_is_reported_under_that_name_too(metrics):
    with reported(Subject()):
        found = metrics.by_name()
    system = ("messaging.system", "kafka")
    sent = (("harvest.shard", "0"), ("messaging.operation.name", "send"), system)
    assert found["messaging.client.sent.messages", sent] == 7
    consumed = (("messaging.destination.name", "orders"), ("messaging.operation.name", "consume"), system)
    assert found["messaging.client.consumed.messages", consumed] == 5


def test_all_are_read_once_each_time_that_somebody_asks(metrics):
    subject = Subject()
    with reported(subject):
        metrics.by_name()
        assert subject.asked == 1
        subject.delivered = 8
        assert metrics.by_name()["harvest.delivered_records", (("shard", "0"),)] == 8
        assert subject.asked == 2


def test_the_last_numbers_stay_until_there_are_others(metrics):
    first = Subject()
    with reported(first):
        first.delivered = 9
    first.delivered = 10
    assert metrics.by_name()["harvest.delivered_records", (("shard", "0"),)] == 9
    with reported(Subject(delivered=1)):
        assert metrics.by_name()["harvest.delivered_records", (("shard", "0"),)] == 1


def test_of_two_at_once_the_one_at_work_is_reported(metrics):
    with reported(Subject(delivered=1)):
        with reported(Subject(delivered=2)):
            assert metrics.by_name()["harvest.delivered_records", (("shard", "0"),)] == 2
        assert metrics.by_name()["harvest.delivered_records", (("shard", "0"),)] == 1


def test_numbers_of_the_process_are_reported(metrics):
    KAFKA_ERRORS.add("_TRANSPORT")
    with reported(Subject()):
        logging.getLogger("harvest_lib.test").warning("batch_failed")
        found = metrics.by_name()
    assert found["harvest.kafka_errors", (("error", "_TRANSPORT"),)] >= 1
    assert found["harvest.log_events", (("event", "batch_failed"), ("level", "warning"))] == 1


def test_numbers_that_cannot_be_read_at_the_end_are_no_error(metrics, monkeypatch, caplog):
    subject = Subject()
    with reported(subject):
        monkeypatch.setattr(subject, "readings", None)
    assert "scrape_failed" in caplog.messages
