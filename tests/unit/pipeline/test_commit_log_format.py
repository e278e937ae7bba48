"""The formats, byte for byte: golden files that were written by the document's field tables, in `golden/`."""

import shutil
from binascii import crc32
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.log_format import decode, decode_index, encode

from harvest_lib.errors import EntryRefused
from harvest_lib.pipeline.commit_log import CommitLog, LogEntry, mode_byte, pack, parts_of, unpack
from harvest_lib.pipeline.commit_log.entry import Malformed
from harvest_lib.pipeline.offset_log import OffsetLog

pytestmark = pytest.mark.quick

GOLDEN = Path(__file__).parent / "golden"
SEGMENT = "00000000000000000000.0.log"
INDEX = "00000000000000000000.0.index"
ROWS = [
    (1_357_016_400_000, "Copy", "insert", b"public.flights", b'{"id":1,"carrier":"UA"}'),
    (1_357_016_400_001, "Copy", "insert", b"public.flights", b'{"id":2,"carrier":"AA"}'),
    (0, "Complete", "noop", b"", b""),
    (2**64 - 1, "Sync", "delete", "público.vuelos".encode(), bytes(range(256))),
    (1_357_016_400_002, "Sync", "update", b"public.flights", b'{"id":1,"carrier":"DL"}'),
    (1_357_016_400_003, "Sync", "command", b"public.planes", b"truncate"),
]
NUMBERS = {"Copy": 0, "Sync": 1, "Complete": 2, "insert": 0, "update": 1, "delete": 2, "command": 3, "noop": 4}


def unnumbered():
    return [(timestamp, mode_byte(NUMBERS[mode], NUMBERS[op]), key, data) for timestamp, mode, op, key, data in ROWS]


def test_golden_entries_say_what_the_document_says():
    entries = decode((GOLDEN / "commit_log" / SEGMENT).read_bytes())
    found = [(each["timestamp"], each["document mode"], each["op"], each["key"], each["data"]) for each in entries]
    assert found == ROWS
    assert [each["offset"] for each in entries] == list(range(len(ROWS)))
    assert (
        b"".join(encode(offset, *row) for offset, row in enumerate(ROWS))
        == (GOLDEN / "commit_log" / SEGMENT).read_bytes()
    )


def test_what_is_appended_is_the_golden_file(tmp_path):
    with CommitLog(tmp_path / "log") as log:
        log.append(unnumbered())
    for name in (SEGMENT, INDEX, "log.json"):
        assert (tmp_path / "log" / name).read_bytes() == (GOLDEN / "commit_log" / name).read_bytes(), name


def test_a_golden_log_is_read(tmp_path):
    shutil.copytree(GOLDEN / "commit_log", tmp_path / "log")
    with CommitLog(tmp_path / "log") as log:
        assert log.repaired == ()
        assert list(log.read(0)) == [LogEntry(offset, *entry) for offset, entry in enumerate(unnumbered())]


def test_golden_offsets_are_entries_with_eight_bytes_of_data(tmp_path):
    shutil.copytree(GOLDEN / "offset_log", tmp_path / "offsets")
    entries = decode((tmp_path / "offsets" / SEGMENT).read_bytes())
    assert [(each["key"], each["data"]) for each in entries] == [
        (b"A", bytes.fromhex("0000000000000001")),
        (b"B", bytes.fromhex("0000000000000200")),
        (b"A", bytes.fromhex("0000000000000201")),
    ]
    offsets = OffsetLog(tmp_path / "offsets")
    assert (offsets.by_namespace, offsets.position) == ({b"A": 513, b"B": 512}, 514)
    offsets.close()


def test_the_index_vouches_for_each_block(tmp_path):
    with CommitLog(tmp_path / "log") as log:
        log.append(unnumbered()[:2])
        log.sync()
        log.append(unnumbered()[2:])
    data = (tmp_path / "log" / SEGMENT).read_bytes()
    records = decode_index((tmp_path / "log" / INDEX).read_bytes())
    assert [record["kind"] for record in records] == [1, 0, 1, 0, 1]
    assert all(record["record checksum"] == crc32(record["of"]) for record in records)
    assert all(record["magic"] == b"\xc7LIx" for record in records)
    first, second = records[1], records[3]
    assert (first["first offset"], first["next offset"], first["newest"]) == (0, 2, {b"public.flights": 1})
    assert (second["first offset"], second["next offset"]) == (2, 6)
    assert second["newest"] == {row[3]: number for number, row in enumerate(ROWS) if number > 1}
    for record in (first, second):
        block = data[record["position"] : record["position"] + record["length"]]
        assert record["checksum"] == crc32(block)
    assert first["position"] + first["length"] == second["position"]
    assert [(each["length"], each["next offset"]) for each in records[::2]] == [
        (0, 0),
        (second["position"], 2),
        (len(data), 6),
    ]


ENTRIES = st.lists(
    st.builds(
        LogEntry,
        st.integers(0, 2**60),
        st.integers(0, 2**64 - 1),
        st.integers(0, 255),
        st.binary(max_size=40),
        st.binary(max_size=300),
    ),
    unique_by=lambda entry: entry.offset,
).map(sorted)


@given(entries=ENTRIES, begin=st.integers(0, 2**60))
def test_entries_come_back(entries, begin):
    assert unpack(pack(entries)) == entries
    assert unpack(pack(entries), begin) == [entry for entry in entries if entry.offset >= begin]


@given(entries=ENTRIES.filter(bool), data=st.data())
def test_part_of_an_entry_is_none(entries, data):
    packed, last = pack(entries), len(pack(entries[-1:]))
    with pytest.raises(Malformed) as raised:
        unpack(packed[: -data.draw(st.integers(1, last - 1))])
    assert raised.value.at == len(packed) - last


@pytest.mark.parametrize(
    ("field", "value"),
    [(slice(8, 12), 4 + 1 + 4 + 5), (slice(8, 12), 4 + 1 + 4 + 3), (slice(21, 25), 2), (slice(26, 30), 3)],
    ids=["message too long", "message too short", "key too long", "data too short"],
)
def test_lengths_that_do_not_fit_together_are_no_entry(field, value):
    packed = bytearray(pack([LogEntry(7, 1, 0, b"A", b"data"), LogEntry(8, 1, 0, b"A", b"data")]))
    packed[field] = value.to_bytes(4, "big")
    with pytest.raises(Malformed) as raised:
        unpack(bytes(packed))
    assert raised.value.at == 0


@pytest.mark.parametrize(("offsets", "at"), [((7, 7), 1), ((7, 6), 1), ((10, 11), 0), ((9, 10), 1)])
def test_offsets_rise_and_stay_below_the_end(offsets, at):
    packed = [pack([LogEntry(offset, 1, 0, b"A", b"data")]) for offset in offsets]
    with pytest.raises(Malformed, match="its offset") as raised:
        unpack(b"".join(packed), end=10)
    assert raised.value.at == at * len(packed[0])


@given(data=st.binary(max_size=200))
def test_bytes_that_are_no_entries_never_pass(data):
    try:
        entries = unpack(data)
    except Malformed:
        return
    assert pack(entries) == data


@pytest.mark.parametrize("mode", range(4))
@pytest.mark.parametrize("op", range(8))
def test_a_mode_byte_has_both(mode, op):
    assert parts_of(mode_byte(mode, op)) == (mode, op)
    assert mode_byte(mode, op) == mode + 4 * op


@pytest.mark.parametrize(("mode", "op"), [(4, 0), (-1, 0), (0, 8)])
def test_a_mode_byte_has_room_for_no_more(mode, op):
    with pytest.raises(ValueError, match="no room"):
        mode_byte(mode, op)


@pytest.mark.parametrize("entry", [(-1, 0, b"", b""), (2**64, 0, b"", b""), (0, 256, b"", b""), (0, 0, "text", b"")])
def test_what_the_format_has_no_room_for_is_refused_and_the_log_goes_on(tmp_path, entry):
    with CommitLog(tmp_path / "log") as log:
        log.append([(1, 0, b"A", b"before")])
        with pytest.raises(EntryRefused, match="does not fit"):
            log.append([(2, 0, b"A", b"with it"), entry])
        assert log.append([(3, 0, b"A", b"after")]) == range(1, 2)
        assert [each.value for each in log.read(0)] == [b"before", b"after"]
