"""Ticks of the sensors on delivered records, in a real instance: each record counts once, whatever restarts."""

import itertools
import json
import random
import re
import runpy
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterInstance

from dagster_harvest.deliveries import (
    RECORDS_TAG,
    delivered_before,
    delivered_sensor,
    delivered_until,
    on_delivery,
)
from dagster_harvest.settings import OutboxSettings
from dagster_harvest.topic_ends import OFFSETS
from dagster_harvest.topic_reports import DELIVERED_UNTIL, OUTBOX, ROW_COUNT
from harvest_lib.errors import ConfigError

pytestmark = pytest.mark.quick

SETTINGS = OutboxSettings(name="shop", topics=["orders", "refunds"])
ORDERS, REFUNDS = SETTINGS.topic_keys
HOURS = dg.HourlyPartitionsDefinition(start_date="2026-03-01-00:00")


@dg.asset(partitions_def=HOURS)
def each_hour():
    """An asset with a partition for each hour."""


@pytest.fixture
def instance():
    with DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


@pytest.fixture
def deliver(instance):
    """Write the materialization that a run writes after it has delivered records."""

    def materialize(records, key=ORDERS, **metadata):
        counted = {ROW_COUNT: records} if records is not None else {}
        instance.report_runless_asset_event(dg.AssetMaterialization(asset_key=key, metadata=counted | metadata))

    return materialize


class Ticks:
    """The ticks of a sensor. Each tick makes the sensor anew, as a code server that was restarted does."""

    def __init__(self, instance, make, cursor=None):
        self.instance, self.make, self.cursor = instance, make, cursor

    def __call__(self, *, is_lost=False):
        """Tick. A tick that is lost, as by a kill of Dagster's daemon, leaves the cursor as it was."""
        sensor = self.make()
        defs = dg.Definitions(assets=[each_hour], sensors=[sensor])
        context = dg.build_sensor_context(instance=self.instance, cursor=self.cursor, definitions=defs)
        result = sensor.evaluate_tick(context)
        self.cursor = self.cursor if is_lost else result.cursor
        return result.run_requests or []


@pytest.fixture
def each_hundred(instance):
    ticks = Ticks(instance, lambda: delivered_sensor(SETTINGS, topic="orders", every_records=100, target="*"))
    ticks()
    return ticks


def bounds(requests):
    return [tuple(map(int, request.tags[RECORDS_TAG].split("-"))) for request in requests]


def test_each_record_is_in_one_run_over_twenty_restarts(each_hundred, deliver):
    drawn, sizes, requests, keys = random.Random(57), [], [], set()
    for restart in range(20):
        for _ in range(drawn.randrange(4)):
            sizes.append(drawn.choice([1, 30, 99, 100, 101, 250, 1_000]))
            deliver(sizes[-1])
            deliver(7, REFUNDS)
        if restart % 3 == 0:
            keys |= {request.run_key for request in each_hundred(is_lost=True)}
        requests += each_hundred()
    total = sum(sizes)
    assert total > 1_000
    assert bounds(requests) == [(first, first + 99) for first in range(1, total - total % 100, 100)]
    assert len({request.run_key for request in requests}) == len(requests) == total // 100
    assert keys <= {request.run_key for request in requests}, "Dagster knows the runs of a tick that was lost"


def test_records_below_the_number_wait_in_the_cursor(each_hundred, deliver):
    for _ in range(3):
        deliver(33)
        assert each_hundred() == []
    deliver(1)
    assert bounds(each_hundred()) == [(1, 100)]
    assert each_hundred() == []


def test_a_sensor_begins_with_later_records(instance, deliver):
    deliver(1_000)
    ticks = Ticks(instance, lambda: delivered_sensor(SETTINGS, topic="orders", every_records=100, target="*"))
    assert ticks() == ticks() == []
    deliver(100)
    assert len(ticks()) == 1


def test_a_cursor_that_was_reset_requests_runs_that_dagster_does_not_know(each_hundred, deliver):
    deliver(100)
    (before,) = each_hundred()
    each_hundred.cursor = None
    assert each_hundred() == []
    deliver(100)
    (after,) = each_hundred()
    assert after.run_key != before.run_key


def test_a_tick_requests_fifty_runs_at_most_and_the_next_goes_on(each_hundred, deliver):
    deliver(12_000)
    found = [each_hundred(), each_hundred(), each_hundred(), each_hundred()]
    assert [len(requests) for requests in found] == [50, 50, 20, 0]
    assert bounds(itertools.chain(*found)) == [(first, first + 99) for first in range(1, 12_000, 100)]


def test_an_event_that_appears_after_a_later_one_is_counted(each_hundred, deliver, instance, monkeypatch):
    """The ids of Postgres are drawn before the commit: of two writers, the later id may be seen first."""
    for records in (10, 50, 40):
        deliver(records)
    hidden = sorted(each.storage_id for each in instance.fetch_materializations(ORDERS, limit=3).records)[1]
    fetch = DagsterInstance.fetch_materializations

    def without(self, *arguments, **named):
        found = fetch(self, *arguments, **named)
        return found._replace(records=[each for each in found.records if each.storage_id != hidden])

    with monkeypatch.context() as patched:
        patched.setattr(DagsterInstance, "fetch_materializations", without)
        assert each_hundred() == []
    assert bounds(each_hundred()) == [(1, 100)]
    assert each_hundred() == []


def test_the_offsets_count_where_records_are_not_known(each_hundred, deliver):
    deliver(None, **{OFFSETS: {"0": [10, 70], "1": [0, 40]}})
    deliver(None)
    assert bounds(each_hundred()) == [(1, 100)]


@pytest.mark.parametrize(("topic", "records", "named"), [("order", 1, "orders, refunds"), ("orders", 0, "is 0")])
def test_a_sensor_that_could_never_start_a_run_is_refused(topic, records, named):
    with pytest.raises(ConfigError, match=named):
        delivered_sensor(SETTINGS, topic=topic, every_records=records, target="*")


# -- windows


def at(text):
    return datetime.fromisoformat(f"2026-03-01T{text}+00:00")


def until(text, outbox=SETTINGS.name):
    return {DELIVERED_UNTIL: dg.MetadataValue.timestamp(at(text)), OUTBOX: outbox}


@pytest.fixture
def hourly(instance):
    return Ticks(instance, lambda: delivered_before(SETTINGS, partitions=HOURS, target=[each_hour]))


def requested(ticks):
    return [request.partition_key for request in ticks()]


def test_an_hour_is_requested_once_everything_before_its_end_is_delivered(hourly, deliver):
    deliver(1, **until("10:20:00"))
    assert requested(hourly) == [], "the first tick notes where it begins"
    deliver(1, **until("10:59:59"))
    assert requested(hourly) == []
    deliver(1, **until("11:00:00"))
    assert requested(hourly) == ["2026-03-01-10:00"]
    assert requested(hourly) == []
    deliver(1, **until("14:30:00"))
    assert requested(hourly) == [f"2026-03-01-{hour}:00" for hour in (11, 12, 13)]


def test_what_another_outbox_has_delivered_to_the_same_topic_completes_no_hour(hourly, deliver):
    deliver(1, **until("10:20:00"))
    hourly()
    deliver(1, **until("12:00:00", outbox="another"))
    assert requested(hourly) == []


def test_an_hour_without_records_is_complete_by_an_observation(hourly, deliver, instance):
    deliver(1, **until("10:20:00"))
    hourly()
    instance.report_runless_asset_event(dg.AssetObservation(asset_key=REFUNDS, metadata=until("11:05:00")))
    assert requested(hourly) == ["2026-03-01-10:00"]


def test_the_margin_delays_an_hour(instance, deliver):
    ticks = Ticks(
        instance, lambda: delivered_before(SETTINGS, partitions=HOURS, target=[each_hour], margin_seconds=300)
    )
    deliver(1, **until("10:20:00"))
    ticks()
    deliver(1, **until("11:04:59"))
    assert requested(ticks) == []
    deliver(1, **until("11:05:00"))
    assert requested(ticks) == ["2026-03-01-10:00"]


def test_an_hour_is_requested_once_over_restarts_and_a_time_that_goes_back(hourly, deliver):
    deliver(1, **until("10:20:00"))
    hourly()
    deliver(1, **until("11:10:00"))
    lost = hourly(is_lost=True)
    kept = hourly()
    assert [each.run_key for each in lost] == [each.run_key for each in kept] == ["2026-03-01-10:00"]
    deliver(1, REFUNDS, **until("10:30:00"))
    assert requested(hourly) == []


def test_nothing_is_requested_while_the_time_is_unknown(hourly, deliver, instance):
    deliver(1)
    assert requested(hourly) == []
    assert delivered_until(instance, SETTINGS) is None
    deliver(1, **until("10:20:00"))
    assert delivered_until(instance, SETTINGS) == at("10:20:00").astimezone(UTC)


# -- conditions


@pytest.fixture
def evaluate(instance):
    @dg.asset(deps=[ORDERS], automation_condition=on_delivery(SETTINGS))
    def invoices():
        """Downstream."""

    defs = dg.Definitions(assets=[dg.AssetSpec(ORDERS), invoices])
    cursor = None

    def tick():
        nonlocal cursor
        result = dg.evaluate_automation_conditions(defs=defs, instance=instance, cursor=cursor)
        cursor = result.cursor
        return result.total_requested

    tick()
    return tick


def test_two_deliveries_in_a_tick_request_one_run(evaluate, deliver):
    deliver(1)
    deliver(2)
    assert [evaluate(), evaluate()] == [1, 0]


def test_a_delivery_during_a_run_requests_the_next_run(evaluate, deliver, instance):
    deliver(1)
    assert evaluate() == 1
    deliver(2)
    instance.report_runless_asset_event(dg.AssetMaterialization(asset_key="invoices"))
    assert [evaluate(), evaluate()] == [1, 0]


def test_a_cursor_is_a_position(each_hundred, deliver):
    deliver(130)
    each_hundred()
    found = json.loads(each_hundred.cursor)
    assert (found["records"], found["runs"], len(found["seen"])) == (130, 1, 2)


def test_the_program_of_the_page_loads(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "dagster-assets.md").read_text(encoding="utf-8")
    (program,) = [each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "delivered_sensor" in each]
    (tmp_path / "downstream.py").write_text(program, encoding="utf-8")
    defs = runpy.run_path(str(tmp_path / "downstream.py"))["defs"]
    dg.Definitions.validate_loadable(defs)
    assert {each.name for each in defs.sensors} == {"shop_orders_each_10000", "shop_delivered_before"}
