"""Finds the pages of a SQLite database that a transaction changed, in the frames it appended to the write-ahead log.

The format is published, https://www.sqlite.org/fileformat2.html#walformat: a header, then frames, each a small header
and a page. The last frame of a transaction has the number of pages of the database after it; frames behind it were
left over by a transaction that was rolled back.
"""

import os
from dataclasses import dataclass
from struct import Struct

_HEADER = Struct(">8x I 4x 8s 8x")  # page size, salts
_FRAME = Struct(">II 8s 8x")  # page, database's size in pages if this ends a transaction, salts

End = tuple[int, bytes]
"""End of a transaction: a position, and the salts of the file, which change when SQLite restarts it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """Pages that a transaction appended: the place in the file of each page it changed, by number from 1 on."""

    page_size: int
    page_count: int
    """Of the database, now."""
    positions: dict[int, int]
    end: End


def appended(descriptor: int, after: End | None) -> Appended | None:
    """Return the pages of the next transaction after the end of another, or of the first; None if none has ended."""
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
