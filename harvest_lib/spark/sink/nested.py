"""Texts of Arrow columns whose types Postgres lacks: JSON of nested values, headers as names and texts in turn.

JSON is spelled as Postgres' `row_to_json` spells it, so that a value inside a struct reads as one outside it: nulls
stay, times are ISO 8601, NaN and infinities are strings. Arrow's error for bytes that are no UTF-8 is a ValueError.
"""

import json
import re
from base64 import b64encode
from bisect import bisect_left
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from math import isfinite, isnan
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import VariantVal

from harvest_lib.record import HEADERS

_TEXT = pa.large_string()
_NULL = pa.scalar("null", _TEXT)
_COMMA = pa.scalar(",", _TEXT)
_NOTHING = pa.scalar("", _TEXT)
_ESCAPES = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"), ("\b", "\\b"), ("\f", "\\f"))
_CONTROL = "[\\x00-\\x1f]"
_OTHER_CONTROL = re.compile(_CONTROL)
_TRAILING_ZEROS = re.compile(r"(\.\d*?)0+(?=[+-]|$)")
_FRACTION_ZEROS = (r"(\.\d*?)0+(Z?)$", r"\1\2"), (r"\.(Z?)$", r"\1"), ("^(\\S+) ", r"\1T"), ("Z$", "+00:00")


def json_texts(column: pa.Array) -> pa.Array:
    """Return each value as the text of a JSON value, null for null: `{"a":1}`, `[1,null]`."""
    return pc.if_else(column.is_null(), pa.scalar(None, _TEXT), _values(column))


def _values(column: pa.Array) -> pa.Array:
    kind = column.type
    if _is_variant(kind):
        found = (each and VariantVal(each["value"], each["metadata"]).toPython() for each in column.to_pylist())
        values = pa.array(map(_python_text, found), _TEXT)
    elif pa.types.is_struct(kind):
        parts = []
        for number, (field, child) in enumerate(zip(kind, column.flatten(), strict=True)):
            parts += [pa.scalar(f"{',' if number else ''}{json.dumps(field.name, ensure_ascii=False)}:", _TEXT)]
            parts += [_values(child)]
        values = pc.if_else(column.is_null(), pa.scalar(None, _TEXT), _joined("{", parts, "}", len(column)))
    elif pa.types.is_map(kind):
        names, texts = _entries(column)
        pairs = _joined("", [_quoted(_scalars(names)) if not _is_text(kind.key_type) else _values(names),
                             pa.scalar(":", _TEXT), _values(texts)], "", len(names))  # fmt: skip
        values = _joined("{", [_lists(column, pairs)], "}", len(column))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        values = _joined("[", [_lists(column, _values(column.flatten()))], "]", len(column))
    elif _is_text(kind):
        values = _quoted(_escaped(column.cast(_TEXT)))
    else:
        values = _scalars(column)
        if pa.types.is_floating(kind):
            is_number = pc.is_finite(column)
            named = pc.if_else(pc.is_nan(column), "NaN", pc.if_else(pc.less(column, 0), "-Infinity", "Infinity"))
            values = pc.if_else(is_number, values, _quoted(named.cast(_TEXT)))
        elif pa.types.is_decimal(kind) and pc.any(pc.match_substring(values, "E")).as_py():
            values = pa.array((None if each is None else f"{each:f}" for each in column.to_pylist()), _TEXT)
        elif not (pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_boolean(kind)):
            values = _quoted(values)
    return pc.fill_null(values, _NULL)


def header_texts(column: pa.Array) -> pa.Array:
    """Return the headers of each record as a list in which names and texts alternate. `column` has maps, or lists of
    structs of `key` and `value`; null stands for no headers. The headers that the harvester itself adds are left out:
    a record that was read from Kafka has them. Raises ValueError for a header without a name, and for bytes that are no
    UTF-8."""
    if pa.types.is_map(column.type):
        names, texts = _entries(column)
    else:
        names, texts = column.flatten().flatten()
    if names.null_count:
        raise ValueError("a header has no name")
    names = names.cast(_TEXT)
    kept = [place for place, name in enumerate(names.to_pylist()) if name not in HEADERS]
    both = pa.chunked_array([names.take(kept), _as_text(texts.take(kept))]).combine_chunks()
    order = pa.array([place for number in range(len(kept)) for place in (number, len(kept) + number)], pa.int64())
    offsets = [2 * bisect_left(kept, each) for each in _offsets(column)]
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), both.take(order))


def _as_text(column: pa.Array) -> pa.Array:
    """Return bytes as text. Raises ValueError (Arrow's) for bytes that are no UTF-8."""
    return column.cast(pa.large_binary()).cast(_TEXT) if not _is_text(column.type) else column.cast(_TEXT)


def _scalars(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_timestamp(kind):
        texts = column.cast(pa.timestamp("us", "UTC" if kind.tz is not None else None)).cast(_TEXT)
        for pattern, replacement in _FRACTION_ZEROS:
            texts = pc.replace_substring_regex(texts, pattern, replacement)
        return texts
    return column.cast(_TEXT)


def _escaped(column: pa.Array) -> pa.Array:
    for sign, escaped in _ESCAPES:
        column = pc.replace_substring(column, sign, escaped)
    if pc.any(pc.match_substring_regex(column, _CONTROL)).as_py():
        texts = (None if each is None else _OTHER_CONTROL.sub(_code, each) for each in column.to_pylist())
        return pa.array(texts, _TEXT)
    return column


def _code(found: re.Match[str]) -> str:
    return f"\\u{ord(found.group()):04x}"


def _quoted(column: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(pa.scalar('"', _TEXT), column, pa.scalar('"', _TEXT), _NOTHING)


def _joined(begin: str, parts: Sequence[pa.Array | pa.Scalar], end: str, length: int) -> pa.Array:
    if not length:
        return pa.array([], _TEXT)
    first = pa.array([begin], _TEXT).take(pa.nulls(length, pa.int64()).fill_null(0))
    return pc.binary_join_element_wise(first, *parts, pa.scalar(end, _TEXT), _NOTHING)


def _lists(column: pa.Array, elements: pa.Array) -> pa.Array:
    """Return the texts of the elements, joined by commas for each list or map of the column."""
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(_offsets(column), pa.int32()), elements), _COMMA)
    return pc.if_else(column.is_null(), pa.scalar(None, _TEXT), joined)


def _offsets(column: pa.Array) -> list[int]:
    """Return the offsets of a column of lists or maps: the first element of each, and the end of the last."""
    lengths = pc.list_value_length(column.cast(_as_list(column.type)) if pa.types.is_map(column.type) else column)
    found = [0]
    for length in lengths.to_pylist():
        found.append(found[-1] + (length or 0))
    return found


def _as_list(kind: pa.MapType) -> pa.ListType:
    return pa.list_(pa.struct([kind.key_field, kind.item_field]))


def _entries(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the keys and the values of all maps."""
    names, texts = column.cast(_as_list(column.type)).flatten().flatten()
    return names, texts


def _is_variant(kind: pa.DataType) -> bool:
    if not pa.types.is_struct(kind) or [each.name for each in kind] != ["value", "metadata"]:
        return False
    return bool((kind.field("metadata").metadata or {}).get(b"variant") == b"true")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _python_text(value: Any) -> str:
    """Return a value of a variant as JSON."""
    match value:
        case dict():
            fields = (f"{json.dumps(name, ensure_ascii=False)}:{_python_text(each)}" for name, each in value.items())
            return "{" + ",".join(fields) + "}"
        case list():
            return "[" + ",".join(map(_python_text, value)) + "]"
        case None | bool() | int() | str():
            return json.dumps(value, ensure_ascii=False)
        case float() if isfinite(value):
            return repr(value)
        case float():
            return '"NaN"' if isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'
        case Decimal():
            return f"{value:f}"
        case bytes():
            return f'"{b64encode(value).decode()}"'
        case datetime():
            return '"' + _TRAILING_ZEROS.sub(r"\1", value.isoformat()) + '"'
    return f'"{value}"'
