"""Durations as goharvest's files write them: `500ms`, `1m30s`, `1.5s`.

Inside the library a duration is a float of seconds. Text that is a number without a unit is refused, because Go reads
it as nanoseconds and a person means seconds. Only `0` needs no unit.
"""

import math
import re
from datetime import timedelta
from decimal import Decimal

_SECONDS_PER_UNIT = {
    "ns": Decimal("1e-9"),
    "us": Decimal("1e-6"),
    "µs": Decimal("1e-6"),  # micro sign
    "μs": Decimal("1e-6"),  # the Greek letter, which Go accepts as well
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
}
_NUMBER = r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+"
_TERM = re.compile(f"({_NUMBER})(" + "|".join(sorted(_SECONDS_PER_UNIT, key=len, reverse=True)) + ")")
_LONGEST_SECONDS = Decimal(2**63 - 1) / 10**9  # the maximum of Go's Duration

BARE_NUMBER = "is a number without a unit"
SPELLING = "write a number with its unit, for example `500ms`, `5s` or `1m30s`"


def parse_duration(text: str) -> float:
    """Parse a duration in Go's spelling and return seconds.

    Raises ValueError with the problem; its text does not repeat the input.
    """
    unsigned = text[1:] if text[:1] in {"+", "-"} else text
    if unsigned == "0":
        return 0.0
    if re.fullmatch(_NUMBER, unsigned):
        raise ValueError(BARE_NUMBER)
    if not re.fullmatch(f"(?:{_TERM.pattern})+", unsigned):
        raise ValueError("is not a duration")
    total = sum((Decimal(number) * _SECONDS_PER_UNIT[unit] for number, unit in _TERM.findall(unsigned)), Decimal(0))
    if total > _LONGEST_SECONDS:
        raise ValueError("is longer than 292 years")
    return float(-total if text[0] == "-" else total)


def to_seconds(value: object) -> float:
    """Return seconds from Go's spelling, a timedelta, or a number of seconds.

    Raises ValueError, as `parse_duration` does.
    """
    match value:
        case bool():
            raise ValueError("is not a duration")
        case str():
            return parse_duration(value)
        case timedelta():
            return value.total_seconds()
        case int() | float() if math.isfinite(value):
            return float(value)
        case _:
            raise ValueError("is not a duration")


def format_duration(seconds: float) -> str:
    """Format seconds in Go's spelling, rounded to the nanosecond; `parse_duration` is the inverse."""
    nanoseconds = round(Decimal(repr(seconds)) * 10**9)
    if nanoseconds == 0:
        return "0s"
    sign, nanoseconds = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    for unit, size in (("ns", 1), ("µs", 10**3), ("ms", 10**6)):
        if nanoseconds < size * 1000:
            return f"{sign}{_plain(Decimal(nanoseconds) / size)}{unit}"
    minutes, rest = divmod(nanoseconds, 60 * 10**9)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{hours}h" if hours else "", f"{minutes}m" if minutes else ""]
    parts.append(f"{_plain(Decimal(rest) / 10**9)}s" if rest else "")
    return sign + "".join(parts)


def _plain(number: Decimal) -> str:
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
