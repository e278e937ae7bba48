"""Rounds: many records, no report for each; a round that fails does so as a whole, and then records go one by one."""

import uuid

import pytest
from confluent_kafka import KafkaError, KafkaException
from support.brokers import begun, failed_ids, ids, send
from support.rows import LANDED, row

from harvest_lib.delivery import LaneSettings, Pipelined, Topics

pytestmark = pytest.mark.quick

TRANSPORT = KafkaError(KafkaError._TRANSPORT, "gone")
FATAL = KafkaError(KafkaError._GAPLESS_GUARANTEE, "no gap-less order", fatal=True)


class Broker:
    """Makes producers that fail the records whose values are in `bad`, and tells which way each was made for."""

    def __init__(self, bad=()):
        self.bad, self.made, self.holds, self.raises = set(bad), [], False, None

    def __call__(self, settings):
        self.made.append(Made(self, settings))
        return self.made[-1]

    @property
    def by_rounds(self):
        return ["delivery.report.only.error" in made.settings for made in self.made]


class Made:
    def __init__(self, broker, settings):
        self.broker, self.settings, self.queue, self.sent = broker, settings, [], []

    def produce(self, _topic, value, _key, _partition, callback, *_):
        if value == "unspeakable":
            raise TypeError("no")
        self.queue.append((value, callback))

    def __len__(self):
        return len(self.queue)

    def poll(self, _seconds=0):
        if self.broker.raises is not None:
            error, self.broker.raises = self.broker.raises, None
            raise KafkaException(error)
        while self.queue and not self.broker.holds:
            value, callback = self.queue.pop(0)
            error = TRANSPORT if value in self.broker.bad else None
            self.sent.append(value)
            if callback is not None:
                callback(error, None if error else LANDED)
            elif error is not None:
                self.settings["on_delivery"](error, None)
        return 0

    flush = poll

    def fail_first(self):
        _, callback = self.queue.pop(0)
        callback(TRANSPORT, None)

    def purge(self, *, in_flight, **_):
        if in_flight:
            self.queue.clear()

    def close(self):
        return True


def delivery(broker):
    settings = LaneSettings(kafka={}, delivery_timeout_seconds=600, producer_provider=broker)
    return begun(Pipelined(settings, Topics({})))


def rows(first, last, value="v"):
    return [row(number, "k", value) for number in range(first, last + 1)]


def test_a_round_has_landed_when_nothing_of_it_is_outstanding():
    broker = Broker()
    made = delivery(broker)
    broker.holds = True
    assert send(made, *rows(1, 300)) == []
    assert [callback for _, callback in broker.made[0].queue] == [None] * 300
    assert made.poll(0).acknowledged == []
    assert not made.takes
    assert ids(send(made, *rows(301, 302))) == [301, 302], "the next round waits for this one"
    broker.holds = False
    assert made.poll(0.01).acknowledged == list(range(1, 301))
    assert made.takes
    assert send(made, *rows(301, 302)) == []


def test_of_a_round_that_fails_nothing_counts_as_landed():
    """Reports are lost when a client raises amid them, so what is not known to have failed is not known to be there."""
    broker = Broker(bad={"bad"})
    made = delivery(broker)
    send(made, *rows(1, 5), *rows(6, 6, "bad"), *rows(7, 9))
    reports = made.poll(0)
    assert failed_ids(reports) == list(range(1, 10))
    assert reports.acknowledged == []
    assert reports.halted
    assert ids(send(made, row(1, "k"))) == [1], "it takes nothing before it begins"


def test_what_is_fatal_fails_the_round_although_no_record_is_reported():
    broker = Broker()
    made = delivery(broker)
    send(made, *rows(1, 5))
    broker.raises = FATAL
    failed = [each for _ in range(3) for each in failed_ids(made.poll(0.01))]
    assert failed == list(range(1, 6))


def test_after_one_that_failed_records_go_one_by_one_until_twice_as_many_have_landed():
    broker = Broker(bad={"bad"})
    made = delivery(broker)
    send(made, *rows(1, 800), *rows(801, 801, "bad"))
    assert len(made.poll(0).failed) == 801
    made.begin(uuid.uuid4())
    ways = []
    for first in range(1, 1_901, 100):
        assert send(made, *rows(first, first + 99)) == []
        ways.append(broker.by_rounds[-1])
        assert made.poll(0).acknowledged == list(range(first, first + 100))
    assert ways == [False] * 17 + [True] * 2, "1,602 and what is left of the hundred"
    assert len(broker.made) == 3


@pytest.mark.parametrize("limit", [None, 5_000])
def test_a_record_that_wants_to_travel_alone_ends_a_round_and_fails_nothing(limit):
    broker = Broker()
    topics = Topics({})
    if limit:
        topics._limits[row(4, "k")[1]] = topics.smallest_limit = limit
    settings = LaneSettings(kafka={}, delivery_timeout_seconds=600, producer_provider=broker)
    made = begun(Pipelined(settings, topics))
    odd = row(4, "k", "x" * 9_000 if limit else "unspeakable")
    assert ids(send(made, *rows(1, 3), odd, *rows(5, 6))) == [4, 5, 6]
    assert made.poll(0).acknowledged == [1, 2, 3]


def test_what_a_lane_keeps_back_is_told_although_another_has_it_begin_again():
    """Kept back permanently, a record would be held for one in flight, and never be sent while what follows it is."""
    broker = Broker(bad={"bad"})
    made = delivery(broker)
    made._singly = 10
    send(made, *rows(1, 1, "bad"))
    broker.holds = True
    send(made, *rows(2, 2))
    broker.made[-1].fail_first()
    assert made.poll(0).failed == [], "2 is on the wire"
    broker.holds = False
    made.begin(uuid.uuid4())
    reported = [made.poll(0) for _ in range(3)]
    assert [each for reports in reported for each in failed_ids(reports)] == [1]
    assert [each for reports in reported for each in reports.acknowledged] == [2]
    assert any(reports.halted for reports in reported)
