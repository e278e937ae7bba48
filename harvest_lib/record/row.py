"""The form of a record inside the harvester: a row, which is a plain tuple."""

from typing import Final

Row = tuple[int, str, str, str | bytes | None, list[str], list[str | None]]
"""A record: id, topic, key, value, header names, header values. A plain tuple, as psycopg returns it, because an object
for each record would cost more than all other work in Python for the record. The value is text or bytes, depending on
the column."""

ID: Final = 0
TOPIC: Final = 1
KEY: Final = 2
VALUE: Final = 3
HEADER_NAMES: Final = 4
HEADER_VALUES: Final = 5
"""Indices of a row's elements. Loops over all records use the numbers themselves, which is faster."""


class Unreadable(str):
    """The reason why a record cannot be read: its text is not UTF-8. The row of such a record has this text as its only
    header value, and no header name. The row is malformed, so that no delivery sends it."""

    __slots__ = ()


PAGE_BYTES = 2_000_000
"""Maximum number of bytes of records that are read at a time (a page). A single record may be larger."""


def row_bytes(row: Row) -> int:
    """Return the approximate size of a record in bytes: key, value and headers."""
    _, _, key, value, names, contents = row
    size = len(key) if key else 0  # the key is null if the table's constraint was dropped
    if value:
        size += len(value)
    for name in names:
        if name:
            size += len(name)
    for content in contents:
        if content:
            size += len(content)
    return size
