"""Arrow values as JSON texts, as Postgres' `row_to_json` spells them, and headers as names and texts in turn."""

import datetime as dt
import json
from decimal import Decimal

import pyarrow as pa
import pytest

from harvest_lib.spark.sink.nested import header_texts, json_texts

pytestmark = pytest.mark.quick

UTC = dt.UTC
MAP = pa.map_(pa.string(), pa.string())
KAFKA = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.struct([("a", pa.int32()), ('b "', pa.string())]), {"a": 1, 'b "': None}, '{"a":1,"b \\"":null}'),
        (pa.list_(pa.struct([("a", pa.int32())])), [{"a": 1}, None], '[{"a":1},null]'),
        (pa.list_(pa.list_(pa.int8())), [[1, None], [], None], "[[1,null],[],null]"),
        (pa.map_(pa.string(), pa.int64()), [('q"', 1), ("ü", None)], '{"q\\"":1,"ü":null}'),
        (pa.map_(pa.int32(), pa.bool_()), [(1, True)], '{"1":true}'),
        (pa.map_(pa.string(), pa.list_(pa.string())), [("a", ["\n\x01\t\\\0"])], '{"a":["\\n\\u0001\\t\\\\\\u0000"]}'),
        (pa.list_(pa.float64()), [float("nan"), float("-inf"), 0.1, None], '["NaN","-Infinity",0.1,null]'),
        (pa.list_(pa.float32()), [0.1], "[0.1]"),
        (pa.list_(pa.decimal128(38, 18)), [Decimal("1.000000000000000001")], "[1.000000000000000001]"),
        (pa.list_(pa.timestamp("us", "UTC")), [dt.datetime(2023, 11, 14, 22, 0, 0, 500_000, UTC)],
         '["2023-11-14T22:00:00.5+00:00"]'),
        (pa.list_(pa.timestamp("us")), [dt.datetime(2023, 11, 10, 20, 0)], '["2023-11-10T20:00:00"]'),  # noqa: DTZ001
        (pa.list_(pa.date32()), [dt.date(2023, 11, 10)], '["2023-11-10"]'),
        (pa.list_(pa.null()), [None], "[null]"),
        (pa.list_(pa.struct([("a", pa.int32())])), None, None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("before", [0, 3])
def test_a_value_is_spelled_as_row_to_json_spells_it(kind, value, text, before):
    column = pa.array([*[None] * before, value, None], kind).slice(before, 1)
    assert json_texts(column).to_pylist() == [text]
    assert text is None or json.loads(text) is not None


def test_columns_without_rows_have_no_texts():
    assert json_texts(pa.array([], pa.struct([("a", pa.list_(pa.int8()))]))).to_pylist() == []


@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_headers_of_maps_and_of_kafkas_structs_alternate(first):
    maps = pa.array([[("a", "1"), ("b", None)], None, [], [("c", "3")]], MAP)
    structs = pa.array(
        [[{"key": "a", "value": b"1"}, {"key": "b", "value": None}], None, [], [{"key": "c", "value": b"3"}]], KAFKA
    )
    expected = [["a", "1", "b", None], [], [], ["c", "3"]][first:]
    assert header_texts(maps.slice(first)).to_pylist() == expected
    assert header_texts(structs.slice(first)).to_pylist() == expected


@pytest.mark.parametrize("entry", [{"key": "a", "value": b"\xff"}, {"key": None, "value": b"1"}, None])
def test_headers_without_a_name_or_with_other_bytes_than_text_are_refused(entry):
    with pytest.raises(ValueError, match=r"UTF8|no name"):
        header_texts(pa.array([[entry]], KAFKA))
