"""Finds runs in a batch of ids: pending messages of a single producer with clocks that rise from message to message.
Most logs consist of runs, and the sequencer takes a whole run at a time. Taking each id apart costs more than all other
work on a message. So this module does not: it joins the ids of a batch into a single number, and compares every id with
the next in a few operations on that number. Pure.  An example: 20 pending messages of producer 1, their
acknowledgement, and a message of producer 2. A clock that rises by 16 rises by a unit of time (100 ns).

    >>> from harvest_lib.sequencing.message_id import Flag, pack
    >>> ids = [pack(1, 16 * time, Flag.CONTINUE_TXN) for time in range(1, 21)]
    >>> ids += [pack(1, 16 * 20, Flag.ACK_TXN), pack(2, 16, Flag.CONTINUE_TXN)]
    >>> list(find_runs(ids))
    [(0, 20)]

How it gets there:

1. An id is 16 bytes: 4 of lower time, 4 of upper time and version, 2 of count and flag, 6 of producer. Within a run
   only the lower time and the count differ. `_SAME` masks these out.

    >>> ids[0].hex(" ", 4), ids[1].hex(" ", 4)
    ('00000001 00001000 80010000 00000001', '00000002 00001000 80010000 00000001')

2. `_masked_differences` compares each id with the next, and applies the mask. It returns 16 bytes for each
   pair of neighbours, a 1 for each byte that differs. Here the flag differs from index 19 to 20, and flag and
   producer from 20 to 21.

    >>> differs = _masked_differences(b"".join(ids))
    >>> [pair for pair in range(21) if 1 in differs[16 * pair : 16 * pair + 16]]
    [19, 20]

3. `_rises` returns a 1 for each pair whose time rises. The acknowledgement has the clock of the message before it, and
   producer 2 begins with an early clock.

    >>> _rises(ids, b"".join(ids)) == bytes([1] * 19 + [0, 0])
    True

4. `_ends` returns the indices at which a stretch ends: after each pair that differs or does not rise.

    >>> list(_ends(_rises(ids, b"".join(ids)), differs, len(ids)))
    [20, 21, 22]

5. Only the stretch 0 to 20 is longer than a single id. Its first id is pending, so it is a run.
"""

import sys
from array import array
from collections.abc import Iterator, Sequence
from operator import and_, eq, lt
from typing import Any

from harvest_lib.sequencing.message_id import Flag

_BYTES = 16
_SAME = bytes.fromhex("00000000 ffffffff c3ff ffffffffffff")
"""The bits that are the same within a run: all but the lower half of the time, and the count."""
_KIND = bytes.fromhex("f000 c3ff")
_PENDING = bytes([0x10, 0, 0x80, Flag.CONTINUE_TXN])
"""Version, variant and flag of an id, as `_KIND` leaves them."""
_ONE_IF_ANY = bytes([0]) + b"\1" * 255
_LEAST_MEAN = 4
"""Mean length of runs below which it costs less to take each id apart."""


def find_runs(ids: Sequence[bytes | None]) -> Iterator[tuple[int, int]]:
    """Yield the index of each run's first id and the index after its last. A run has two ids at least.

    Ids of a run have the same producer and the flag CONTINUE_TXN, and their clocks rise. None is malformed. Yields
    nothing for a batch with an id that is missing or has another length, or with short runs.
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
    """Return 1 for each id whose lower half of the time is below the next id's, else 0.

    Where ids rise as bytes, 1 also where that half is the same, and the count rises: in a run nothing else differs.
    """
    if sorted(ids) == ids and not any(map(eq, ids, ids[1:])):  # at half the cost of taking the times apart
        return b"\1" * (len(ids) - 1)
    times = array("I", joined)[::4]
    if sys.byteorder == "little":
        times.byteswap()
    return bytes(map(lt, times, times[1:]))


def _masked_differences(joined: bytes) -> bytes:
    """Return 16 bytes for each pair of neighbours, 1 where they differ, all 0 where both may be of the same run."""
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
