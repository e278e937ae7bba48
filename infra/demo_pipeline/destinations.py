"""Results of a run: each destination as rows by id, row for row beside the source, and how often messages came."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.parquet
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from harvest_lib.errors import StackError
from harvest_lib.pipeline.extended_json import loads
from infra.demo_pipeline.source import rows_of

Row = Mapping[str, Any]

_READ_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """Content of a destination: its rows by id, and how often each offset of the commit log came, if it can tell."""

    rows: Mapping[int, Row]
    times: Mapping[int, int] = field(default_factory=dict)


def in_postgres(dsn: str) -> Arrived:
    """Read the second table."""
    return Arrived(rows=rows_of(dsn, "copied.flights"))


def in_kafka(bootstrap_servers: str, topic: str) -> Arrived:
    """Read the topic: the newest record of each key, in envelopes of CloudEvents, whose ids hold the offset."""
    rows: dict[int, Row] = {}
    times: Counter[int] = Counter()
    for value in _records(bootstrap_servers, topic):
        message = loads(value)
        event = message["data"]
        times[int(event["id"].rpartition("-")[2])] += 1
        _apply(rows, message["op"], int(event["subject"]), event["data"])
    return Arrived(rows=rows, times=times)


def in_parquet(folder: Path) -> Arrived:
    """Read the files in their order: the newest row of each id."""
    rows: dict[int, Row] = {}
    times: Counter[int] = Counter()
    for file in sorted(folder.glob("*.parquet")):
        for row in pyarrow.parquet.read_table(file).to_pylist():
            op, _, offset = row.pop("_op"), row.pop("_timestamp"), row.pop("_offset")
            times[offset] += 1
            _apply(rows, op, row["id"], row)
    return Arrived(rows=rows, times=times)


def differences(source: Mapping[int, Row], arrived: Arrived, changed: Callable[[Row], Row] = dict) -> list[str]:
    """Say each row that is missing, too many, or other than the transformed one of the source."""
    found = [f"{key} is missing" for key in source.keys() - arrived.rows.keys()]
    found += [f"{key} is not in the source" for key in arrived.rows.keys() - source.keys()]
    for key in source.keys() & arrived.rows.keys():
        expected, row = changed(source[key]), arrived.rows[key]
        if expected != row:
            columns = {name for name, _ in expected.items() ^ row.items()}
            found.append(f"{key} differs in {', '.join(sorted(columns))}")
    return found


def _apply(rows: dict[int, Row], op: str, key: int, row: Row) -> None:
    if op == "delete":
        rows.pop(key, None)
    else:
        rows[key] = row


def _records(bootstrap_servers: str, topic: str) -> list[bytes]:
    """Return the values of all records of a topic, those of each partition in order."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": f"look-{uuid4().hex[:8]}", "enable.auto.commit": False}
    )
    values: list[bytes] = []
    try:
        left = 0
        partitions = consumer.list_topics(topic, _READ_SECONDS).topics[topic].partitions
        for partition in partitions:
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), _READ_SECONDS)
            left += end
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        while left:
            batch = consumer.consume(min(1_000, left), _READ_SECONDS)  # waits for so many
            if not batch:
                raise StackError("Kafka does not hand out its records", next_step="read the broker's log")
            left -= len(batch)
            for record in batch:
                if (error := record.error()) is not None:
                    raise StackError("a topic cannot be read", evidence=error.str(), next_step="run it again")
                value = record.value()
                values.append(value if isinstance(value, bytes) else b"")
    finally:
        consumer.close()
    return values
