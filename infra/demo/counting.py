"""Counts the records of a topic. Each count is one request to the brokers, so it can run several times a second."""

import time

from confluent_kafka import KafkaException, TopicPartition, admin

from harvest_lib.kafka_client import client_settings, translate
from infra.demo.place import PARTITIONS, Place

_PATIENCE_SECONDS = 15
_REQUEST_SECONDS = 5


class Counting:
    """Counts the records in the topic of a demo, duplicates included."""

    def __init__(self, place: Place) -> None:
        self._settings = place.kafka
        self._admin = admin.AdminClient(client_settings(place.kafka))
        latest = admin.OffsetSpec.latest()  # type: ignore[no-untyped-call]
        self._latest = {TopicPartition(place.topic, number): latest for number in range(PARTITIONS)}
        self._count = 0
        self._answered = time.monotonic()

    def count(self) -> int:
        """Return the number of records. If the brokers do not answer, return the number of the last count.

        Just after the topic was created, there may be no answer, because the leaders of its partitions may not know
        the topic yet. Raises KafkaError if there is no answer for 15 s.
        """
        try:
            answers = self._admin.list_offsets(self._latest, request_timeout=_REQUEST_SECONDS)
            self._count = sum(answer.result().offset for answer in answers.values())
        except KafkaException as error:
            if time.monotonic() - self._answered > _PATIENCE_SECONDS:
                raise translate(error.args[0], settings=self._settings) from error
        else:
            self._answered = time.monotonic()
        return self._count
