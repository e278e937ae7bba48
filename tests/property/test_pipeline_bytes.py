"""Messages that are passed on as bytes are the ones that are decoded one by one: to the field, and to the byte."""

import tempfile
from contextlib import closing
from datetime import UTC
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pipeline_files import writer as file_writer
from support.produced import Produced

from harvest_lib.errors import MessageRefused
from harvest_lib.pipeline.adaptors import writing
from harvest_lib.pipeline.adaptors.envelope import encode, encode_all
from harvest_lib.pipeline.adaptors.kafka.writer import KafkaWriter
from harvest_lib.pipeline.adaptors.outbox import OutboxMessages
from harvest_lib.pipeline.commit_log import LogEntry
from harvest_lib.pipeline.encoded_messages import encoded
from harvest_lib.pipeline.extended_json import dumps, loads
from harvest_lib.pipeline.logged_messages import MessageCache
from harvest_lib.pipeline.message import Mode, Op, PipelineMessage
from harvest_lib.pipeline.routing import Routing

pytestmark = pytest.mark.gate

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ['"$', "$date", "%s", "%", "\\", "\n", "é$"]
)
NAMES = st.sampled_from(["id", "key", "$id", "100%", "é"])
SCALARS = (
    TEXTS
    | st.integers(-(2**70), 2**70)
    | st.none()
    | st.booleans()
    | st.floats(allow_nan=False)
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.datetimes(timezones=st.just(UTC))
    | st.lists(st.dictionaries(NAMES, TEXTS, max_size=1), max_size=2)
)
NAMESPACES = st.sampled_from(["a", "b", "a%s", "c\n", "ü$"])
MESSAGES = st.builds(
    PipelineMessage,
    st.sampled_from(Op),
    st.integers(0, 3) | st.integers(0, 2**63 - 1),
    NAMESPACES,
    st.dictionaries(NAMES, SCALARS, max_size=4),
    st.sampled_from(Mode),
)
BATCHES = st.lists(st.lists(MESSAGES, min_size=1, max_size=6), min_size=1, max_size=4)
FILTERS = st.sampled_from([".*", "^a$", "a", "[^b]", "^none$"])
TEXT_ROWS = st.tuples(
    st.integers(1, 2**63 - 1),
    st.sampled_from(["t", "u"]),
    TEXTS,
    TEXTS | st.none() | st.binary(max_size=8),
    st.lists(TEXTS, max_size=3),
    st.lists(TEXTS | st.none() | st.lists(TEXTS, max_size=2), max_size=3),
)


def in_memory(batches, first=0):
    """The batches, under offsets from `first` on."""
    cache = MessageCache(first)
    for batch in batches:
        cache.add(cache.end, encoded(batch))
    return cache


def entries(batches, first=0):
    """Return the entries of the log with these batches."""
    pairs = [pair for each in map(encoded, batches) for pair in zip(each.heads, each.values, strict=True)]
    return [LogEntry(offset, *head, value) for offset, (head, value) in enumerate(pairs, first)]


@given(BATCHES, FILTERS, st.integers(0, 9), st.integers(1, 25), st.integers(0, 25))
def test_a_writer_gets_the_messages_that_are_in_the_log(batches, expression, first, most, begin):
    routing = Routing(expression)
    logged, cache = entries(batches, first), in_memory(batches, first)
    run = cache.run(first + begin, cache.end, most)
    expected = logged[begin : begin + most]
    assert (run is None) == (not expected)
    if run is None:
        return
    assert run.entries() == expected
    assert (run.first, run.next) == (expected[0].offset, expected[-1].offset + 1)
    assert run.newest == {entry.key: entry.offset for entry in expected}
    wanted = [message for entry in expected if (message := routing.message(entry)) is not None]
    found = routing.as_it_is(run)
    assert list(found) == wanted == [found[place] for place in range(len(found))] == list(found[:])
    assert [dumps(each.data) for each in found] == [dumps(each.data) for each in wanted] == list(found.values)
    assert [routing.message(entry, run) for entry in expected if routing.wants(entry)] == wanted


@given(BATCHES, st.sampled_from(["envelope", "data"]))
def test_each_line_is_the_one_of_its_message(batches, content):
    found = Routing().as_it_is(in_memory(batches).run(0, 99, 99))
    assert answer(lambda: encode_all(found, content)) == answer(lambda: [encode(each, content) for each in found])


@given(BATCHES, st.sampled_from(["{namespace}.jsonl", "all.jsonl"]))
def test_files_are_the_same(batches, name):
    found = Routing().as_it_is(in_memory(batches).run(0, 99, 99))
    contents = []
    for messages in (found, [*found]):
        with tempfile.TemporaryDirectory() as folder:
            with closing(file_writer(f"{folder}/{name}")) as writer:
                writer.write(messages)
            contents.append({path.name: path.read_bytes() for path in Path(folder).iterdir()})
    assert contents[0] == contents[1]


@given(
    BATCHES,
    st.dictionaries(NAMESPACES, st.lists(NAMES, max_size=2), max_size=3),
    st.sampled_from([("t", "envelope"), ("{namespace}", "envelope"), ("{namespace}", "data")]),
)
def test_records_are_the_same(batches, key, how):
    topic, content = how
    if content == "data" and not key:
        return
    side = writing("kafka")
    options = side.options(kafka={"bootstrap.servers": "none"}, topic=topic, content=content, key=key)
    found = Routing().as_it_is(in_memory(batches).run(0, 99, 99))

    def produced(messages):
        producer = Produced()
        writer = KafkaWriter(options, provider=lambda _settings: producer)
        writer._topics = {namespace: f"topic {namespace}" for namespace in ("a", "b", "a%s", "c\n", "ü$")}
        writer.write(messages)
        return producer.records

    assert answer(lambda: produced(found)) == answer(lambda: produced([*found]))


@given(st.lists(TEXT_ROWS, max_size=6), st.integers(0, 2**63 - 1))
def test_records_of_an_outbox_are_encoded_as_their_data_is(rows, timestamp):
    place = {"generation": 1, "position": {"prev": "1:1:"}}
    batch = OutboxMessages(rows, timestamp, "outbox/s", place)
    expected = [
        PipelineMessage(
            Op.INSERT,
            timestamp,
            topic,
            {
                "id": record_id,
                "key": key,
                "value": value,
                "headers": [list(each) for each in zip(names, contents, strict=False)],
            },
        )
        for record_id, topic, key, value, names, contents in rows
    ]
    expected.append(PipelineMessage(Op.NOOP, timestamp, "outbox/s", place))
    assert list(batch) == expected
    assert list(batch.values) == [dumps(each.data) for each in expected]
    assert [loads(value) for value in batch.values] == [each.data for each in expected]
    for name in ("id", "key", "value", "headers", "generation"):
        for begin, end in ((0, len(batch)), (1, len(batch) - 1), (len(batch) - 1, len(batch))):
            assert list(batch.column(name, begin, end)) == [each.data.get(name) for each in expected][begin:end]


def answer(call):
    """Return the result of a call, or its refusal."""
    try:
        return call()
    except MessageRefused as error:
        return str(error)
