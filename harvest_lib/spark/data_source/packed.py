"""Packed rows as Arrow: numpy finds the fields of all rows at once, and Arrow copies their bytes. For the format see
`harvest_lib.source.packed_window.PackedRows`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from harvest_lib.errors import RecordError
from harvest_lib.source.packed_window import PackedRows

_COUNT_BYTES, _TYPE_BYTES = 4, 4
_LENGTH = np.dtype(">i4")
_WORD = np.dtype(">i8")
_POSTGRES_EPOCH = 946_684_800_000_000
"""The microseconds from 1970 to 2000, from where Postgres counts."""
_BEFORE_ALL, _LATEST = -(2**63), 2**63 - 1 - _POSTGRES_EPOCH
"""The infinite past, and the latest time that Spark can count. Later times are null, as the infinite future is."""
_MANY = 100
"""The number of elements above which an array is read by itself."""
_ARRAY_HEADER_BYTES = 20
"""Dimensions, flags and type of the elements; length and lower bound of the only dimension."""

_Numbers = np.ndarray[Any, Any]


class _Fields:
    """The fields of a column: where they begin in the bytes of all rows, how long they are, and which are NULL."""

    def __init__(self, data: bytes, starts: _Numbers, lengths: _Numbers) -> None:
        self.data, self.starts = data, starts
        self.is_null = lengths < 0
        self.lengths = np.maximum(lengths, 0)

    @property
    def ends(self) -> _Numbers:
        return self.starts + self.lengths

    def words(self) -> tuple[_Numbers, _Numbers]:
        """Return the fields as numbers of 8 bytes, and which of them are NULL."""
        found = np.zeros(len(self.starts), np.int64)
        there = ~self.is_null
        if (self.lengths[there] != _WORD.itemsize).any():
            raise TypeError("a number of the outbox has not 8 bytes")
        if there.any():
            found[there] = _numbers(self.data, self.starts[there], _WORD)
        return found, self.is_null

    def array(self, kind: pa.DataType) -> pa.Array:
        """Return the fields as an array of texts or bytes. The fields follow each other in the bytes, with gaps, so an
        array of fields and gaps in turn shares the bytes, and every other value is copied from it."""
        count = len(self.starts)
        offsets = np.empty(2 * count + 1, np.int32)
        offsets[0:-1:2], offsets[1::2] = self.starts, self.ends
        offsets[-1] = offsets[-2] if count else 0
        both = pa.Array.from_buffers(kind, 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(self.data)])
        return both.take(pa.array(np.arange(0, 2 * count, 2), mask=self.is_null))


def record_batch(rows: PackedRows, columns: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
    """Return packed rows with `columns`, the first of which is the id, as a batch with the columns of `schema`,
    ascending by id.

    Columns may be bigint or xid8, timestamptz in microseconds (infinite times become null), text, bytea and text[].
    Raises RecordError if a text is not UTF-8, or if an array has arrays as its elements.
    """
    found = _fields(rows, columns)
    ids, _ = found[columns[0]].words()
    made = []
    for field in schema:
        array = _array(found[field.name], field, ids)
        _require_text(array, field, ids)
        made.append(array)
    batch = pa.RecordBatch.from_arrays(made, schema=schema)
    return batch if (np.diff(ids) > 0).all() else batch.take(np.argsort(ids))


def _fields(rows: PackedRows, columns: Sequence[str]) -> dict[str, _Fields]:
    sizes = np.frombuffer(rows.lengths, _LENGTH)
    at = np.cumsum(sizes, dtype=np.int64) - sizes + _COUNT_BYTES
    found = {}
    for name in columns:
        lengths = _numbers(rows.data, at + _TYPE_BYTES, _LENGTH)
        found[name] = _Fields(rows.data, at + _TYPE_BYTES + _LENGTH.itemsize, lengths)
        at = found[name].ends
    return found


def _numbers(data: bytes, starts: _Numbers, kind: "np.dtype[Any]") -> _Numbers:
    """Return the numbers that begin at `starts`."""
    each = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), kind.itemsize)
    return each[starts].view(kind)[:, 0].astype(np.int64)


def _array(fields: _Fields, field: pa.Field, ids: _Numbers) -> pa.Array:
    if pa.types.is_list(field.type):
        return _lists(fields, field.type, ids)
    if pa.types.is_timestamp(field.type):
        at, is_null = fields.words()
        is_null = is_null | (at == _BEFORE_ALL) | (at > _LATEST)
        return pa.array(np.where(is_null, 0, at) + _POSTGRES_EPOCH, mask=is_null).cast(field.type)
    if pa.types.is_int64(field.type):
        numbers, is_null = fields.words()
        return pa.array(numbers, mask=is_null)
    return fields.array(field.type)


def _lists(fields: _Fields, kind: pa.ListType, ids: _Numbers) -> pa.Array:
    there = np.flatnonzero(~fields.is_null)
    dimensions = _numbers(fields.data, fields.starts[there], _LENGTH)
    if (dimensions > 1).any():
        raise RecordError(
            f"the record {ids[there[dimensions > 1][0]]} has a value that Spark has no type for",
            evidence="an array of headers has arrays as its elements",
            next_step="correct it in the outbox, where it was written: headers are lists of text",
        )
    filled = there[dimensions == 1]
    counts = np.zeros(len(fields.starts), np.int64)
    counts[filled] = _numbers(fields.data, fields.starts[filled] + 12, _LENGTH)
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    starts, lengths = np.empty(offsets[-1], np.int64), np.empty(offsets[-1], np.int64)
    at = fields.starts + _ARRAY_HEADER_BYTES
    for row in filled[counts[filled] > _MANY]:
        place = int(at[row])
        for element in range(offsets[row], offsets[row + 1]):
            starts[element] = place + _LENGTH.itemsize
            lengths[element] = length = int.from_bytes(fields.data[place : place + _LENGTH.itemsize], signed=True)
            place += _LENGTH.itemsize + max(length, 0)
    filled = filled[counts[filled] <= _MANY]
    for number in range(int(counts[filled].max(initial=0))):  # the elements with this number, of all rows
        filled = filled[counts[filled] > number]
        places = offsets[filled] + number
        lengths[places] = _numbers(fields.data, at[filled], _LENGTH)
        starts[places] = at[filled] + _LENGTH.itemsize
        at[filled] = starts[places] + np.maximum(lengths[places], 0)
    elements = _Fields(fields.data, starts, lengths).array(kind.value_type)
    _require_text(elements, pa.field("header", kind.value_type), np.repeat(ids, counts))
    bounds = pa.array(offsets.astype(np.int32), mask=np.append(fields.is_null, False))
    return pa.ListArray.from_arrays(bounds, elements, type=kind)


def _require_text(array: pa.Array, field: pa.Field, ids: _Numbers) -> None:
    """Raise RecordError if a text is not UTF-8, as it may be in a database without an encoding."""
    if not pa.types.is_string(field.type):
        return
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        texts = enumerate(array.cast(pa.binary()).to_pylist())
        number, text = next((number, text) for number, text in texts if text is not None and not _is_utf8(text))
        raise RecordError(
            f"the record {ids[number]} cannot be read",
            evidence=f"{field.name} is not UTF-8: {text.decode('utf-8', 'backslashreplace')[:80]}",
            next_step="correct it in the outbox, where it was written",
        ) from None


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
