"""The watermark never passes a record that is not delivered, and advances once the records of a sample are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvest_lib.harvester.watermark import MOST_SAMPLES, Watermark, WatermarkSample

pytestmark = pytest.mark.quick


def test_nothing_is_known_while_the_records_of_the_first_sample_wait():
    watermark = Watermark()
    watermark.note(WatermarkSample(10.0, 7))
    assert watermark.until(3) is None
    watermark.note(WatermarkSample(20.0, 9))
    assert watermark.until(8) == 10.0, "the records up to id 7 are delivered"
    assert watermark.until(10) == 20.0


def test_an_empty_backlog_is_delivered_up_to_the_last_sample():
    watermark = Watermark()
    watermark.note(WatermarkSample(10.0, None))
    assert watermark.until(None) == 10.0
    watermark.note(WatermarkSample(20.0, 4))
    assert watermark.until(4) == 10.0
    assert watermark.until(None) == 20.0


def test_a_sample_without_a_record_proves_nothing_about_a_waiting_one():
    watermark = Watermark()
    watermark.note(WatermarkSample(10.0, None))
    assert watermark.until(3) is None


def test_the_samples_of_an_earlier_tick_are_continued():
    first = Watermark()
    first.note(WatermarkSample(10.0, 7))
    assert first.until(3) is None
    assert Watermark(first.samples).until(8) == 10.0


def test_a_record_that_waits_for_a_day_does_not_fill_the_memory():
    watermark = Watermark()
    watermark.note(WatermarkSample(0.0, 1))
    for second in range(1, 8_640):
        watermark.note(WatermarkSample(second * 10.0, second + 1))
        assert watermark.until(1) is None
        assert len(watermark.samples) <= MOST_SAMPLES
    assert watermark.until(2) == 0.0


@given(st.lists(st.sampled_from(["commit", "deliver", "read"]), max_size=80), st.randoms(use_true_random=False))
def test_what_was_committed_before_the_watermark_is_delivered(steps, random):
    """Ids are drawn before the commit: commits come in another order, and records are delivered in any order."""
    watermark, now, ids = Watermark(), 0.0, list(range(1, len(steps) + 1))
    random.shuffle(ids)
    committed, waiting = {}, set()
    for step in steps:
        now += 1.0
        if step == "commit":
            committed[record := ids.pop()] = now
            waiting.add(record)
        elif step == "deliver" and waiting:
            waiting.remove(random.choice(sorted(waiting)))
        elif step == "read":
            watermark.note(WatermarkSample(now, max(committed, default=None)))
            until = watermark.until(min(waiting, default=None))
            assert until is None or all(committed[record] > until for record in waiting)
            assert waiting or until == now
