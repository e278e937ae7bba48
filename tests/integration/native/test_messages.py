"""Messages of an outbox that are encoded in C, packed, wrapped and handed over, are those of Python, byte by byte."""

import random

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.handing_over import ALL, insert, made_outbox
from support.row_shapes import drawn

from harvest_lib.native import NativeRows, implementation, rows_of
from harvest_lib.pipeline.adaptors import writing
from harvest_lib.pipeline.adaptors.envelope import encode_all, encode_joined
from harvest_lib.pipeline.adaptors.kafka.records import handed_over, records_of
from harvest_lib.pipeline.adaptors.outbox import OutboxMessages, messages_of
from harvest_lib.pipeline.encoded_messages import JoinedMessages
from harvest_lib.pipeline.logged_messages import MessageCache
from harvest_lib.pipeline.routing import Routing

pytestmark = [
    pytest.mark.gate,
    pytest.mark.skipif(
        implementation().library is None, reason=f"there is no native library here: {implementation().reason}"
    ),
]

CONTROLS = "".join(map(chr, [*range(1, 0x20), 0x7F, 0x80, 0x9F, 0x2028, 0xFFFF, 0x10000, 0x10FFFF]))
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12) | st.sampled_from(
    [
        "",
        '"',
        "\\",
        '\\"',
        "$",
        '"$',
        '{"$date":1}',
        "a$",
        'é"$',
        "$é",
        "%s",
        "%",
        CONTROLS,
        CONTROLS + '"$',
        "x" * 900,
    ]
)
HEADERS = st.lists(TEXTS | st.none(), max_size=3)
ODD_HEADERS = st.none() | st.sampled_from([[["a"]], [["a", None], ["$b", "c"]]])
TOPICS = st.sampled_from(["t", "t", "u", "ü$", "outbox/s", ""])
ROWS = st.tuples(
    st.integers(-(2**63), 2**63 - 1), TOPICS, TEXTS, TEXTS | st.none(), HEADERS, HEADERS
)  # fmt: skip
ODD_ROWS = st.tuples(
    st.integers(1, 9), TOPICS | st.none(), TEXTS | st.none(), TEXTS, HEADERS | ODD_HEADERS, HEADERS | ODD_HEADERS
)  # fmt: skip
PLACE = {"generation": 1, "position": {"prev": "1:1:", "é": '"$'}}
TIMESTAMP = 1_356_999_300_000
OPTIONS = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["all", "{namespace}"]),
        "content": st.sampled_from(["envelope", "data"]),
        "key": st.dictionaries(
            st.sampled_from(["t", "u", "ü$", ""]),
            st.sampled_from([["key"], ["id"], ["value"], ["id", "key"], ["key", "key"], []]),
            max_size=4,
        ),
    }
)
FILTERS = st.sampled_from([".*", ".*", "^t$", "[^t]", "^none$"])
NATIVELY = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]}


@pytest.fixture
def found(dsn):
    """Return what has Postgres return rows, as it returns those of an outbox."""
    with psycopg.connect(dsn) as connection:
        row = "(%s::bigint, %s::text, %s::text, %s::text, %s::text[], %s::text[])"

        def returned(rows):
            statement = f"VALUES {', '.join([row] * len(rows))}"
            parameters = [each for row in rows for each in row]
            return rows_of(connection.cursor(binary=True).execute(statement, parameters))

        yield returned


def batches(rows):
    """The batch as it is encoded natively, or by Python if it has to be, and by Python."""
    assert isinstance(rows, NativeRows)
    natively = answer(lambda: messages_of(rows, TIMESTAMP, "outbox/s", PLACE))
    return natively, answer(lambda: OutboxMessages(list(rows), TIMESTAMP, "outbox/s", PLACE))


def written_of(batch, expression, first, most):
    cache = MessageCache(7)
    cache.add(7, batch)
    cache.add(cache.end, batch)
    run = cache.run(7 + first, cache.end, most)
    return run and Routing(expression).as_it_is(run)


def answer(call):
    """Return the result of a call, or the kind of error."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the same
        return type(error)


@settings(**NATIVELY)
@given(st.lists(ROWS, min_size=1, max_size=6), st.data())
@example([(1, "t", "k", CONTROLS, ["a", "a"], ["b", None]), (2, "t", "é", 'é\x7f𝄞"$', [], [])], None)
def test_batches_are_the_same(found, rows, data):
    natively, by_python = batches(found(rows))
    assert isinstance(natively, JoinedMessages)
    assert list(natively.values) == by_python.values
    assert list(natively.heads) == by_python.heads
    assert natively.size == by_python.encoded_bytes(0, len(by_python)), "no objects, which Python's have beside"
    assert list(natively) == list(by_python)
    one, other = natively.packing(5), by_python.packing(5)
    while not other.done:
        for room in (data.draw(st.integers(-1, 700)) if data is not None else 200, None):
            if not other.done:
                assert one.take(room) == other.take(room)
                assert one.done == other.done
    assert one.done


@settings(**NATIVELY)
@given(st.lists(ODD_ROWS, min_size=1, max_size=4))
def test_what_is_odd_is_as_python_has_it(found, rows):
    natively, by_python = batches(found(rows))
    if isinstance(by_python, type):
        assert natively is by_python
    else:
        assert list(natively.values) == by_python.values
        assert list(natively.heads) == by_python.heads


@pytest.mark.full
@pytest.mark.parametrize("parked", [False, True])
@pytest.mark.parametrize("kind", ["varchar", "text", "bytea"])
def test_rows_of_a_table_are_the_same_whatever_their_shape(dsn, kind, parked):
    made_outbox(dsn, kind)
    shapes = drawn(["t", "u"], 3_000, kind, random.Random(f"{kind} {parked}"), parked=parked)
    insert(dsn, [*shapes, *([("t", "long", CONTROLS * 200_000, ["a"], ["ü" * 70_000])] if kind == "text" else [])])
    with psycopg.connect(dsn) as connection:
        rows = rows_of(connection.cursor(binary=True).execute(ALL))
        joined = 0
        for begin in range(0, len(rows), 20):  # small ones, so that what is odd costs few the native way
            natively, by_python = batches(rows[begin : begin + 20])
            joined += isinstance(natively, JoinedMessages)
            assert list(natively.values) == by_python.values
            assert list(natively.heads) == by_python.heads
    assert (joined > 0) is (kind != "bytea")
    assert (joined == -(-len(rows) // 20)) is (kind != "bytea" and not parked)


@settings(**NATIVELY)
@given(
    st.lists(ROWS, min_size=1, max_size=5), OPTIONS, FILTERS, st.integers(0, 5), st.integers(1, 14)
)  # fmt: skip
def test_lines_and_records_are_the_same(found, rows, options, expression, first, most):
    if options["content"] == "data":
        options = {**options, "topic": "{namespace}", "key": options["key"] or {"t": ["id"]}}
    side = writing("kafka")
    made = side.options(kafka={"bootstrap.servers": "none"}, **options)
    natively, by_python = (written_of(batch, expression, first, most) for batch in batches(found(rows)))
    assert (natively is None) == (by_python is None)
    if natively is None:
        return
    assert len(natively) == len(by_python)
    for content in ("envelope", "data"):
        lines = encode_joined(natively, content, b"\n")
        assert [each for pieces, _ in lines for each in pieces] == [
            line + b"\n" for line in encode_all(by_python, content)
        ]
    topics = {name: f"topic {name}" for name in ("t", "u", "ü$", "outbox/s", "")}
    expected = answer(lambda: by_places(by_python, records_of(by_python, made), topics))
    for messages in (natively, by_python):
        assert answer(lambda messages=messages: handed(handed_over(messages, made, topics))) == expected


def by_places(messages, records, topics):
    return [
        (topics[message.namespace], message.timestamp, *record)
        for message, record in zip(messages, records, strict=True)
    ]


def handed(records):
    """Topic, timestamp, key and value of each record."""
    return [
        (each.targets[kind].topic.decode(), each.targets[kind].timestamp, key, value)
        for each in records
        for kind, key, value in zip(each.kinds, each.keys, each.values, strict=False)
    ]
