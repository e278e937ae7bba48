"""The progress of a running replay: the ids that its parts have committed, as a share of all ids."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from confluent_kafka import Consumer, KafkaException, TopicPartition

from harvest_lib.kafka_client import client_settings
from harvest_lib.process import threads
from harvest_lib.spark.replay.parts import PartSettings

_LOOK_SECONDS = 1.0
_ANSWER_SECONDS = 5.0


@contextmanager
def watched(settings: PartSettings, *, parts: int, highest_id: int, tell: Callable[[float], None]) -> Iterator[None]:
    """Call `tell` each second with the share that is done, from 0 to 1, until the block ends. The share is an estimate:
    ids have gaps, and parts end at different times."""
    ended = threading.Event()

    def watch() -> None:
        own = {"group.id": settings.group, "enable.auto.commit": False, "isolation.level": "read_uncommitted"}
        consumer = Consumer(client_settings(settings.kafka, **own))
        places = [TopicPartition(settings.progress_topic, number) for number in range(parts)]
        try:
            while not ended.wait(_LOOK_SECONDS):
                with suppress(KafkaException):  # the next query repeats it
                    found = consumer.committed(places, _ANSWER_SECONDS)
                    done = sum(min(max(each.offset, 0), highest_id) for each in found)
                    tell(done / (parts * max(1, highest_id)))
        finally:
            consumer.close()

    thread = threads.start("replay-progress", watch)
    try:
        yield
    finally:
        ended.set()
        thread.join()
