"""The records of a topic as readers of committed messages see them, and their times: read on a thread of its own."""

import threading
import time
from collections import defaultdict

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from support.outbox import MESSAGE_ID, delivered

from harvest_lib.consume import Message, Sequencer

_RING = 100_000


class Arrivals:
    """A context manager that reads until it ends. Messages with ids come once they are acknowledged, once each."""

    def __init__(self, servers, topic):
        self._topic = topic
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "arrivals",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 10,
            }
        )
        self.ids = []
        """The outbox ids in the order in which they came."""
        self.first_of = {}
        """By leader id: when the first record of it came, in monotonic seconds."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def __enter__(self):
        partitions = self._consumer.list_topics(self._topic, 10).topics[self._topic].partitions
        self._consumer.assign([TopicPartition(self._topic, number, OFFSET_BEGINNING) for number in partitions])
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()
        self._consumer.close()

    def _read(self):
        sequencers = defaultdict(lambda: Sequencer(ring=_RING))
        while not self._over.is_set():
            for message in self._consumer.consume(1_000, timeout=0.02):
                if message.error():
                    continue
                message_id = dict(message.headers() or []).get(MESSAGE_ID)
                for committed in sequencers[message.partition()].take([Message(message.offset(), message_id, message)]):
                    for each in committed:
                        self._take(delivered(each.record))

    def _take(self, record):
        self.ids.append(record.outbox_id)
        self.first_of.setdefault(str(record.leader_id), time.monotonic())
