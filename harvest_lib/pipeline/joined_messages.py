"""A batch of an outbox's records that were encoded in C: its encodings lie behind each other, and go on so.

The data of a message is decoded when it is read. The rows are no longer needed then.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harvest_lib.native import EncodedRows
from harvest_lib.pipeline.commit_log.entry import FIXED_BYTES, Packable, Packed, Packing, Unnumbered
from harvest_lib.pipeline.encoded_messages import EncodedMessages
from harvest_lib.pipeline.extended_json import loads
from harvest_lib.pipeline.heads import Head, SharedHeads, newest


class JoinedMessages(EncodedMessages):
    """Messages of encoded rows."""

    __slots__ = ("rows", "table")

    heads: SharedHeads

    def __init__(self, rows: EncodedRows, table: Sequence[Head]) -> None:
        """`table` has the head of each kind."""
        super().__init__(SharedHeads(table, rows.kinds), rows)
        self.rows = rows
        self.table = table

    @property
    def size(self) -> int:
        return self.rows.size

    def data(self, place: int) -> Mapping[str, Any]:
        """See `EncodedMessages`."""
        return loads(self.rows[place])


class JoinedEntries(Packable):
    """The entries of such a batch, as the log takes them."""

    def __init__(self, batch: JoinedMessages) -> None:
        self._batch = batch

    def __iter__(self) -> Iterator[Unnumbered]:
        return ((*head, value) for head, value in zip(self._batch.heads, self._batch.values, strict=True))

    def packing(self, offset: int) -> Packing:
        """See `Packable`."""
        return _JoinedPacking(self._batch, offset)


class _JoinedPacking(Packing):
    """`Packing` in C."""

    def __init__(self, batch: JoinedMessages, offset: int) -> None:
        super().__init__((), offset)
        self._batch = batch
        self._taken = 0

    def take(self, most_bytes: int | None) -> Packed:
        batch, begin, first = self._batch, self._taken, self._offset
        end = len(batch)
        if most_bytes is None:
            bounds, (_, _, key) = batch.rows.bounds, batch.heads[begin]
            end, room = begin + 1, FIXED_BYTES + len(key) + bounds[begin + 1] - bounds[begin]
        else:
            room = max(0, most_bytes)
        data, count = batch.rows.packed(begin, end, batch.table, offset=first, room=room)
        self._taken, self._offset = begin + count, first + count
        return Packed(data, first, first + count, newest(batch.heads[begin : begin + count], first))

    @property
    def done(self) -> bool:
        return self._taken == len(self._batch)
