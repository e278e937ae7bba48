"""Data of messages as bytes and back: JSON, and MongoDB's extended JSON for types that JSON lacks.

| in Python | as written |
| --- | --- |
| datetime with a zone | `{"$date": "2013-01-01T05:15:00.123456+00:00"}`, microseconds and zone kept |
| Decimal | `{"$numberDecimal": "1.10"}`, trailing zeros kept; `NaN` and `Infinity` too |
| bytes | `{"$binary": {"base64": "AAH/", "subType": "00"}}` |
| float that is not a number, or infinite | `{"$numberDouble": "NaN"}`, `"Infinity"`, `"-Infinity"` |

Promises
- Data come back from `dumps` and `loads` equal, of the same types (tuples as lists). A key of the user's that begins
  with `$` is written with one more of them, and so comes back as it was.
- Read, not written: `$numberInt`, `$numberLong`, and dates as numbers of milliseconds, as MongoDB's tools write them.
- A number of foreign JSON that a float does not hold (`1e400`, 20 digits) is read as a Decimal.
- A value that cannot be kept is refused, by its type and place, without its value.
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
"""Fewer characters, with the point, are fewer digits than a float keeps of any number."""
_DOUBLES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


quoted: Callable[[str], str] = json.encoder.encode_basestring
"""Returns text as JSON has it. Raises TypeError for anything else."""


class Encoded(dict[str, Any]):
    """Data that is not to be changed, and knows its own encoding: it is written again as often as there are writers."""

    __slots__ = ("encoded",)

    def __init__(self, data: Mapping[str, Any], encoded: bytes) -> None:
        """`encoded` is the data as `dumps` encodes it."""
        super().__init__(data)
        self.encoded = encoded

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("the data of a message is not to be changed: return a message with other data")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse


def dumps(data: Mapping[str, Any]) -> bytes:
    """Return data as bytes. Raises MessageRefused."""
    if type(data) is Encoded:
        return data.encoded
    if type(data) is dict:
        encode = _quickly if _TYPED.isdisjoint(map(type, data.values())) else _typed_ones
        # Unknown types, a `$` of the user's own and half of a character take the slow way.
        with suppress(TypeError, ValueError, RecursionError, MessageRefused):
            found, count = encode(data)
            if found.count(_SPECIAL) == count and _has_plain_keys(data):
                return found.encode()
    return _slowly(data)


def document(value: object) -> str:
    """Return a value as JSON for readers of plain JSON: as `dumps` writes it, with the user's keys as they are.

    Raises MessageRefused.
    """
    text = dumps({"": value})[len(b'{"":') : -len(b"}")].decode()
    return json.dumps(_plain(value, "", ""), separators=(",", ":")) if _SPECIAL in text else text


def scalar(value: object) -> str:
    """Return text or a whole number as JSON has it. Raises TypeError for anything else."""
    if type(value) is int:
        return str(value)
    return quoted(cast("str", value))


def as_dumped(text: str) -> bytes | None:
    """Return JSON that was composed of `quoted` texts as bytes; None if `dumps` would write it otherwise."""
    if "$" in text and _SPECIAL in text:
        return None
    try:
        return text.encode()
    except UnicodeEncodeError:  # half of a character
        return None


def _quickly(data: Mapping[str, Any]) -> tuple[str, int]:
    """Return data of JSON's own types as JSON, and the number of added `$` in it."""
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
    """Return the data that `dumps` was given. Raises MessageRefused for anything but a JSON object."""
    try:
        read = text if isinstance(text, str) else text.decode()
        data = (_decode_typed if _SPECIAL in read else _decode)(read)
    except RecursionError:
        raise _refused("", "nested too deeply") from None
    except ValueError as error:
        place = f"at character {error.pos}" if isinstance(error, json.JSONDecodeError) else "not valid"
        raise MessageRefused(
            "data is not extended JSON", evidence=place, next_step="correct it where it was written"
        ) from None  # the cause carries the text
    if not isinstance(data, dict):
        raise _refused("", f"{type(data).__name__} instead of an object")
    return data


def _has_plain_keys(data: dict[Any, Any]) -> bool:
    """Return True if all keys are text: the encoder turns numbers and None into text, and they would stay text."""
    left: list[Any] = [data]
    for inner in left:  # which grows meanwhile
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
    """Return a value in JSON's own types, keys of the user's that begin with `$` with one more."""
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
