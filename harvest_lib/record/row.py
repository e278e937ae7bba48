"""A record on its way through the harvester: a bare row."""

from typing import Final

Row = tuple[int, str, str, str | bytes | None, list[str], list[str | None]]
"""A record on its way: id, topic, key, value, header names, header values. A plain tuple, as psycopg returns it: an
object per record would cost more than everything else done in Python for it. Values are text or bytes, as the column
is."""

ID: Final = 0
TOPIC: Final = 1
KEY: Final = 2
VALUE: Final = 3
HEADER_NAMES: Final = 4
HEADER_VALUES: Final = 5
"""Indices of a row. Loops over every record spell the numbers out, which is faster."""


class Unreadable(str):
    """Reason that a record cannot be read: its text is not UTF-8. Stands as the only header value of a row without
    header names, so that no delivery sends it."""

    __slots__ = ()


PAGE_BYTES = 2_000_000
"""Limit of a page of records that is read at a time, in bytes; a single record may be larger."""


def row_bytes(row: Row) -> int:
    """Return about how many bytes of memory the parts of a record take: key, value and headers."""
    _, _, key, value, names, contents = row
    size = len(key) if key else 0  # null where the table's constraint was dropped
    if value:
        size += len(value)
    for name in names:
        if name:
            size += len(name)
    for content in contents:
        if content:
            size += len(content)
    return size
