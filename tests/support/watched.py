"""Clients of an embedder's own that note what they see: records that are produced, and their reports."""

from collections import Counter

from confluent_kafka import Producer

from harvest_lib.record.header import HEADER_NAME


class WatchedProducers:
    """A provider of producers. `produced` and `reported` are records and reports by topic; `most` records were
    outstanding at a time, over all producers; `of_outbox` records had the harvester's header. `at_flush` is called
    while the records of a batch are in flight."""

    def __init__(self, at_flush=lambda: None):
        self.produced, self.reported, self.errors = Counter(), Counter(), []
        self.outstanding = self.most = 0
        self.at_flush = at_flush
        self.of_outbox = 0

    def __call__(self, settings):
        return _Watched(self, Producer(settings))


class _Watched:
    def __init__(self, notes, producer):
        self._notes, self._producer = notes, producer

    def produce(self, topic, value=None, key=None, partition=-1, **named):
        notes = self._notes
        report = named.pop("on_delivery", None)

        def reported(error, message):
            notes.outstanding -= 1
            notes.reported[topic] += 1
            notes.errors += [error] if error is not None else []
            if report is not None:
                report(error, message)

        self._producer.produce(topic, value, key, partition, on_delivery=reported, **named)
        notes.produced[topic] += 1
        notes.of_outbox += HEADER_NAME in dict(named.get("headers") or ())
        notes.outstanding += 1
        notes.most = max(notes.most, notes.outstanding)

    def flush(self, timeout):
        self._notes.at_flush()
        return self._producer.flush(timeout)

    def __len__(self):
        return len(self._producer)

    def __getattr__(self, name):
        return getattr(self._producer, name)
