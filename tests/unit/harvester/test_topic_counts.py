"""The counts of topics are the delivered records, whatever becomes of a batch."""

import pytest
from support.rows import Page

from harvest_lib.delivery import BatchCommitted, BatchFailed
from harvest_lib.harvester.observers.topic_counts import TopicCounting, TopicCounts
from harvest_lib.record.rows import records_by_topic

pytestmark = pytest.mark.quick


def rows(*topics, first=1):
    return [(first + place, topic, f"key-{place}", "v", [], []) for place, topic in enumerate(topics)]


def paged(*topics, first=1):
    return Page(rows(*topics, first=first), [])


@pytest.fixture
def counts():
    return TopicCounts()


@pytest.mark.parametrize("one_per_key", [False, True])
@pytest.mark.parametrize("made", [rows, paged])
def test_a_batch_counts_when_it_is_committed(counts, made, one_per_key):
    counting = TopicCounting(counts, one_per_key=one_per_key)
    counting.handing_over(made("a", "b", "a"))
    counting.handing_over(made("a", first=4))
    assert counts.read() == {}
    counting.committed(BatchCommitted(), 0.0)
    assert counts.read() == {"a": 3, "b": 1}
    counting.committed(BatchCommitted(), 0.0)
    assert counts.read() == {"a": 3, "b": 1}, "an empty batch adds nothing"


@pytest.mark.parametrize("one_per_key", [False, True])
def test_a_batch_that_failed_counts_when_it_is_sent_again(counts, one_per_key):
    counting = TopicCounting(counts, one_per_key=one_per_key)
    for outcome in (BatchFailed(reason="no broker"), BatchCommitted()):
        counting.handing_over(rows("a", "b"))
        counting.committed(outcome, 0.0)
        if isinstance(outcome, BatchFailed):
            counting.abandoned(repeats=True)
    assert counts.read() == {"a": 1, "b": 1}


def test_of_a_batch_that_failed_in_part_the_delivered_records_count(counts):
    counting = TopicCounting(counts, one_per_key=True)
    counting.handing_over(rows("a", "b", "a", "b"))
    counting.committed(BatchFailed(reason="expired"), 0.0)
    counting.delivered_except([1, 2])
    counting.abandoned(repeats=False)
    assert counts.read() == {"a": 1, "b": 1}
    counting.handing_over(rows("a", "b"))
    counting.committed(BatchCommitted(), 0.0)
    assert counts.read() == {"a": 2, "b": 2}


def test_a_page_of_one_topic_is_counted_without_reading_its_rows():
    made = []
    assert records_by_topic(Page(rows("a", "a", "a"), made)) == {"a": 3}
    assert made == []
