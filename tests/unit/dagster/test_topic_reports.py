"""Events of topics, written to a real instance: own numbers, no event without news, no record twice."""

import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace

import dagster as dg
import pytest
from dagster import DagsterInstance, serialize_value

from dagster_harvest.numbers import Numbers
from dagster_harvest.settings import DaemonSettings, OutboxSettings
from dagster_harvest.topic_reports import DELIVERED_UNTIL, ROW_COUNT, TopicReports
from harvest_lib.errors import KafkaUnavailable
from harvest_lib.harvester.observers.topic_counts import TopicCounts
from harvest_lib.harvester.watermark import DeliveryProgress
from harvest_lib.subscriptions.backlog import Backlog

pytestmark = pytest.mark.quick

SETTINGS = OutboxSettings(name="shop", topics=["orders", "refunds"])
ORDERS, REFUNDS = SETTINGS.topic_keys
EMPTY = Backlog(records=0)
NOON = 1_772_366_400.0


@contextmanager
def guard():
    with suppress(OSError):
        yield


@pytest.fixture
def instance():
    with DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


@pytest.fixture
def ends(monkeypatch):
    """The ends of topics in Kafka."""
    found = {}
    monkeypatch.setattr(
        "dagster_harvest.topic_reports.read_ends",
        lambda _config, topics: {topic: dict(found[topic]) for topic in topics if topic in found},
    )
    return found


@pytest.fixture
def counts():
    return TopicCounts()


@pytest.fixture
def reports(instance, ends, counts):
    del ends
    return made(instance, counts)


def made(instance, counts, settings=SETTINGS, log_event=None):
    context = SimpleNamespace(instance=instance, run_id="", log_event=log_event or instance.report_runless_asset_event)
    return TopicReports(context, settings, None, counts, guard)


def written(instance, key=ORDERS):
    records = instance.fetch_materializations(key, limit=100).records
    return [record.asset_materialization.metadata for record in reversed(records)]


def observed(instance, key=ORDERS):
    records = instance.fetch_observations(key, limit=1_000).records
    return [record.asset_observation for record in reversed(records)]


def numbers(at, **changed):
    idle = Numbers(at=at, delivered=0, rate=0.0, in_flight=0, leader_id="a", generation=1, version="1", waiting=EMPTY)
    return replace(idle, **changed)


def test_only_the_topic_that_got_records_is_materialized_with_its_own_numbers(reports, instance, counts, ends):
    ends |= {"orders": {"0": 4, "1": 3}, "refunds": {"0": 9}}
    counts.add({"orders": 7})
    reports.progress = DeliveryProgress(waiting=EMPTY, delivered_until=NOON - 1)
    reports.materialize(NOON)
    reports.materialize(NOON + 10)
    reports.finish()
    (metadata,) = written(instance)
    assert metadata[ROW_COUNT].value == 7
    assert metadata["offsets"].value == {"0": [0, 4], "1": [0, 3]}
    assert metadata["outbox"].value == "shop"
    assert metadata["backlog_records"].value == 0
    assert metadata[DELIVERED_UNTIL].value == NOON - 1
    assert written(instance, REFUNDS) == []


def test_a_run_that_begins_to_lead_and_delivers_nothing_materializes_nothing(reports, instance):
    for second in range(3_600):
        reports.materialize(NOON + second)
    reports.finish()
    assert written(instance) == written(instance, REFUNDS) == []


def test_the_sum_over_restarts_is_what_was_delivered_and_offsets_have_no_gap(instance, ends):
    delivered = 0
    for run in range(5):
        counts, begun = TopicCounts(), NOON + 1_000 * run
        reports = made(instance, counts)
        for step in range(20):
            counts.add({"orders": step})
            delivered += step
            ends["orders"] = {"0": delivered}
            reports.materialize(begun + 10 * step)
        reports.finish()
    found = written(instance)
    assert sum(each[ROW_COUNT].value for each in found) == delivered
    ranges = [each["offsets"].value["0"] for each in found]
    assert [begin for begin, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
    assert ranges[-1][1] == delivered
    assert all(each[ROW_COUNT].value > 0 for each in found)


def test_two_outboxes_that_fill_a_topic_count_their_own_records(instance, ends):
    for name, records in (("shop", 3), ("crm", 4)):
        settings = SETTINGS.model_copy(update={"name": name})
        counts = TopicCounts()
        ends["orders"] = {"0": 3 if name == "shop" else 7}
        reports = made(instance, counts, settings)
        counts.add({"orders": records})
        reports.materialize(NOON)
        reports.finish()
    first, second = written(instance)
    assert [(each["outbox"].value, each[ROW_COUNT].value) for each in (first, second)] == [("shop", 3), ("crm", 4)]
    assert [each["offsets"].value for each in (first, second)] == [{"0": [0, 3]}, {"0": [3, 7]}]


def test_a_materialization_that_a_user_reports_breaks_no_range(reports, instance, counts, ends):
    for end in (4, 9):
        ends["orders"] = {"0": end}
        counts.add({"orders": 1})
        reports.finish()
        instance.report_runless_asset_event(dg.AssetMaterialization(asset_key=ORDERS))
    found = [each["offsets"].value["0"] for each in written(instance) if "offsets" in each]
    assert found == [[0, 4], [4, 9]]


@pytest.mark.parametrize("later", [0, 2])
@pytest.mark.parametrize("is_written", [True, False])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_record_counts_once_if_an_error_comes_before_or_after_the_write(instance, ends, error, is_written, later):
    del ends
    failures = [error("storage")]

    def log_event(event):
        if is_written or not failures:
            instance.report_runless_asset_event(event)
        if failures:
            raise failures.pop()

    counts = TopicCounts()
    reports = made(instance, counts, log_event=log_event)
    counts.add({"orders": 5})
    reports.materialize(NOON)
    with suppress(KeyboardInterrupt):
        reports.materialize(NOON + 10)
    counts.add({"orders": later})
    reports.finish()
    found = [each[ROW_COUNT].value for each in written(instance)]
    assert sum(found) == 5 + later
    assert 0 not in found


def test_records_are_told_without_offsets_while_no_broker_answers(instance, counts, monkeypatch):
    def refuse(*_arguments):
        raise KafkaUnavailable("no broker answers", next_step="wait")

    monkeypatch.setattr("dagster_harvest.topic_reports.read_ends", refuse)
    reports = made(instance, counts)
    counts.add({"orders": 5})
    reports.finish()
    (metadata,) = written(instance)
    assert metadata[ROW_COUNT].value == 5
    assert "offsets" not in metadata


def test_an_idle_hour_has_four_observations_of_a_topic_and_little_is_written(reports, instance, counts):
    counts.add({"orders": 50})
    begun = time.monotonic()
    reports.progress = DeliveryProgress(waiting=EMPTY, delivered_until=NOON)
    for step in range(361):
        reports.materialize(NOON + 10 * step)
        reports.observe(numbers(begun + 10 * (step + 1)))
    for key in (ORDERS, REFUNDS):
        seen = observed(instance, key)
        assert 4 <= len(seen) <= 6, "the first, the one after the last record, and each 15 minutes"
        assert 24 * 4 * max(len(serialize_value(each)) + 1_000 for each in seen) < 500_000
    assert observed(instance)[-1].metadata["delivered_records"].value == 50
    assert observed(instance, REFUNDS)[-1].metadata["delivered_records"].value == 0
    assert len(written(instance)) == 1


def test_a_topic_that_is_idle_is_not_observed_for_the_records_of_another(reports, instance, counts):
    begun = time.monotonic()
    for step in range(30):
        counts.add({"orders": 10})
        reports.materialize(NOON + 10 * step)
        reports.observe(numbers(begun + 10 * (step + 1), delivered=10, rate=1.0))
    assert len(observed(instance)) == 30
    assert observed(instance)[-1].metadata["records_per_second"].value == 1.0
    assert len(observed(instance, REFUNDS)) == 1


def test_a_new_leader_is_observed(reports, instance):
    begun = time.monotonic()
    for step, leader_id in enumerate(("a", "a", "b", None)):
        reports.observe(numbers(begun + 10 * (step + 1), leader_id=leader_id))
    leaders = [each.metadata["leader_id"].value for each in observed(instance)]
    assert leaders == ["a", "b", "standby"]


def test_the_interval_is_a_setting():
    assert DaemonSettings().materialize_every_seconds == 45
    with pytest.raises(ValueError, match="materialize_every_seconds"):
        DaemonSettings(materialize_every_seconds=0)


def test_keys_are_those_of_the_outbox():
    assert dg.AssetKey(["kafka", "orders_topic"]) == ORDERS
