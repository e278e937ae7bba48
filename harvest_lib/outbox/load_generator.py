"""Load generator for an outbox, like goharvest's pump: it writes records of a few keys, a few in each transaction.

A single connection writes the transactions one after another. So the ids of a key ascend in the order of commits, even
without a lock on the key.
"""

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.outbox.table import OutboxTable
from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import translated
from harvest_lib.record import OutboxRecord, RecordLimits

# Postgres draws the ids after the sort, so ids follow the order of the arrays. The time comes from Postgres' clock, as
# for every writer.
_INSERT = """
INSERT INTO {table} (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
SELECT clock_timestamp(), %(topic)s, key, {value}, %(names)s::text[],
       (ARRAY[(%(first)s + number - 1)::text] || %(contents)s::text[])[1:%(headers)s]
FROM unnest(%(keys)s::text[], %(values)s::text[]) WITH ORDINALITY AS record (key, value, number) ORDER BY number
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Description of the records to write. Each record has `headers` headers: `Seq` (the record's number, from 0),
    `Header-2`, `Header-3` …"""

    topic: str
    keys: int
    """Number of different keys."""
    records: int
    per_transaction: int = 20
    interval_seconds: float = 0.0
    """Pause after each transaction except the last."""
    blank: bool = False
    """Write records without a value (NULL, a tombstone in Kafka)."""
    value_chars: int | None = None
    """Length of each value in characters. By default a value is `value-` and a random 64-bit number in hex."""
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
    """Write a load on a connection in autocommit. After each transaction, yield the number of records committed so far.

    If `stopping` is set, end after the current transaction. Before it writes, raise OutboxTableError if the outbox does
    not exist, and RecordError if the topic's name is not legal.
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
