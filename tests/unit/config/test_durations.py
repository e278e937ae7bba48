"""Durations in Go's spelling."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvest_lib.config.durations import format_duration, parse_duration, to_seconds

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("0s", 0.0),
        ("500ms", 0.5),
        ("1s", 1.0),
        ("1.5s", 1.5),
        (".5s", 0.5),
        ("1.s", 1.0),
        ("1m30s", 90.0),
        ("1h", 3600.0),
        ("1h2m3s4ms", 3723.004),
        ("5us", 5e-6),
        ("5µs", 5e-6),
        ("5μs", 5e-6),
        ("7ns", 7e-9),
        ("-2s", -2.0),
        ("+2s", 2.0),
        ("2562047h", 2562047 * 3600.0),
    ],
)
def test_go_spelling_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        ("not a duration", ["", "s", ".s", "-", "1 s", " 1s", "1s ", "1d", "1S", "1s2", "1e3s", "½s"]),
        ("without a unit", ["1", "1.5", "-3", "5"]),
        ("292 years", ["2562048h"]),
    ],
)
def test_what_go_refuses_is_refused_with_the_reason(words: str, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(ValueError, match=f"^is .*{words}"):
            parse_duration(text)


@pytest.mark.parametrize(("value", "seconds"), [(2, 2.0), (0.25, 0.25), (timedelta(minutes=1), 60.0), ("1m", 60.0)])
def test_python_may_give_seconds_or_a_timedelta(value: object, seconds: float) -> None:
    assert to_seconds(value) == seconds


@pytest.mark.parametrize("value", [True, None, float("nan"), float("inf"), [], b"1s"])
def test_what_is_no_duration_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        to_seconds(value)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.5, "500ms"),
        (2.5, "2.5s"),
        (90, "1m30s"),
        (3600, "1h"),
        (3660, "1h1m"),
        (1e-5, "10µs"),
        (7e-9, "7ns"),
        (-1, "-1s"),
        (100, "1m40s"),
    ],
)
def test_it_is_written_as_go_would(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(min_value=-(10**15), max_value=10**15))
def test_what_is_written_is_read_back_to_the_nanosecond(nanoseconds: int) -> None:
    assert round(parse_duration(format_duration(nanoseconds / 10**9)) * 10**9) == pytest.approx(nanoseconds, abs=1)
