"""Values of Postgres: text to what messages hold, and back to text that Postgres casts."""

import math
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from harvest_lib.pipeline.adaptors.postgres.values import reader_of, text_of

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("oid", "text", "value"),
    [
        (16, "t", True),
        (16, "f", False),
        (20, "-9223372036854775808", -(2**63)),
        (701, "0.1", 0.1),
        (701, "-Infinity", -math.inf),
        (1700, "1.10", Decimal("1.10")),
        (17, "\\x00ff", b"\0\xff"),
        (1184, "2013-01-01 05:15:00.123456+00", datetime(2013, 1, 1, 5, 15, 0, 123456, tzinfo=UTC)),
        (1184, "infinity", "infinity"),
        (1184, "0044-03-15 12:00:00+00 BC", "0044-03-15 12:00:00+00 BC"),
        (1114, "2013-01-01 05:15:00", "2013-01-01 05:15:00"),
        (3802, '{"a": 1.10}', '{"a": 1.10}'),
        (1007, "{1,NULL}", "{1,NULL}"),
        (99_999, "anything", "anything"),
    ],
)
def test_what_comes_of_text(oid, text, value):
    read = reader_of(oid)(text)
    assert (type(read), read) == (type(value), value)


@pytest.mark.parametrize(
    ("value", "type_name", "text"),
    [
        (None, "text", None),
        (True, "boolean", "true"),
        (5, "integer", "5"),
        (Decimal("1.10"), "numeric", "1.10"),
        (math.nan, "double precision", "NaN"),
        (-math.inf, "real", "-Infinity"),
        (b"\0\xff", "bytea", "\\x00ff"),
        (datetime(2013, 1, 1, tzinfo=UTC), "timestamp with time zone", "2013-01-01T00:00:00+00:00"),
        ("{1,2}", "integer[]", "{1,2}"),
        ([1, None, 2], "integer[]", '{"1",NULL,"2"}'),
        ([[1], [2]], "integer[]", '{{"1"},{"2"}}'),
        (['a"b', "", "null", "c,d", "\\"], "text[]", '{"a\\"b","","null","c,d","\\\\"}'),
        ([{"a": 1}], "jsonb[]", '{"{\\"a\\":1}"}'),
        ({"a": [1, Decimal("2.5")]}, "jsonb", '{"a":[1,{"$numberDecimal":"2.5"}]}'),
        ([1, 2], "jsonb", "[1,2]"),
        ({"$schema": "x", "p": [{"$ref": "#/é"}]}, "jsonb", '{"$schema":"x","p":[{"$ref":"#/\\u00e9"}]}'),
        ({"$n": Decimal("2.5")}, "json", '{"$n":{"$numberDecimal":"2.5"}}'),
        ([1, 2], "text", "[1,2]"),
    ],
)
def test_text_for_a_column(value, type_name, text):
    assert text_of(value, type_name) == text
