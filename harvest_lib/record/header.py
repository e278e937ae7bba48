"""The packed header with the origin of a record in Kafka.

Every record that the harvester sends may have a header `harvest`, of 25 bytes, big-endian:

    version (1 byte, 1) | leader id (16 bytes, the UUID of the term that sent it) | outbox id (int64)

All but the id is constant within a term, so `stamp` packs once per record. The audit reads the header back to
compare Kafka with the outbox and to find the terms that sent a record twice. Pure: no I/O, no clock.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from operator import methodcaller
from typing import Any
from uuid import UUID

HEADER_NAME = "harvest"

VERSION = 1

_PREFIX_AND_ID = struct.Struct(">17sq")
_HEADERS = methodcaller("headers")
_WHOLE = struct.Struct(">B16sq")


def stamp(leader_id: UUID) -> Callable[[int], bytes]:
    """Return the function that makes the header's value from an outbox id, for records sent under `leader_id`.

    The function raises `struct.error` for an id outside int64.
    """
    return partial(_PREFIX_AND_ID.pack, prefix(leader_id))


def prefix(leader_id: UUID) -> bytes:
    """Return the header's value up to the 8 bytes of the outbox id: version and leader id."""
    return bytes([VERSION]) + leader_id.bytes


def split(value: bytes) -> tuple[bytes, int]:
    """Return the leader id as its 16 bytes and the outbox id, for readers of millions of records.

    Raises ValueError when `value` is of another length or version.
    """
    try:
        version, leader, outbox_id = _WHOLE.unpack(value)
    except struct.error:
        raise ValueError(f"a `{HEADER_NAME}` header has {_WHOLE.size} bytes, this header {len(value)}") from None
    if version != VERSION:
        raise ValueError(f"a `{HEADER_NAME}` header of version {VERSION} is understood, this header is of {version}")
    return leader, outbox_id


def headers_of(record: Any) -> Sequence[tuple[str, bytes | None]] | None:
    """Return the headers of a record as its client read them; None if one of their names is not UTF-8.

    To Kafka a name is any bytes. For such a record the client for Python returns a list that ends the process with a
    segmentation fault where it is read, and leaves an exception behind. Where the call comes from C, Python checks for
    that, and raises SystemError. The record has no headers from then on, as the client would return the list again.
    """
    try:
        return _HEADERS(record) or ()
    except SystemError:
        record.set_headers([])
        return None


def headers_of_all(records: Sequence[Any]) -> list[Any]:
    """Return the headers of each record, as `headers_of` does, for readers of millions of records."""
    found: list[Sequence[tuple[str, bytes | None]] | None] = []
    left = iter(records)
    while len(found) < len(records):
        try:
            found.extend(map(_HEADERS, left))
        except SystemError:  # of the first record that is not in the list
            records[len(found)].set_headers([])
            found.append(None)
    return found


def origin_of(headers: Iterable[tuple[str, object]] | None) -> tuple[UUID, int] | None:
    """Return the leader id and the outbox id in a record's headers; None if none of them is the harvester's.

    A row may have headers of this name too, and the harvester appends its own: the last that can be read counts.
    """
    found = None
    for name, value in headers or ():
        if name == HEADER_NAME and isinstance(value, bytes):
            with suppress(ValueError):  # another program's header of the same name
                found = split(value)
    return None if found is None else (UUID(bytes=found[0]), found[1])


def unpack(value: bytes) -> tuple[UUID, int]:
    """Return the leader id and the outbox id. Raises ValueError when `value` is of another length or version."""
    leader, outbox_id = split(value)
    return UUID(bytes=leader), outbox_id
