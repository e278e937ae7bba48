"""Converts values between Postgres' text format (of its output functions) and messages, in both directions.

Numbers, booleans, bytes and timestamps with a time zone become Python objects. Values of all other types (timestamps
without a zone, dates, JSON, arrays, UUIDs, enums, ranges …) stay text, which Postgres reads back exactly. The session
must have the parameters `SETTINGS`, which determine the text format.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from harvest_lib.pipeline.extended_json import document
from harvest_lib.postgres.database import WAITS_FOR_CLIENT

SETTINGS: Mapping[str, str] = {"timezone": "UTC", "lc_monetary": "C", "xmloption": "content"}
"""Session parameters of readers, replication connections and writers, in addition to the parameters of
`harvest_lib.postgres.database`."""
READING: Mapping[str, str] = {**SETTINGS, **WAITS_FOR_CLIENT, "search_path": ""}
"""Session parameters of readers. With an empty path, a table's name in a value (of `regclass` and similar types)
includes the schema, and so means the same table at the destination. Writers keep the path of their role, because
triggers at the destination may rely on it."""

_BOOL, _BYTEA, _NUMERIC, _TIMESTAMPTZ = 16, 17, 1700, 1184
_WHOLE = (20, 21, 23, 26)
_FLOAT = (700, 701)
_JSON = frozenset({"json", "jsonb"})


def _point_in_time(text: str) -> datetime | str:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text  # infinity, before Christ, beyond the year 9999


_READ: Mapping[int, Callable[[str], Any]] = {
    _BOOL: lambda text: text == "t",
    _BYTEA: lambda text: bytes.fromhex(text[2:]),
    _NUMERIC: Decimal,
    _TIMESTAMPTZ: _point_in_time,
    **dict.fromkeys(_WHOLE, int),
    **dict.fromkeys(_FLOAT, float),
}


def reader_of(type_oid: int) -> Callable[[str], Any]:
    """Return the function that converts Postgres' text for a value of this type to the value in a message."""
    return _READ.get(type_oid, str)


def text_of(value: object, type_name: str) -> str | None:
    """Return a value of a message as text that Postgres can cast to the column's type. Raises MessageRefused."""
    match value:
        case None | str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | Decimal():
            return str(value)
        case float():
            return str(value) if math.isfinite(value) else _infinite(value)
        case bytes() | bytearray():
            return "\\x" + value.hex()
        case datetime():
            return value.isoformat()
        case list() | tuple() if type_name.endswith("[]"):
            return _array(value, type_name[:-2])
        case list() | tuple() | Mapping():
            return document(value)
        case _:
            return str(value)


def _infinite(value: float) -> str:
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _array(values: list[Any] | tuple[Any, ...], type_name: str) -> str:
    parts = [
        _array(each, type_name)
        if isinstance(each, list | tuple) and type_name not in _JSON
        else _element(text_of(each, type_name))
        for each in values
    ]
    return "{" + ",".join(parts) + "}"


def array_of(texts: Iterable[str | None]) -> str:
    """Return texts as an array in Postgres' text format. psycopg would build the array with a regular expression that
    blocks all other threads: for 1.7 s with 4 MB of JSON."""
    return "{" + ",".join(map(_element, texts)) + "}"


def _element(text: str | None) -> str:
    if text is None:
        return "NULL"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
