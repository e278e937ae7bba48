"""Finds runs in a batch of ids: pending messages of one producer that follow each other, clock by clock.

Most logs consist of them, and to take each id apart costs more than all else that is done with a message. Here the ids
of a batch are compared at once, as one number. Pure.
"""

import sys
from array import array
from collections.abc import Iterator, Sequence
from operator import and_, eq, lt
from typing import Any

from harvest_lib.sequencing.message_id import Flag

_BYTES = 16
_SAME = bytes.fromhex("00000000 ffffffff c3ff ffffffffffff")
"""What of two ids is the same within a run: all but the lower half of the time, and the count."""
_KIND = bytes.fromhex("f000 c3ff")
_PENDING = bytes([0x10, 0, 0x80, Flag.CONTINUE_TXN])
"""Version, variant and flag of an id, as `_KIND` leaves them."""
_ONE_IF_ANY = bytes([0]) + b"\1" * 255
_LEAST_MEAN = 4
"""Of shorter runs there are so many that it costs less to take each id apart."""


def runs(ids: Sequence[bytes | None]) -> Iterator[tuple[int, int]]:
    """Return where each run begins, and the index after its last, of two at least; none where an id is odd.

    Ids of a run have one producer and the flag CONTINUE_TXN, and their clocks rise. None of them is malformed.
    """
    try:
        joined = b"".join(ids)  # type: ignore[arg-type]  # None is a TypeError
    except TypeError:
        return
    count = len(ids)
    if count < 2 or set(map(len, ids)) != {_BYTES}:  # type: ignore[arg-type]  # noqa: PLR2004 - none is None
        return
    rises = _rises(ids, joined)
    differs = _masked_differences(joined)
    if _LEAST_MEAN * (rises.count(0) + differs.count(1)) > count:
        return
    begin = 0
    for end in _ends(rises, differs, count):
        if end - begin > 1 and _is_pending(ids[begin]):
            yield begin, end
        begin = end


def _rises(ids: Sequence[Any], joined: bytes) -> bytes:
    """Return 1 for each id whose lower half of the time is before that of the next, else 0.

    Where ids rise as bytes, 1 also where that half is the same, and the count rises: in a run nothing else differs.
    """
    if sorted(ids) == ids and not any(map(eq, ids, ids[1:])):  # at half of what it costs to take the times apart
        return b"\1" * (len(ids) - 1)
    times = array("I", joined)[::4]
    if sys.byteorder == "little":
        times.byteswap()
    return bytes(map(lt, times, times[1:]))


def _masked_differences(joined: bytes) -> bytes:
    """Return which bytes differ from each id to the next, 16 of 0 or 1 for each, all 0 where both may be of one run."""
    size = len(joined) - _BYTES
    before, after = int.from_bytes(joined[:-_BYTES]), int.from_bytes(joined[_BYTES:])
    masked = (before ^ after) & int.from_bytes(_SAME * (size // _BYTES))
    return masked.to_bytes(size).translate(_ONE_IF_ANY)


def _ends(rises: bytes, differs: bytes, count: int) -> Iterator[int]:
    """Return the indices at which something new begins, and at last the count."""
    end, rises, differs = 0, rises + b"\0", differs + b"\1"  # so that something is always found
    while end < count:
        end = min(rises.index(0, end), differs.index(1, _BYTES * end) // _BYTES) + 1
        yield end


def _is_pending(message_id: bytes | None) -> bool:
    return message_id is not None and bytes(map(and_, message_id[6:10], _KIND)) == _PENDING
