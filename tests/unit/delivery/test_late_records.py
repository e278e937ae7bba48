"""Records in batches that expire: a leader that was frozen as it sent stops, and brokers can see what is old."""

import pytest
from support.batches import START
from support.idle_producer import IdleProducer, begun
from support.rows import row

from harvest_lib.delivery import BatchFailed

pytestmark = pytest.mark.quick

ROWS = [row(number, f"k{number}") for number in range(5)]


class FakeProducer(IdleProducer):
    """Keeps what it is given; full every other time if `fills`."""

    def __init__(self, *, fills=False):
        self.timestamps, self._fills, self._calls = [], fills, 0

    def produce(self, _topic, _value, _key, _partition, *, timestamp, **_):
        self._calls += 1
        if self._fills and self._calls % 2:
            raise BufferError
        self.timestamps.append(timestamp)


@pytest.fixture
def now(monkeypatch):
    """The time of both clocks."""
    clock = [1_000.0]
    monkeypatch.setattr("harvest_lib.delivery.producer.time.time", lambda: clock[0])
    monkeypatch.setattr("harvest_lib.delivery.producer.boot_seconds", lambda: clock[0])
    return clock


EACH_BEFORE_ITS_CHECK = [1_001_000 + 1_000 * number for number in range(5)]


@pytest.mark.parametrize(
    ("fills", "expiry_seconds", "timestamps"),
    [
        (False, 9, EACH_BEFORE_ITS_CHECK),
        (True, 9, EACH_BEFORE_ITS_CHECK),
        (False, None, [1_000_000] * 5),  # the time before the check of its slice
    ],
)
def test_a_timestamp_is_older_than_the_check_that_the_record_may_still_go(now, fills, expiry_seconds, timestamps):
    producer = FakeProducer(fills=fills)

    def check():
        now[0] += 1  # as if the process had been frozen
        return True

    begun(producer, expiry_seconds=expiry_seconds).send(ROWS, check)
    assert producer.timestamps == timestamps


def test_no_record_follows_the_end_of_the_term(now):
    """Not even of the same page."""
    producer, answers = FakeProducer(), iter([True, True, True, False])
    delivery = begun(producer, expiry_seconds=9)

    def check():
        now[0] += 1  # as if the process had been frozen
        return next(answers)

    assert delivery.send(ROWS, check) == {}
    assert len(producer.timestamps) == 2
    assert isinstance(delivery.commit(START, lambda: True), BatchFailed)


def test_an_answer_holds_for_the_records_of_the_next_milliseconds(now):
    del now
    producer, asked = FakeProducer(), []
    delivery = begun(producer, expiry_seconds=9)
    delivery.send(ROWS, lambda: asked.append(1) or True)
    assert (len(producer.timestamps), len(asked)) == (5, 1)
