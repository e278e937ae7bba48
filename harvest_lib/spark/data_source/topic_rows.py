"""Reads a partition of a topic in a task, as Arrow batches of the harvester's records.

read_committed (harvest_lib.consume) ─► committed by their senders ─► with a header `harvest` ─► Arrow batches
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pyarrow as pa
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

from harvest_lib.consume.reader import read_committed
from harvest_lib.errors import CheckpointError, ConfigError
from harvest_lib.record.header import HEADER_NAME, headers_of, split
from harvest_lib.record.outbox_record import reads_as_ours
from harvest_lib.sequencing.sequencer import Sequencer
from harvest_lib.spark.data_source.read_options import arrow_schema
from harvest_lib.spark.data_source.topic_offsets import TopicPartition, lost
from harvest_lib.spark.data_source.topic_options import SCHEMA, TopicOptions

_BATCH_BYTES, _BATCH_ROWS = 4 * 2**20, 10_000
"""Limits of an Arrow batch. The batch that exceeds the bytes is complete with the record that exceeds them."""

Row = tuple[Any, ...]


def read(options: TopicOptions, part: TopicPartition) -> Iterator[pa.RecordBatch]:
    """Yield the harvester's records of a part, in the order in which their senders committed them.

    Raises PositionLost if the log does not have all messages of the part, ConfigError for a sequenced message against
    the options, and the errors of `read_committed`.
    """
    schema = arrow_schema(SCHEMA)
    leaders: dict[bytes, str] = {}
    rows: list[Row] = []
    size = 0
    sequencer = part.begin.sequencer()
    with position_required():
        for group in read_committed(options.kafka, part.topic, part.partition, sequencer=sequencer, end=part.end):
            for message in group:
                row = _row(message.record, part, leaders)
                if row is None:
                    continue
                rows.append(row)
                size += len(message.record)
                if size >= _BATCH_BYTES or len(rows) >= _BATCH_ROWS:
                    yield _batch(rows, schema)
                    rows, size = [], 0
            require_unsequenced(options, part.topic, sequencer)
    if rows:
        yield _batch(rows, schema)


@contextmanager
def position_required() -> Iterator[None]:
    """Raise PositionLost in place of the reader's CheckpointError."""
    try:
        yield
    except CheckpointError as error:
        raise lost(error.cause, error.evidence) from error


def require_unsequenced(options: TopicOptions, topic: str, sequencer: Sequencer) -> None:
    """Raise ConfigError if a sequencer has found a sequenced message, and the options say that there is none."""
    if not options.sequenced and sequencer.newest:
        raise ConfigError(
            f"the topic {topic!r} has sequenced messages",
            field="sequenced",
            next_step="leave the option out, and start the query again",
        )


def _row(record: Any, part: TopicPartition, leaders: dict[bytes, str]) -> Row | None:
    """Return the row of a record; None if the record is not the harvester's. `leaders` keeps the texts of ids."""
    stamp, own = None, []
    for name, value in headers_of(record) or ():
        if isinstance(value, bytes) and reads_as_ours(name, value):
            stamp = value if name == HEADER_NAME else stamp  # the last one counts, as in `origin_of`
        else:
            own.append((name, value))
    if stamp is None:
        return None
    leader, outbox_id = split(stamp)
    kind, milliseconds = record.timestamp()
    key = record.key()
    return (
        outbox_id,
        leaders.get(leader) or leaders.setdefault(leader, str(UUID(bytes=leader))),
        part.topic,
        part.partition,
        record.offset(),
        None if kind == TIMESTAMP_NOT_AVAILABLE else milliseconds * 1_000,
        None if key is None else key.decode(errors="replace"),
        record.value(),
        own,
    )


def _batch(rows: Sequence[Row], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )
