"""Rows for tests of the parts that move them."""

from confluent_kafka import Message

from harvest_lib.record import Row

LANDED = Message(offset=7)
"""What a delivery report comes with."""


def row(record_id: int, key: str, value: str | None = "v", topic: str = "t") -> Row:
    return (record_id, topic, key, value, [], [])
