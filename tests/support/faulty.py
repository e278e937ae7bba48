"""A producer that fails some of what it is asked to send: before it reaches Kafka, or only as far as it says."""

import logging
import random
from collections import deque
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Producer

from harvest_lib.record.header import HEADER_NAME, unpack

_log = logging.getLogger(__name__)

KINDS = ("raised", "unsent", "sent")
"""`raised`: produce raises; `unsent`: the report says error and nothing was sent; `sent`: it says so of a record that
is in Kafka."""


class FaultyProducer:
    """`KafkaProducer` around confluent_kafka's. Of the records with a delivery report, `rate` fail, by the dice.

    Each failure is logged with its kind, the outbox id and the leader id it was sent under; the kind of one that
    nobody injected is `real`.

    With `enable.gapless.guarantee` the failure of one is, as with librdkafka, the failure of all that come after it.
    """

    def __init__(self, settings, *, rate, dice):
        settings = dict(settings)
        self._hear = settings.pop("on_delivery", None)
        self._only_errors = settings.pop("delivery.report.only.error", False)
        self._producer = Producer(settings)
        self._rate = rate
        self._dice = dice
        self._gapless = bool(settings.get("enable.gapless.guarantee"))
        self._broken = False
        self._unsent = deque()  # reports that are due

    def produce(self, topic, value=None, key=None, partition=-1, callback=None, on_delivery=None, *rest, **named):
        report = callback or on_delivery or self._hear
        if report is None:
            self._producer.produce(topic, value, key, partition, None, None, *rest, **named)
            return
        headers = rest[1] if len(rest) > 1 else named.get("headers", [])
        if HEADER_NAME not in dict(headers or []):  # messages among harvesters
            self._producer.produce(topic, value, key, partition, report, None, *rest, **named)
            return
        origin = _origin(headers)
        fault = self._dice.choice(KINDS) if self._dice.random() < self._rate else None
        if fault == "raised" and not self._broken:
            _say(fault, origin)
            raise KafkaException(_error())
        if fault == "unsent" or self._broken:
            self._broken = self._gapless
            self._unsent.append(partial(report, _error(), None))
            _say("unsent", origin)
            return
        reported = partial(self._report, report, origin, fault == "sent")
        self._producer.produce(topic, value, key, partition, reported, None, *rest, **named)

    def poll(self, timeout):
        served = self._serve()
        return served + self._producer.poll(0 if served else timeout)

    def flush(self, timeout):
        self._serve()
        return self._producer.flush(timeout)

    def __len__(self):
        return len(self._unsent) + len(self._producer)

    def purge(self, in_queue=True, in_flight=True, blocking=True):  # noqa: FBT002 - confluent_kafka's signature
        self._producer.purge(in_queue, in_flight, blocking)

    def close(self):
        return self._producer.close()

    def _serve(self):
        served = 0
        while self._unsent:
            self._unsent.popleft()()
            served += 1
        return served

    def _report(self, report, origin, fails, error, message):
        if error is not None:
            _say("real", origin)
        elif fails or self._broken:
            self._broken = self._gapless
            _say("sent", origin)
            error = _error()
        if error is not None or not self._only_errors:
            report(error, message)


class FaultyProducers:
    """A provider of faulty producers, all of which throw the same dice."""

    def __init__(self, *, rate, seed):
        self._rate = rate
        self._dice = random.Random(seed)

    def __call__(self, settings):
        return FaultyProducer(settings, rate=self._rate, dice=self._dice)


def _origin(headers):
    leader_id, outbox_id = unpack(dict(headers)[HEADER_NAME])
    return {"leader_id": str(leader_id), "outbox_id": outbox_id}


def _say(kind, origin):
    _log.info("send_failed", extra={"kind": kind, **origin})


def _error():
    return KafkaError(KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND, "injected")
