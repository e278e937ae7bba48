"""A Kafka record with all of its parts, as the data of a message (`content: record`), and its size in memory.

`headers` are what `headers_of` returned. It is called once per record, because it removes headers that it cannot read.
"""

from collections.abc import Sequence
from typing import Any

from confluent_kafka import Message as Record

from harvest_lib.pipeline.bounds import size_of

Headers = Sequence[tuple[str, bytes | None]] | None


def data_of(record: Record, headers: Headers) -> dict[str, Any]:
    """Return key, value and headers, as text or else as bytes, and the place of a record."""
    return {
        "key": _text(record.key()),
        "value": _text(record.value()),
        "headers": [[name, _text(value)] for name, value in headers] if headers is not None else None,
        "partition": record.partition(),
        "offset": record.offset(),
    }


def bytes_of(record: Record, headers: Headers) -> int:
    """Return the approximate size in memory of a record, or of an error in place of one, in bytes."""
    return 1 + len(record.value() or b"") + len(record.key() or b"") + size_of(headers or ())


def _text(value: Any) -> str | bytes | None:
    if not isinstance(value, bytes):
        return None if value is None else str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
