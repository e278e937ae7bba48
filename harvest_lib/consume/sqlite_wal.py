"""Finds the pages of a SQLite database that a transaction changed, by the frames that it appended to the write-ahead
log.

The format is published, https://www.sqlite.org/fileformat2.html#walformat: a header, then frames, each of a small
header and a page. The last frame of a transaction has the number of pages that the database has after the transaction.
Frames after the last transaction were left over by a transaction that was rolled back.
"""

import os
from dataclasses import dataclass
from struct import Struct

_HEADER = Struct(">8x I 4x 8s 8x")  # page size, salts
_FRAME = Struct(">II 8s 8x")  # page, database's size in pages if this ends a transaction, salts

End = tuple[int, bytes]
"""End of a transaction: an offset in the file, and the file's salts. SQLite changes the salts when it restarts the
file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """Pages that a transaction appended. `positions` maps the number of each changed page, from 1 on, to the offset of
    its image in the file."""

    page_size: int
    page_count: int
    """Number of pages of the database after the transaction."""
    positions: dict[int, int]
    end: End


def appended(descriptor: int, after: End | None) -> Appended | None:
    """Return the pages of the transaction that follows the end `after`; of the file's first transaction if `after` is
    None or the file was restarted. Return None if that transaction has not ended. `descriptor` is the open log file."""
    header = os.pread(descriptor, _HEADER.size, 0)
    if len(header) < _HEADER.size:
        return None
    page_size, salts = _HEADER.unpack(header)
    positions: dict[int, int] = {}
    at = after[0] if after is not None and after[1] == salts else _HEADER.size
    while len(frame := os.pread(descriptor, _FRAME.size, at)) == _FRAME.size:
        page, page_count, salts_here = _FRAME.unpack(frame)
        if salts_here != salts:
            return None  # left over from before the file was restarted
        positions[page] = at + _FRAME.size  # a large transaction may write a page more than once
        at += _FRAME.size + page_size
        if page_count:
            return Appended(page_size=page_size, page_count=page_count, positions=positions, end=(at, salts))
    return None
