"""Encodes data of messages to bytes and decodes it: JSON, with MongoDB's extended JSON for types that JSON lacks.

| in Python | encoded |
| --- | --- |
| datetime with a zone | `{"$date": "2013-01-01T05:15:00.123456+00:00"}`, with microseconds and zone |
| Decimal | `{"$numberDecimal": "1.10"}`, with trailing zeros; `NaN` and `Infinity` too |
| bytes | `{"$binary": {"base64": "AAH/", "subType": "00"}}` |
| float that is not a number, or infinite | `{"$numberDouble": "NaN"}`, `"Infinity"`, `"-Infinity"` |

Promises
- `loads` returns the data that `dumps` encoded, equal and of the same types (except that tuples become lists). A user's
  key that begins with `$` is encoded with a second `$`, which decoding removes.
- `loads` also accepts `$numberInt`, `$numberLong` and dates in milliseconds, which MongoDB's tools write.
- A number in foreign JSON is decoded as a Decimal if a float would not preserve it (`1e400`, 20 digits).
- A value that cannot be encoded is refused. The error has the type and the path of the value, and never the value
  itself.
"""

import base64
import json
import json.encoder
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn, cast

from harvest_lib.errors import MessageRefused

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SPECIAL = '"$'
_TYPED = frozenset({datetime, Decimal, bytes})
_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode
_SURE_DIGITS = 17
"""A float preserves all digits of a number that has fewer characters than this, including the point."""
_DOUBLES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


quoted: Callable[[str], str] = json.encoder.encode_basestring
"""Returns a text as a JSON string. Raises TypeError for any other type."""


class Encoded(dict[str, Any]):
    """Immutable data of a message, with its encoding. The encoding is stored because every writer needs it."""

    __slots__ = ("encoded",)

    def __init__(self, data: Mapping[str, Any], encoded: bytes) -> None:
        """`encoded` is the encoding of `data` by `dumps`."""
        super().__init__(data)
        self.encoded = encoded

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("the data of a message is not to be changed: return a message with other data")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse


def dumps(data: Mapping[str, Any]) -> bytes:
    """Return data of a message as bytes. Raises MessageRefused for a value that cannot be encoded."""
    if type(data) is Encoded:
        return data.encoded
    if type(data) is dict:
        encode = _quickly if _TYPED.isdisjoint(map(type, data.values())) else _typed_ones
        # Unknown types, user keys that begin with `$` and lone surrogates are left to `_slowly`.
        with suppress(TypeError, ValueError, RecursionError, MessageRefused):
            found, count = encode(data)
            if found.count(_SPECIAL) == count and _has_plain_keys(data):
                return found.encode()
    return _slowly(data)


def document(value: object) -> str:
    """Return a value as JSON for readers that do not know extended JSON: like `dumps`, but with user keys unchanged.

    Raises MessageRefused for a value that cannot be encoded.
    """
    text = dumps({"": value})[len(b'{"":') : -len(b"}")].decode()
    return json.dumps(_plain(value, "", ""), separators=(",", ":")) if _SPECIAL in text else text


def scalar(value: object) -> str:
    """Return a text or a whole number as JSON. Raises TypeError for any other type."""
    if type(value) is int:
        return str(value)
    return quoted(cast("str", value))


def as_dumped(text: str) -> bytes | None:
    """Return JSON that was composed from `quoted` texts as bytes; None if `dumps` might encode the same data
    differently."""
    if "$" in text and _SPECIAL in text:
        return None
    try:
        return text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return None


def _quickly(data: Mapping[str, Any]) -> tuple[str, int]:
    """Return two values: data of JSON's own types as JSON, and the number of `$` keys that the encoder added, always
    0."""
    return _encode(data), 0


def _typed_ones(data: Mapping[str, Any]) -> tuple[str, int]:
    count = 0

    def typed(value: object) -> object:
        nonlocal count
        count += 1
        return _typed(value, "")

    return json.dumps(data, default=typed, allow_nan=False, ensure_ascii=False, separators=(",", ":")), count


def _slowly(data: Mapping[str, Any]) -> bytes:
    if not isinstance(data, Mapping):
        raise _refused("", f"a {type(data).__name__}, not a mapping")
    try:
        plain = _plain(data, "")
    except RecursionError:
        raise _refused("", "nested too deeply, or inside itself") from None
    try:
        return json.dumps(plain, separators=(",", ":")).encode()
    except ValueError:  # Python's limit, which also protects readers of the data
        raise _refused("", "a whole number of thousands of digits") from None


def loads(text: bytes | str) -> dict[str, Any]:
    """Return the data that `dumps` encoded to `text`. Raises MessageRefused unless `text` is an object in extended
    JSON."""
    try:
        read = text if isinstance(text, str) else text.decode()
        data = (_decode_typed if _SPECIAL in read else _decode)(read)
    except RecursionError:
        raise _refused("", "nested too deeply") from None
    except ValueError as error:
        place = f"at character {error.pos}" if isinstance(error, json.JSONDecodeError) else "not valid"
        raise MessageRefused(
            "data is not extended JSON", evidence=place, next_step="correct it where it was written"
        ) from None  # the cause contains the text
    if not isinstance(data, dict):
        raise _refused("", f"{type(data).__name__} instead of an object")
    return data


def _has_plain_keys(data: dict[Any, Any]) -> bool:
    """Return True if all keys are text, on all levels. The encoder would convert other keys to text silently."""
    left: list[Any] = [data]
    for inner in left:  # the loop appends to the list
        values = inner
        if isinstance(inner, dict):
            if not _TEXT.issuperset(map(type, inner)):
                return False
            values = inner.values()
        left += [each for each in values if type(each) not in _SCALARS and isinstance(each, _CONTAINERS)]
    return True


_TEXT = frozenset({str})
_SCALARS = frozenset({str, int, float, bool, type(None), *_TYPED})
_CONTAINERS = (dict, list, tuple)


def _plain(value: object, path: str, more: str = "$") -> object:
    """Return a value converted to JSON's own types. `more` is put before user keys that begin with `$`. `path` is for
    errors."""
    match value:
        case None | bool() | str() | int():
            return value
        case float():
            if math.isfinite(value):
                return value
            return {"$numberDouble": "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")}
        case Mapping():
            named: dict[str, object] = {}
            for key, each in value.items():
                if not isinstance(key, str):
                    raise _refused(path, f"a key that is a {type(key).__name__}, not text")
                own = more + key if key.startswith("$") else key
                named[own] = _plain(each, f"{path}.{key}" if path else key, more)
            return named
        case list() | tuple():
            return [_plain(each, f"{path}[{place}]", more) for place, each in enumerate(value)]
        case _:
            return _typed(value, path)


def _typed(value: object, path: str) -> dict[str, object]:
    match value:
        case datetime():
            if value.utcoffset() is None:
                raise _refused(path, "a datetime without a zone")
            return {"$date": value.isoformat()}
        case Decimal():
            return {"$numberDecimal": str(value)}
        case bytes() | bytearray() | memoryview():
            return {"$binary": {"base64": base64.b64encode(value).decode(), "subType": "00"}}
        case _:
            raise _refused(path, f"a {type(value).__name__}")


def _of_typed(data: dict[str, Any]) -> Any:
    if len(data) == 1:
        ((key, value),) = data.items()
        if (read := _READ.get(key)) is not None:
            try:
                return read(value)
            except (ValueError, TypeError, KeyError, InvalidOperation, OverflowError):
                raise ValueError(f"{key} with a value that it cannot have") from None
    return {key[1:] if key.startswith("$$") else key: value for key, value in data.items()}


def _date(value: Any) -> datetime:
    if isinstance(value, str):
        read = datetime.fromisoformat(value)
        return read if read.tzinfo is not None else read.replace(tzinfo=UTC)
    return _EPOCH + timedelta(milliseconds=_whole(value))


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError
    return int(value)


def _binary(value: Any) -> bytes:
    return base64.b64decode(value["base64"], validate=True)


def _number(text: str) -> float | Decimal:
    number = float(text)
    if len(text) < _SURE_DIGITS and "e" not in text and "E" not in text:
        return number
    try:
        exact = Decimal(text)
    except InvalidOperation:
        raise ValueError("a number beyond all exponents") from None
    return number if exact == Decimal(repr(number)) else exact


def _constant(_text: str) -> float:
    raise ValueError("NaN and Infinity are no JSON")


_READ: Mapping[str, Callable[[Any], Any]] = {
    "$date": _date,
    "$numberDecimal": Decimal,
    "$numberDouble": lambda value: _DOUBLES[value] if value in _DOUBLES else float(value),
    "$numberInt": _whole,
    "$numberLong": _whole,
    "$binary": _binary,
}


_decode = json.JSONDecoder(parse_float=_number, parse_constant=_constant).decode
_decode_typed = json.JSONDecoder(object_hook=_of_typed, parse_float=_number, parse_constant=_constant).decode


def _refused(path: str, what: str) -> MessageRefused:
    return MessageRefused(
        "data has something in it that extended JSON cannot hold",
        evidence=f"{what} at `{path}`" if path else what,
        next_step="make it text, a number, a datetime with a zone, a Decimal, bytes, a list or a mapping, in the "
        "transform that made it",
    )
