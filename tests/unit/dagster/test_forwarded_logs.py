"""Warnings of the harvester in the log of its run: with the facts of their event, and never too long."""

import logging
import queue

import pytest

from dagster_harvest.forwarded_logs import forwarded_logs

pytestmark = pytest.mark.quick


def forwarded(event, **fields):
    texts = queue.SimpleQueue()
    with forwarded_logs(texts):
        logging.getLogger("harvest_lib.batching.parking").warning(event, extra=fields)
    assert texts.qsize() == 1
    return texts.get_nowait()[1]


def test_parked_records_are_told_with_number_topics_ids_and_reasons():
    text = forwarded("records_parked", count=3, topics=["orders"], ids=[7, 8, 9], reasons=["MSG_SIZE_TOO_LARGE"])
    assert text == "records_parked: count 3; topics orders; ids 7, 8, 9; reasons MSG_SIZE_TOO_LARGE"


def test_long_lists_and_texts_are_cut_off():
    text = forwarded("records_parked", count=1000, ids=list(range(1000)), reasons=["x" * 10_000])
    assert "ids 0, 1, 2, 3, 4, 5, 6, 7, 8, 9; reasons" in text
    assert len(text) < 600


def test_other_warnings_have_their_reason():
    assert forwarded("heartbeat_failed", reason="no answer") == "heartbeat_failed: no answer"
    assert forwarded("bare") == "bare"
