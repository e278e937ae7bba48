"""Rows for tests of the parts that move them."""

from harvest_lib.record import Row


def row(record_id: int, key: str, value: str | None = "v", topic: str = "t") -> Row:
    return (record_id, topic, key, value, [], [])
