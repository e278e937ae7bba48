"""The decoder of pgoutput, on messages built by hand from the protocol's own field tables."""

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvest_lib.errors import AdaptorError
from harvest_lib.pipeline.adaptors.postgres.pgoutput import (
    UNCHANGED,
    Begin,
    Column,
    Commit,
    Delete,
    Insert,
    Other,
    Relation,
    Truncate,
    Update,
    decode,
)

pytestmark = pytest.mark.quick


def row(*values):
    parts = [struct.pack(">h", len(values))]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif value is UNCHANGED:
            parts.append(b"u")
        else:
            parts.append(b"t" + struct.pack(">i", len(value.encode())) + value.encode())
    return b"".join(parts)


BEGIN = b"B" + struct.pack(">QqI", 0x16B3748, 1_000_500, 742)
COMMIT = b"C\0" + struct.pack(">QQq", 0x16B3748, 0x16B3778, 1_000_500)
RELATION = (
    b"R" + struct.pack(">I", 16385) + b"public\0flights\0d" + struct.pack(">h", 2)
    + b"\1id\0" + struct.pack(">Ii", 23, -1) + "\0näme\0".encode() + struct.pack(">Ii", 1043, 24)
)  # fmt: skip
INSERT = b"I" + struct.pack(">I", 16385) + b"N" + row("1", None)
UPDATE = b"U" + struct.pack(">I", 16385) + b"N" + row("1", UNCHANGED)
UPDATE_KEY = b"U" + struct.pack(">I", 16385) + b"K" + row("1", None) + b"N" + row("2", "é")
UPDATE_FULL = b"U" + struct.pack(">I", 16385) + b"O" + row("1", "a") + b"N" + row("1", "b")
DELETE = b"D" + struct.pack(">I", 16385) + b"K" + row("1", None)
DELETE_FULL = b"D" + struct.pack(">I", 16385) + b"O" + row("1", "a")
TRUNCATE = b"T" + struct.pack(">IBII", 2, 3, 16385, 16390)
ALL = [BEGIN, COMMIT, RELATION, INSERT, UPDATE, UPDATE_KEY, UPDATE_FULL, DELETE, DELETE_FULL, TRUNCATE]


def test_text_of_a_database_without_an_encoding_is_escaped():
    payload = b"I" + struct.pack(">I", 16385) + b"N" + struct.pack(">h", 1) + b"t" + struct.pack(">i", 4) + b"caf\xe9"
    assert decode(payload).new == ["caf\udce9"]


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (BEGIN, Begin(0x16B3748, 946_684_801_000, 742)),
        (COMMIT, Commit(0x16B3748, 0x16B3778, 946_684_801_000)),
        (
            RELATION,
            Relation(
                16385,
                "public",
                "flights",
                "d",
                [Column("id", 23, -1, is_key=True), Column("näme", 1043, 24, is_key=False)],
            ),
        ),
        (INSERT, Insert(16385, ["1", None])),
        (UPDATE, Update(16385, old=None, old_is_key=False, new=["1", UNCHANGED])),
        (UPDATE_KEY, Update(16385, old=["1", None], old_is_key=True, new=["2", "é"])),
        (UPDATE_FULL, Update(16385, old=["1", "a"], old_is_key=False, new=["1", "b"])),
        (DELETE, Delete(16385, ["1", None], old_is_key=True)),
        (DELETE_FULL, Delete(16385, ["1", "a"], old_is_key=False)),
        (TRUNCATE, Truncate([16385, 16390], cascades=True, restarts_sequences=True)),
        (b"O" + struct.pack(">Q", 7) + b"elsewhere\0", Other("O")),
        (b"Y" + struct.pack(">I", 20000) + b"public\0mood\0", Other("Y")),
    ],
)
def test_each_kind_of_message(payload, expected):
    assert decode(payload) == expected


def test_a_table_of_the_catalog_has_no_schema_on_the_wire():
    assert decode(b"R" + struct.pack(">I", 1) + b"\0pg_class\0n\0\0").schema == "pg_catalog"


@pytest.mark.parametrize("payload", ALL, ids=lambda payload: chr(payload[0]))
def test_what_is_cut_off_or_too_long_is_refused(payload):
    for length in range(len(payload)):
        with pytest.raises(AdaptorError, match="cannot be decoded"):
            decode(payload[:length])
    with pytest.raises(AdaptorError, match="1 bytes too many"):
        decode(payload + b"\0")


@given(st.binary(max_size=40) | st.sampled_from(ALL).flatmap(lambda real: st.binary(max_size=30).map(real[:9].__add__)))
def test_whatever_comes_is_decoded_or_refused(payload):
    with suppress(AdaptorError):
        decode(payload)
