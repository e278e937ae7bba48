"""A load for an outbox: goharvest's pump. Records of a few keys, in transactions of a few records.

A single connection writes them in successive transactions, so the ids of a key rise in the order of commits without a
lock on the key.
"""

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.outbox.table import OutboxTable
from harvest_lib.postgres.database import in_statement, translated
from harvest_lib.record import OutboxRecord, RecordLimits

# Ids are given out after the sort, so in the order of the arrays. The time is Postgres's, as for every writer.
_INSERT = """
INSERT INTO {table} (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
SELECT clock_timestamp(), %(topic)s, key, {value}, %(names)s::text[],
       (ARRAY[(%(first)s + number - 1)::text] || %(contents)s::text[])[1:%(headers)s]
FROM unnest(%(keys)s::text[], %(values)s::text[]) WITH ORDINALITY AS record (key, value, number) ORDER BY number
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A load to write. Each record has `headers` headers: `Seq` (its number, from 0), `Header-2`, `Header-3` …"""

    topic: str
    keys: int
    """Number of different keys."""
    records: int
    per_transaction: int = 20
    interval_seconds: float = 0.0
    """Pause after each transaction but the last."""
    blank: bool = False
    """Write records without a value (NULL, a tombstone in Kafka)."""
    value_chars: int | None = None
    """Length of each value; by default the length of `value-` and a random number of 64 bits in hex."""
    headers: int = 1

    def check(self) -> None:
        """Raise RecordError if the topic's name is not legal in Kafka."""
        OutboxRecord(topic=self.topic, key="", value=None).check(RecordLimits())


def pump(
    connection: psycopg.Connection[Any],
    table: OutboxTable,
    load: Load,
    *,
    dice: random.Random,
    stopping: threading.Event,
) -> Iterator[int]:
    """Write a load on a connection in autocommit; yield the number of committed records after each transaction.

    Ends early, after the present transaction, once `stopping` is set. Raises OutboxTableError at once if the outbox
    does not exist, RecordError if the topic's name is not legal.
    """
    load.check()
    table.check_columns(connection)
    value = sql.SQL("convert_to(value, 'UTF8')" if table.value_type(connection) == "bytea" else "value")
    statement = sql.SQL(_INSERT).format(table=in_statement(table.identifier), value=value)
    names = ["Seq", *(f"Header-{number}" for number in range(2, load.headers + 1))][: load.headers]
    constant = {
        "topic": load.topic,
        "names": names,
        "contents": [f"content {number}" for number in range(2, load.headers + 1)],
        "headers": load.headers,
    }
    written = 0
    while written < load.records and not stopping.is_set():
        if written and load.interval_seconds and stopping.wait(load.interval_seconds):
            return
        numbers = [dice.getrandbits(64) for _ in range(min(load.per_transaction, load.records - written))]
        varying = {
            "first": written,
            "keys": [f"key-{number % load.keys:x}" for number in numbers],
            "values": [_value(load, number, dice) for number in numbers],
        }
        with translated():
            connection.execute(statement, {**constant, **varying}, prepare=True)
        written += len(numbers)
        yield written


def _value(load: Load, number: int, dice: random.Random) -> str | None:
    if load.blank:
        return None
    value = f"value-{number:x}"
    if load.value_chars is None:
        return value
    missing = max(0, load.value_chars - len(value))
    return (value + dice.randbytes(missing // 2 + 1).hex())[: load.value_chars]
