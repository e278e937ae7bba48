"""Rows with the trace context of a recorded span: the native library finds the same ones as Python."""

import random

import psycopg
import pytest
from support.handing_over import ALL, insert, made_outbox

from harvest_lib.native import NativeRows, implementation, rows_of
from harvest_lib.record.rows import sampled_traceparents

pytestmark = [
    pytest.mark.gate,
    pytest.mark.skipif(
        implementation().library is None, reason=f"there is no native library here: {implementation().reason}"
    ),
]

GOOD = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
VALUES = [
    *(GOOD, GOOD, GOOD.replace("b7", "c8"), GOOD.replace("b7", "d9"), GOOD[:-1] + "f"),
    *(
        GOOD[:-1] + "0",
        GOOD[:-1] + "a",
        GOOD[:-1] + "B",
        GOOD[:-1],
        GOOD + "1",
        "",
        None,
        "ü" + GOOD[2:],
        "é" * 54 + "1",
    ),
]
NAMES = ["traceparent", "traceparent", "traceparent", "traceparen", "traceparents", "Traceparent", "", "type"]
CANNOT_BE_SENT = [
    (["traceparent"], []),
    ([], [GOOD]),
    ([None, "traceparent"], ["1", GOOD]),
    (["traceparent", "a"], [GOOD]),
]


@pytest.fixture(params=range(5))
def found(request, dsn, use):
    """Rows as both implementations have them."""
    dice = random.Random(request.param)

    def shape():
        if dice.random() < 0.1:
            return dice.choice(CANNOT_BE_SENT)
        length = dice.choice([0, 1, 1, 2, 5])
        return [dice.choice(NAMES) for _ in range(length)], [dice.choice(VALUES) for _ in range(length)]

    made_outbox(dsn)
    insert(dsn, [("t", "k", "v", *shape()) for _ in range(400)])
    with psycopg.connect(dsn) as connection, connection.cursor(binary=True) as cursor:
        use("native")
        native = rows_of(cursor.execute(ALL))
        assert isinstance(native, NativeRows)
        yield native, list(native)


def test_both_find_the_same(found):
    native, python = found
    expected = sampled_traceparents(python, 1_000)
    assert 20 < len(expected) < 400
    assert sampled_traceparents(native, 1_000) == expected
    for most in (1, 7, len(expected)):
        assert sampled_traceparents(native, most) == expected[:most]
    for first, last in ((0, 0), (3, 50), (399, 400)):
        assert sampled_traceparents(native[first:last], 1_000) == sampled_traceparents(python[first:last], 1_000)
