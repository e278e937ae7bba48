"""Finds runs in a batch of ids. A run consists of pending messages of one producer, with clocks that rise from message
to message. Most logs consist of runs, and the sequencer takes a whole run at a time. Unpacking each id would cost more
than all other work on a message. So this module joins the ids of a batch into a single number, and compares every id
with the next id in a few operations on that number. Pure, no I/O.  An example: 20 pending messages of producer 1, their
acknowledgement, and a message of producer 2. When a clock rises by 16, the time in it rises by one unit (100 ns).

    >>> from harvest_lib.sequencing.message_id import Flag, pack
    >>> ids = [pack(1, 16 * time, Flag.CONTINUE_TXN) for time in range(1, 21)]
    >>> ids += [pack(1, 16 * 20, Flag.ACK_TXN), pack(2, 16, Flag.CONTINUE_TXN)]
    >>> list(find_runs(ids))
    [(0, 20)]

The steps:

1. An id has 16 bytes: 4 for the lower time, 4 for the upper time and the version, 2 for count and flag, 6 for the
   producer. Within a run only the lower time and the count differ. `_SAME` masks these bits out.

    >>> ids[0].hex(" ", 4), ids[1].hex(" ", 4)
    ('00000001 00001000 80010000 00000001', '00000002 00001000 80010000 00000001')

2. `_masked_differences` compares each id with the next id, and applies the mask. It returns 16 bytes for each
   pair of neighbours: 1 for a byte that differs, 0 for an equal byte. Here the ids at index 19 and 20 differ in
   the flag, the ids at 20 and 21 in flag and producer.

    >>> differs = _masked_differences(b"".join(ids))
    >>> [pair for pair in range(21) if 1 in differs[16 * pair : 16 * pair + 16]]
    [19, 20]

3. `_rises` returns 1 for each pair of neighbours with a rising time. The acknowledgement has the clock of the message
   before it, and producer 2 begins with an early clock.

    >>> _rises(ids, b"".join(ids)) == bytes([1] * 19 + [0, 0])
    True

4. `_ends` yields the index after each stretch. A stretch ends between two ids that differ or do not rise.

    >>> list(_ends(_rises(ids, b"".join(ids)), differs, len(ids)))
    [20, 21, 22]

5. Only the stretch from 0 to before 20 is longer than a single id. Its first id is pending, so the stretch is a run.
"""

import sys
from array import array
from collections.abc import Iterator, Sequence
from operator import and_, eq, lt
from typing import Any

from harvest_lib.sequencing.message_id import Flag

_BYTES = 16
_SAME = bytes.fromhex("00000000 ffffffff c3ff ffffffffffff")
"""Mask of the bits that are the same within a run: all bits except the lower half of the time and the count."""
_KIND = bytes.fromhex("f000 c3ff")
_PENDING = bytes([0x10, 0, 0x80, Flag.CONTINUE_TXN])
"""Version, variant and flag of a pending id's bytes 6 to 9, masked by `_KIND`."""
_ONE_IF_ANY = bytes([0]) + b"\1" * 255
_LEAST_MEAN = 4
"""Least mean length of runs. If runs are shorter, unpacking each id costs less."""


def find_runs(ids: Sequence[bytes | None]) -> Iterator[tuple[int, int]]:
    """Yield, for each run, the index of its first id and the index after its last id. A run has at least two ids.

    The ids of a run are well-formed, have the same producer and the flag CONTINUE_TXN, and their clocks rise. Nothing
    is yielded if an id of the batch is missing or has another length, or if runs are short.
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
    """Return a byte for each id except the last: 1 if the lower half of the id's time is below the next id's, else 0.

    If all ids rise when compared as bytes, return 1 for each id. These include ids with the same time and a rising
    count, because within a run only time and count differ.
    """
    if sorted(ids) == ids and not any(map(eq, ids, ids[1:])):  # at half the cost of extracting the times
        return b"\1" * (len(ids) - 1)
    times = array("I", joined)[::4]
    if sys.byteorder == "little":
        times.byteswap()
    return bytes(map(lt, times, times[1:]))


def _masked_differences(joined: bytes) -> bytes:
    """Return 16 bytes for each pair of neighbours: 1 for a masked byte that differs, 0 for an equal byte. All bytes of
    a pair are 0 if both ids may belong to the same run."""
    size = len(joined) - _BYTES
    before, after = int.from_bytes(joined[:-_BYTES]), int.from_bytes(joined[_BYTES:])
    masked = (before ^ after) & int.from_bytes(_SAME * (size // _BYTES))
    return masked.to_bytes(size).translate(_ONE_IF_ANY)


def _ends(rises: bytes, differs: bytes, count: int) -> Iterator[int]:
    """Yield the index after each stretch of ids with no masked difference and rising times. The last index is
    `count`."""
    end, rises, differs = 0, rises + b"\0", differs + b"\1"  # so that `index` always finds a value
    while end < count:
        end = min(rises.index(0, end), differs.index(1, _BYTES * end) // _BYTES) + 1
        yield end


def _is_pending(message_id: bytes | None) -> bool:
    return message_id is not None and bytes(map(and_, message_id[6:10], _KIND)) == _PENDING
