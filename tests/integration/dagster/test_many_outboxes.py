"""Two, ten and fifty idle outboxes in a location: every sensor goes on, none fails, and next to nothing is written.

The times of ticks are recorded and do not decide.
"""

import statistics
import sys
import time

import pytest
from dagster._core.scheduler.instigation import TickStatus
from support.dagster_platform import LOCATION, Platform
from support.waiting import eventually

from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.parking import ParkedRecords

pytestmark = [pytest.mark.full, pytest.mark.long, pytest.mark.timeout(1_800)]

TICKS = 12


class Ticks:
    """The ticks of each sensor, as Dagster has stored them."""

    def __init__(self, instance):
        self._instance = instance

    def each(self):
        """Return the ticks by the sensor's name, the newest first."""
        return {
            state.instigator_name: self._instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=1_000)
            for state in self._instance.all_instigator_state()
            if state.instigator_name.endswith(("_supervisor", "_alerts"))
        }

    def fewest(self, number):
        """Return the smallest number of ended ticks of a sensor; 0 until each of so many outboxes has its two."""
        found = self.each().values()
        return min(map(len, found)) if len(found) == 2 * number else 0

    def seconds(self):
        """Return how long the ticks took, sorted."""
        ended = [tick for found in self.each().values() for tick in found if tick.end_timestamp]
        return sorted(tick.end_timestamp - tick.timestamp for tick in ended)


def size_of(folder):
    return sum(file.stat().st_size for file in (folder / "history").rglob("*") if file.is_file())


@pytest.mark.parametrize("number", [2, 10, 50])
def test_every_sensor_goes_on_and_writes_next_to_nothing(
    number, tmp_path, outbox, make_topic, elected, record_property
):
    for each in range(number):
        table = OutboxTable.parse(f"outbox_{each}")
        table.create(outbox.connection)
        ParkedRecords(table).create(outbox.connection)
    topics = ",".join(make_topic(partitions=1) for _ in range(number))
    folder = tmp_path / "dagster"
    file = LOCATION.with_name("dagster_many.py")
    with Platform(folder, file=file, TEST_TOPIC=topics, TEST_CONFIG=str(elected)) as platform:
        ticks = Ticks(platform.instance)
        try:
            eventually(lambda: ticks.fewest(number) >= TICKS, "each sensor ticks", seconds=900)
            written, began, before = size_of(folder), time.monotonic(), ticks.fewest(number)
            eventually(lambda: ticks.fewest(number) >= before + TICKS, "each sensor goes on", seconds=900)
            passed = time.monotonic() - began
            failed = [tick for found in ticks.each().values() for tick in found if tick.status is TickStatus.FAILURE]
            assert not failed
        except BaseException:
            sys.stderr.write(platform.log()[-5000:])
            raise
        seconds = ticks.seconds()
        record_property("tick_seconds", [round(each, 2) for each in statistics.quantiles(seconds, n=20)])
        record_property("seconds_between_ticks", round(passed / TICKS, 1))
        record_property("megabytes_a_day_and_outbox", round((size_of(folder) - written) / passed * 0.0864 / number, 2))
