"""A real Dagster instance requests one run for each 50 delivered records, while all of its processes are killed."""

import random
import sys
import time

import pytest
from dagster import RunsFilter
from support.dagster_platform import LOCATION, Platform
from support.waiting import eventually

from dagster_harvest.deliveries import RECORDS_TAG
from dagster_harvest.settings import OutboxSettings
from dagster_harvest.topic_reports import ROW_COUNT

pytestmark = [pytest.mark.full, pytest.mark.long, pytest.mark.timeout(1_800)]

RESTARTS = 20
EVERY = 50


def delivered(instance, topic):
    """Return the number of records that the topic's materializations report."""
    found = instance.fetch_materializations(topic, limit=10_000).records
    return sum(each.asset_materialization.metadata[ROW_COUNT].value for each in found)


def has_ticked(instance):
    """Return True once the sensor's first tick has ended."""
    states = [each for each in instance.all_instigator_state() if each.instigator_name == "counts"]
    return any(state.instigator_data is not None and state.instigator_data.cursor for state in states)


def test_each_record_counts_once_over_restarts(tmp_path, outbox, elected):
    file = LOCATION.with_name("dagster_delivered.py")
    topic = OutboxSettings(name="shop", topics=[outbox.topic]).topic_keys[0]
    drawn = random.Random(20)
    with Platform(tmp_path / "dagster", file=file, TEST_TOPIC=outbox.topic, TEST_CONFIG=str(elected)) as platform:
        instance = platform.instance

        def runs():
            return [run.tags[RECORDS_TAG] for run in instance.get_runs(RunsFilter(job_name="counted"))]

        try:
            eventually(lambda: has_ticked(instance), "the sensor counts", seconds=240)
            committed = 0
            for _ in range(RESTARTS):
                number = drawn.randint(10, 120)
                outbox.fill(number)
                committed += number
                eventually(lambda committed=committed: delivered(instance, topic) >= committed, seconds=240)
                time.sleep(drawn.uniform(0, 5))  # anywhere in a tick, or between two
                platform.kill_daemon()
                for server in platform.code_servers():
                    platform.kill(server.pid)
                platform.start_daemon()
            expected = [f"{first}-{first + EVERY - 1}" for first in range(1, committed - EVERY + 2, EVERY)]
            eventually(lambda: len(runs()) >= len(expected), "each run is requested", seconds=240)
            assert sorted(runs(), key=lambda each: int(each.partition("-")[0])) == expected
            assert delivered(instance, topic) == committed
        except BaseException:
            sys.stderr.write(platform.log()[-5000:])
            raise
