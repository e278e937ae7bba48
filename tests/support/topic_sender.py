"""Sends records as harvesters send them, pending and acknowledged too, and what others send."""

import time
from uuid import uuid4

from confluent_kafka import Producer

from harvest_lib.record.header import HEADER_NAME, stamp
from harvest_lib.sequencing import message_id
from harvest_lib.sequencing.message_id import Clock, Flag, new_producer_id, pack


class Sender:
    """Sends what a harvester could have sent."""

    def __init__(self, servers, topic, **settings):
        self.producer, self.topic = Producer({"bootstrap.servers": servers, "linger.ms": 0, **settings}), topic

    def send(self, record_id, *headers, key="k", value=b"v", partition=0, **options):
        own = [*headers, (HEADER_NAME, stamp(uuid4())(record_id)), ("event", b"e")]
        self.producer.produce(self.topic, value=value, key=key, partition=partition, headers=own, **options)

    def acknowledge(self, message, partition=0):
        headers = [(message_id.HEADER_NAME, message)]
        self.producer.produce(self.topic, value=None, partition=partition, headers=headers)

    def flush(self):
        assert self.producer.flush(60) == 0


def in_transactions(servers, topic, transactional_id):
    """Send 1, 2 and 5 in committed transactions, 3 and 4 in an aborted one, and 6 in one that stays open."""
    sender = Sender(servers, topic, **{"transactional.id": transactional_id})
    sender.producer.init_transactions(30)
    for record_ids, is_committed in (((1, 2), True), ((3, 4), False), ((5,), True)):
        sender.producer.begin_transaction()
        for record_id in record_ids:
            sender.send(record_id)
        sender.producer.commit_transaction(30) if is_committed else sender.producer.abort_transaction(30)
    sender.producer.begin_transaction()
    sender.send(6)
    sender.flush()
    return sender


class Pending:
    """A sender of `delivery: sequenced`, whose records are pending until it acknowledges them."""

    def __init__(self, sender):
        self.sender, self.id, self.clock = sender, new_producer_id(), Clock(time.time_ns)

    def send(self, *record_ids, partition=0):
        """Send pending records, and return the clock of the last one."""
        for record_id in record_ids:
            tick = self.clock.tick()
            header = (message_id.HEADER_NAME, pack(self.id, tick, Flag.CONTINUE_TXN))
            self.sender.send(record_id, header, partition=partition)
        self.sender.flush()
        return tick

    def acknowledge(self, tick=None, partition=0):
        """Commit what is pending, or only up to the clock `tick` and roll back the rest."""
        self.sender.acknowledge(pack(self.id, tick or self.clock.tick(), Flag.ACK_TXN), partition)
        self.sender.flush()
