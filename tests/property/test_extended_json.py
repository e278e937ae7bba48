"""Extended JSON: whatever a message may hold comes back as it was."""

import math
from collections import OrderedDict
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvest_lib.errors import MessageRefused
from harvest_lib.pipeline.extended_json import dumps, loads

pytestmark = pytest.mark.quick

_ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
_KEYS = st.text(max_size=5) | st.sampled_from(["$date", "$binary", "$numberDecimal", "$$", "$", "$$date", "base64"])
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.sampled_from(["$date", '"$', "$$x"])
    | st.binary(max_size=8)
    | st.decimals(allow_nan=True)
    | st.datetimes(timezones=st.just(UTC) | _ZONES)
)
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=4), max_leaves=12
)


def same(left, right):
    if isinstance(left, dict):
        return isinstance(right, dict) and left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list):
        return isinstance(right, list) and len(left) == len(right) and all(map(same, left, right))
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    return str(left) == str(right) if isinstance(left, Decimal) else left == right


@given(st.dictionaries(_KEYS, _VALUES, max_size=5))
def test_what_is_written_is_read_back_the_same(data):
    assert same(loads(dumps(data)), data)


@given(st.dictionaries(_KEYS, _VALUES, max_size=5))
def test_a_second_time_changes_nothing(data):
    assert dumps(loads(dumps(data))) == dumps(data)


@given(st.binary(max_size=60) | st.text(max_size=60) | _VALUES.map(repr))
def test_whatever_is_read_is_data_or_is_refused(text):
    try:
        data = loads(text)
    except MessageRefused:
        return
    assert same(loads(dumps(data)), data)


def test_the_spelling_is_mongodbs():
    data = {"at": datetime(2013, 1, 1, 5, 15, 0, 123456, tzinfo=UTC), "d": Decimal("1.10"), "b": b"\0\1\xff"}
    assert dumps(data) == (
        b'{"at":{"$date":"2013-01-01T05:15:00.123456+00:00"},"d":{"$numberDecimal":"1.10"},'
        b'"b":{"$binary":{"base64":"AAH/","subType":"00"}}}'
    )
    assert dumps({"$date": "mine", "f": math.nan}) == b'{"$$date":"mine","f":{"$numberDouble":"NaN"}}'


def test_what_mongodbs_own_tools_write_is_read():
    read = loads('{"a":{"$date":{"$numberLong":"1000"}},"b":{"$date":1000},"c":{"$numberInt":"5"},"d":{"$oid":"x"}}')
    at = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert read == {"a": at, "b": at, "c": 5, "d": {"$oid": "x"}}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"a": [{"b": object()}]}, "a object at `a[0].b`"),
        ({"at": datetime(2013, 1, 1)}, "a datetime without a zone at `at`"),  # noqa: DTZ001 - that is what is refused
        ({"a": {1: 2}}, "a key that is a int, not text at `a`"),
        ({"a": [OrderedDict({1: 2})]}, "a key that is a int, not text at `a[0]`"),
        ({1: 2}, "a key that is a int"),
        ([1], "a list, not a mapping"),
        ({"a": 10**5000}, "thousands of digits"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_its_place(data, says):
    with pytest.raises(MessageRefused, match="extended JSON cannot hold") as refused:
        dumps(data)
    assert says in str(refused.value)


def test_what_is_in_itself_is_refused():
    data = {}
    data["a"] = data
    with pytest.raises(MessageRefused, match="inside itself"):
        dumps(data)


@pytest.mark.parametrize(
    "text", ["[1]", "{", '{"a":NaN}', '{"a":{"$date":"secret"}}', '{"a":{"$binary":{}}}', "null", "\ud800"]
)
def test_what_is_no_extended_json_is_refused_without_its_text(text):
    with pytest.raises(MessageRefused) as refused:
        loads(text)
    assert "secret" not in str(refused.value)


@given(st.from_regex(r"\A-?(0|[1-9][0-9]{0,24})\.[0-9]{1,24}([eE][+-]?[0-9]{1,4})?\Z"))
def test_no_number_of_somebody_elses_is_rounded(text):
    read = loads(f'{{"n": {text}}}')["n"]
    assert Decimal(repr(read) if isinstance(read, float) else read) == Decimal(text)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("0.1", 0.1),
        ("1e5", 1e5),
        ("1e400", Decimal("1e400")),
        ("-1e-400", Decimal("-1e-400")),
        ("12345678901234567890.1", Decimal("12345678901234567890.1")),
    ],
)
def test_a_number_that_a_float_does_not_hold_is_a_decimal(text, read):
    found = loads(f'{{"n": [{text}], "at": {{"$date": 0}}}}')["n"][0]
    assert (type(found), found) == (type(read), read)
    assert loads(dumps({"n": found}))["n"] == read


def test_a_number_beyond_all_exponents_is_refused():
    with pytest.raises(MessageRefused, match="not extended JSON"):
        loads('{"n": 1e99999999999999999999}')
