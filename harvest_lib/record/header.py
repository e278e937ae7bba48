"""The header `harvest`, which names the origin of a record in Kafka.

The harvester adds it to every record unless `recordHeader` is off. The value has 25 bytes, big-endian:

    version (1 byte, 1) | leader id (16 bytes, the UUID of the term that sent it) | outbox id (int64)

All bytes except the outbox id are constant within a term, so `stamp` builds them once, and packs once for each record.
The audit reads the header to compare Kafka with the outbox, and to find the terms that sent a record twice. No I/O, no
clock.
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
    """Return a function that maps an outbox id to the header's value, for records sent under `leader_id`.

    The returned function raises `struct.error` for an id outside int64.
    """
    return partial(_PREFIX_AND_ID.pack, prefix(leader_id))


def prefix(leader_id: UUID) -> bytes:
    """Return the first 17 bytes of the header's value: version and leader id."""
    return bytes([VERSION]) + leader_id.bytes


def split(value: bytes) -> tuple[bytes, int]:
    """Return the leader id, as 16 bytes, and the outbox id. No UUID is made, to save time for millions of records.

    Raises ValueError if `value` has another length or version.
    """
    try:
        version, leader, outbox_id = _WHOLE.unpack(value)
    except struct.error:
        raise ValueError(f"a `{HEADER_NAME}` header has {_WHOLE.size} bytes, this header {len(value)}") from None
    if version != VERSION:
        raise ValueError(f"a `{HEADER_NAME}` header of version {VERSION} is understood, this header is of {version}")
    return leader, outbox_id


def headers_of(record: Any) -> Sequence[tuple[str, bytes | None]] | None:
    """Return the headers of a client's record; None if the name of a header is not UTF-8.

    In Kafka the name of a header is any bytes. If a name is not UTF-8, the Python client returns a broken list, and
    leaves an exception set. Reading that list would end the process with a segmentation fault. Because the client's
    method is called from C (`methodcaller`), Python notices the exception and raises SystemError. The headers of the
    record are then removed, because the client would return the broken list again.
    """
    try:
        return _HEADERS(record) or ()
    except SystemError:
        record.set_headers([])
        return None


def headers_of_all(records: Sequence[Any]) -> list[Any]:
    """Return the headers of each record, for readers of millions of records. None for a record without headers, or with
    a header name that is not UTF-8."""
    found: list[Sequence[tuple[str, bytes | None]] | None] = []
    left = iter(records)
    while len(found) < len(records):
        try:
            found.extend(map(_HEADERS, left))
        except SystemError:  # raised by the first record that is not in `found` yet
            records[len(found)].set_headers([])
            found.append(None)
    return found


def origin_of(headers: Iterable[tuple[str, object]] | None) -> tuple[UUID, int] | None:
    """Return the leader id and the outbox id from a record's headers; None without a valid header `harvest`.

    The last valid header counts, because a row may have headers of this name, and the harvester's header follows them.
    """
    found = None
    for name, value in headers or ():
        if name == HEADER_NAME and isinstance(value, bytes):
            with suppress(ValueError):  # another program's header of the same name
                found = split(value)
    return None if found is None else (UUID(bytes=found[0]), found[1])


def unpack(value: bytes) -> tuple[UUID, int]:
    """Return the leader id, as UUID, and the outbox id. Raises ValueError if `value` has another length or version."""
    leader, outbox_id = split(value)
    return UUID(bytes=leader), outbox_id
