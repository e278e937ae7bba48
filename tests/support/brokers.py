"""Deliveries into a list and into a real broker under one handle."""

import uuid

from confluent_kafka import Producer
from support.batches import START, FakeBatchDelivery, FakeKafka
from support.outbox import Delivered, read_topic
from support.rows import row

from harvest_lib.delivery import AtLeastOnce, BatchCommitted, BatchDeliverySettings, Topics


def always():
    return True


class FakeBroker:
    """A delivery into a list, and what arrived there."""

    def __init__(self):
        self._kafka = FakeKafka()
        self._delivery = FakeBatchDelivery(self._kafka)

    def delivery(self, *, held=False):  # noqa: ARG002 - nothing leaves before it is committed
        return self._delivery

    def row(self, number, key="k"):
        return row(number, key)

    def refused(self, number):
        self._delivery.refused[number] = "never"
        return row(number, "k")

    def arrived(self):
        return [
            Delivered(partition=0, offset=offset, key=sent[2], value=sent[3], headers=[], outbox_id=sent[0])
            for offset, sent in enumerate(self._kafka.log)
        ]

    def close(self):
        pass


class RealBroker:
    """A topic of a real broker, and what arrived there."""

    def __init__(self, servers, topic, expiry_seconds=None):
        self._servers = servers
        self._expiry_seconds = expiry_seconds
        self.topic = topic
        self._made = []

    def delivery(self, *, held=False, timeout_seconds=600.0, provider=Producer, topics=None, **settings):
        """Make a delivery; with `held` what is sent stays in its queue, for longer than a test lasts."""
        batch_settings = BatchDeliverySettings(
            kafka={"bootstrap.servers": self._servers, "linger.ms": 500_000 if held else 2, **settings},
            delivery_timeout_seconds=timeout_seconds,
            expiry_seconds=self._expiry_seconds,
            producer_provider=provider,
        )
        made = AtLeastOnce(batch_settings, topics or Topics({"bootstrap.servers": self._servers}))
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
            made.abandon()


def begun(delivery):
    assert delivery.begin(uuid.uuid4(), always) == BatchCommitted()
    return delivery


def deliver(delivery, *rows):
    """Send a batch, of which nothing is refused, and return its outcome."""
    assert delivery.send(list(rows), always) == {}
    return delivery.commit(START, always)


def by_key(records):
    """Return the outbox ids of each key in the order of their partition."""
    found = {}
    for record in records:
        found.setdefault(record.key, []).append(record.outbox_id)
    return found


def ids(rows):
    return [r[0] for r in rows]
