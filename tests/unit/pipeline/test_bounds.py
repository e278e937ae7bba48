"""What a pipeline has in memory at a time is bounded by bytes, whatever the number of messages."""

import json
import random
import sys
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.pipeline_ends import opened
from support.pipelines import Script, Taking, declared, message

from harvest_lib.pipeline.adaptors import reading
from harvest_lib.pipeline.bounds import BATCH_BYTES, BULK_BYTES, Room, size_decoded, size_of
from harvest_lib.pipeline.encoded_messages import encoded
from harvest_lib.pipeline.logged_messages import MessageCache
from harvest_lib.pipeline.message import Op
from harvest_lib.pipeline.pipeline import Pipeline

pytestmark = pytest.mark.quick

HALF = 1 << 19
"""Bytes of a large message."""


def sizes(batches):
    return [sum(size_of(each.data) for each in batch if each.op is not Op.NOOP) for batch in batches]


def test_a_room_is_full_by_messages_or_by_bytes():
    room = Room(3, 100)
    assert [room.take(1), room.take(1), room.take(1)] == [False, False, True]
    room.empty()
    assert room.take(1_000), "one message always has room"
    room.empty()
    assert [room.take(60), room.left, room.take(60)] == [False, (2, 40), True]


@pytest.mark.parametrize("transforms", [[], [("same", lambda message: message)]])
@pytest.mark.parametrize("in_memory", [True, False])
def test_a_bulk_has_so_many_bytes_from_memory_and_from_the_log(tmp_path, monkeypatch, transforms, in_memory):
    if not in_memory:
        monkeypatch.setattr("harvest_lib.pipeline.logged_messages._MOST_BYTES", 0)
        monkeypatch.setattr(MessageCache.__init__, "__kwdefaults__", {"most_bytes": 0})
    taking, given = Taking(), [message("A", number, text="x" * HALF) for number in range(40)]
    settings = {"w": {"transforms": transforms}}
    Pipeline(declared(tmp_path, Script(given, batch=40), {"w": taking}, settings=settings)).run()
    assert taking.offsets == list(range(40))
    assert max(sizes(taking.writes)) <= BULK_BYTES + 2 * HALF
    assert max(map(len, taking.writes)) > 1


def test_a_bulk_of_the_cache_ends_where_its_bytes_do_in_one_batch_or_across():
    cache = MessageCache(most_bytes=1 << 30)
    numbers = random.Random(1)
    texts = ["x" * numbers.randrange(0, 5_000) for _ in range(200)]
    given = [message("A", number, text=text) for number, text in enumerate(texts)]
    first = 0
    while first < len(given):
        count = numbers.randrange(1, 9)
        cache.add(first, encoded(given[first : first + count]))
        first += count
    for most in (1, 100, 5_000, 20_000):
        at = 0
        while at < len(given):
            run = cache.run(at, len(given), 50, most)
            found = [len(each) for each in run.values]
            assert found == [len(each) for each in encoded(given[at : run.next]).values]
            assert sum(found[:-1]) < most, "without the last there is room"
            assert sum(found) >= most or len(found) == 50 or run.next == len(given)
            at = run.next


def test_the_cache_counts_objects_not_encodings_alone():
    """A row of many small values takes ten times the bytes of its encoding."""
    cache = MessageCache(most_bytes=1_000_000)
    for number in range(0, 1_000, 10):
        many = {f"c{column}": column for column in range(50)}
        cache.add(number, encoded([message("A", number + place, **many) for place in range(10)]))
    assert cache.run(0, 1_000, 1) is None
    assert cache.run(999, 1_000, 1) is not None
    assert size_decoded([b'{"a":1,"b":[1,2]}']) > 3 * 100


@pytest.mark.parametrize("wide", ["\N{GRINNING FACE}", "\ud800"])
def test_a_text_with_one_wide_character_counts_as_what_it_takes(wide):
    """Python has two or four bytes for each character of it. Half of a pair is escaped in the encoding."""
    text, cache = "x" * 100_000 + wide, MessageCache(most_bytes=4_000_000)
    assert size_of(text) >= sys.getsizeof(text)
    assert size_of({"text": [text]}) >= sys.getsizeof(text)
    for number in range(40):
        cache.add(number, encoded([message("A", number, text=text)]))
    left = [number for number in range(40) if cache.run(number, 40, 1) is not None]
    assert left
    assert len(left) * (sys.getsizeof(text) + len(text)) <= 4_000_000


def read_all(reader):
    return [batch for batch in reader.read({}) if batch]


def test_json_lines_come_by_bytes(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps({"n": number, "text": "x" * HALF}) + "\n" for number in range(30)))
    batches = read_all(opened(reading("file"), path=str(path), content="data"))
    assert sum(map(len, batches)) >= 30
    assert max(sizes(batches)) <= BATCH_BYTES + 2 * HALF


@pytest.mark.parametrize("use_dictionary", [True, False])
def test_parquet_comes_by_bytes_also_where_the_file_has_a_value_once(tmp_path, use_dictionary):
    table = pa.table({"n": list(range(40)), "text": ["x" * HALF] * 40})
    pq.write_table(table, tmp_path / "t.parquet", use_dictionary=use_dictionary)
    batches = read_all(opened(reading("file"), path=str(tmp_path), format="parquet"))
    assert [each.data["n"] for batch in batches for each in batch if each.op is not Op.NOOP] == list(range(40))
    assert max(sizes(batches)) <= BATCH_BYTES + 2 * HALF


def test_of_a_parquet_file_one_row_at_a_time_is_made(tmp_path):
    """A dictionary has a value once, and each row that is made has one of its own."""
    size, count = 2 * BATCH_BYTES, 16
    text = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), ["x" * size])
    pq.write_table(pa.table({"n": list(range(count)), "text": text}), tmp_path / "t.parquet")
    batches = opened(reading("file"), path=str(tmp_path), format="parquet").read({})
    tracemalloc.start()
    try:
        found = sum(len(next(batches)) for _ in range(count))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == count
    assert peak < 3 * size
