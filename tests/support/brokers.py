"""Deliveries into a list and into a real broker under one handle, and how the loop drives them."""

import uuid

from confluent_kafka import Producer
from support.fakes import FakeDelivery
from support.outbox import Delivered, read_topic
from support.rows import row
from support.waiting import eventually

from harvest_lib.delivery import AtLeastOnce, Lanes, LaneSettings, Pipelined, Reports, Topics
from harvest_lib.record.rows import RowQueue


def always():
    return True


class FakeBroker:
    """A delivery into a list, and what arrived there."""

    def __init__(self):
        self._delivery = FakeDelivery()

    def delivery(self, *, held=False):
        self._delivery.hold = held
        return self._delivery

    def row(self, number, key="k"):
        return row(number, key)

    def refused(self, number):
        self._delivery.refuse[number] = "never"
        return row(number, "k")

    def arrived(self):
        return [
            Delivered(partition=0, offset=offset, key=sent[2], value=sent[3], headers=[], outbox_id=sent[0])
            for offset, (_, sent) in enumerate(self._delivery.log)
        ]


class RealBroker:
    """A topic of a real broker, and what arrived there."""

    def __init__(self, servers, topic, kind=AtLeastOnce, lanes=1):
        self._servers = servers
        self._kind = kind
        self._lanes = lanes
        self.topic = topic
        self._made = []

    def delivery(self, *, held=False, timeout_seconds=600.0, send_buffer=10, provider=Producer, **settings):
        """Make a delivery; with `held` what is sent stays in its queue, for longer than a test lasts."""
        lane_settings = LaneSettings(
            kafka={"bootstrap.servers": self._servers, "linger.ms": 500_000 if held else 2, **settings},
            delivery_timeout_seconds=timeout_seconds,
            send_buffer=send_buffer,
            producer_provider=provider,
        )
        topics = Topics({"bootstrap.servers": self._servers})
        lanes = [self._kind(lane_settings, topics) for _ in range(self._lanes)]
        made = lanes[0] if self._lanes == 1 else Lanes(lanes)
        self._made.append(made)
        return made

    def row(self, number, key="k", value="v"):
        return row(number, key, value, self.topic)

    def refused(self, number):
        """Make a row that cannot become a record: a header's value is missing."""
        return (number, self.topic, "k", "v", ["a", "b"], ["1"])

    def arrived(self):
        return read_topic(self._servers, self.topic)

    def close(self):
        for made in self._made:
            made.close()


KINDS = {
    "one_lane": (AtLeastOnce, 1),
    "eight_lanes": (AtLeastOnce, 8),
    "pipelined": (Pipelined, 1),
    "eight_pipelined": (Pipelined, 8),
}


def begun(delivery):
    delivery.begin(uuid.uuid4())
    return delivery


def send(delivery, *rows, may_send=always):
    left = RowQueue(rows)
    delivery.send(left, may_send)
    return list(left)


def poll(delivery, count, seconds=60):
    """Poll until `count` records are reported, and once more to see that no more are."""
    reports = Reports()

    def enough():
        polled = delivery.poll(0.05)
        reports.acknowledged.extend(polled.acknowledged)
        reports.failed.extend(polled.failed)
        return len(reports.acknowledged) + len(reports.failed) >= count

    eventually(enough, f"{count} reports", seconds=seconds)
    assert delivery.poll(0) == Reports()
    return reports


def deliver(delivery, *rows):
    """Do as the loop does until every row is acknowledged or refused; return what was refused."""
    left, refused, acknowledged = RowQueue(rows), [], []

    def done():
        delivery.send(left, always)
        reports = delivery.poll(0.05)
        acknowledged.extend(reports.acknowledged)
        refused.extend(failure for failure in reports.failed if failure.refused)
        again = [failure.row for failure in reports.failed if not failure.refused]
        if again or reports.halted:
            left.give_back(RowQueue(sorted(again)))
            delivery.begin(uuid.uuid4())
        return len(acknowledged) + len(refused) == len(rows)

    eventually(done, f"all {len(rows)} are acknowledged or refused")
    assert delivery.poll(0) == Reports()
    assert not set(acknowledged) & {failure.row[0] for failure in refused}
    return refused


def by_key(records):
    """Return the outbox ids of each key in the order of their partition."""
    found = {}
    for record in records:
        found.setdefault(record.key, []).append(record.outbox_id)
    return found


def ids(rows):
    return [r[0] for r in rows]


def failed_ids(reports):
    return [failure.row[0] for failure in reports.failed]
