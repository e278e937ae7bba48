"""Encodes rows as JSON in C, in a single pass. Wraps the JSON, or packs the JSON as entries of a log. Python makes no
object for a row.  The JSON equals the output of `harvest_lib.pipeline.extended_json.dumps` for `{"id", "key", "value",
"headers"}`, and the entries of a log equal the output of `harvest_lib.pipeline.commit_log.entry`.
"""

import ctypes
from collections.abc import Sequence
from ctypes import CDLL, Array, byref, c_char, c_int32, c_int64
from enum import IntEnum
from typing import NamedTuple

from harvest_lib.native.library import EncodedInto, HeadOfKind, WrappingOfKind, implementation
from harvest_lib.native.pieces import Pieces
from harvest_lib.native.rows import NativeRows

_SPANS_OF_ROW = 4


class Field(IntEnum):
    """The part of a message that is put into its wrapping."""

    NOTHING = -2
    WHOLE = -1
    ID = 0
    KEY = 2


class Wrapping(NamedTuple):
    """The bytes before and after a message, and the part of the message that is put between them."""

    before: bytes
    after: bytes = b""
    field: Field = Field.WHOLE


class EncodedRows(Pieces):
    """The JSON of rows: one piece for each row, and then one last piece that is not a row."""

    __slots__ = ("_library", "_spans", "has_keys", "kinds")

    def __init__(
        self,
        library: CDLL,
        memory: bytes,
        bounds: "Array[c_int64]",
        *,
        kinds: bytes,
        spans: "Array[c_int64]",
        has_keys: bool,
    ) -> None:
        super().__init__(memory, bounds, len(kinds))
        self._library = library
        self._spans = spans
        self.kinds = kinds
        """The kind of each piece, one byte per piece. The kind of a row is its topic's number. The kind of the last
        piece is the number after the last topic."""
        self.has_keys = has_keys
        """True if the key of each row may be wrapped: each key is text, and its JSON in the row equals its JSON outside
        of a row."""

    def wrapped(self, begin: int, end: int, wrappings: Sequence[Wrapping | None]) -> "tuple[Pieces, Array[c_int32]]":
        """Return two values: the pieces from `begin` to before `end`, each in its kind's wrapping, and the kinds of
        the returned pieces. Pieces of a kind without a wrapping are left out."""
        kinds = self.kinds[begin:end]
        around = sum(
            kinds.count(kind) * (len(each.before) + len(each.after)) for kind, each in enumerate(wrappings) if each
        )
        memory = (c_char * (around + self.bounds[end] - self.bounds[begin]))()
        bounds, kept = (c_int64 * (len(kinds) + 1))(), (c_int32 * len(kinds))()
        count = self._library.harvest_wrap(
            *(self.memory, self.bounds, self._spans, self.kinds, begin, end),
            *((WrappingOfKind * len(wrappings))(*map(_wrapping_of_kind, wrappings)), memory, bounds, kept),
        )
        return Pieces(memory, bounds, count), kept

    def packed(
        self, begin: int, end: int, heads: Sequence[tuple[int, int, bytes]], *, offset: int, room: int
    ) -> tuple[bytes, int]:
        """Pack the pieces from `begin` to before `end`, while they fit into `room` bytes, as entries of a log with
        offsets from `offset` on. Return two values: the bytes of the entries, and the number of entries. `heads` has
        the timestamp, mode and key of each kind."""
        into, written = (c_char * room)(), c_int64()
        of_kinds = (HeadOfKind * len(heads))(
            *(HeadOfKind(key, timestamp, len(key), mode) for timestamp, mode, key in heads)
        )
        count = self._library.harvest_pack(
            *(self.memory, self.bounds, self.kinds, of_kinds, begin, end),
            *(offset, into, room, byref(written)),
        )
        return ctypes.string_at(into, written.value), int(count)


def encode(rows: NativeRows, behind: bytes) -> tuple[EncodedRows, list[str]] | None:
    """Encode rows, and append the piece `behind` unchanged. Return two values: the encoded rows, and the list of their
    topics, in which the index of a topic is its number. Return None if Python has to encode the rows, because values
    are bytes, a row is malformed or too large, there are too many topics, or rows were picked.
    """
    library = implementation().library
    if not rows.has_text or rows.picked is not None:
        return None
    count = len(rows)
    bounds, spans = (c_int64 * (count + 2))(), (c_int64 * (_SPANS_OF_ROW * count))()
    kinds, found = (c_char * (count + 1))(), EncodedInto()
    if library is None or not library.harvest_encode(
        *(rows.result, rows.first, rows.start, rows.stop, behind, len(behind)),
        *(bounds, kinds, spans, byref(found)),
    ):
        return None
    try:
        memory = ctypes.string_at(found.data, found.size)
    finally:
        library.harvest_free(found.data)
    topics = [rows.topic_at(found.first_of[number]) for number in range(found.topics)]
    kinds[count] = found.topics
    has_keys = bool(found.has_keys)
    return EncodedRows(library, memory, bounds, kinds=kinds.raw, spans=spans, has_keys=has_keys), topics


def _wrapping_of_kind(wrapping: Wrapping | None) -> WrappingOfKind:
    if wrapping is None:
        return WrappingOfKind()
    before, after, field = wrapping
    return WrappingOfKind(before, after, len(before), len(after), field)
