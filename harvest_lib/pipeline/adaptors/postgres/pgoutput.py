"""Decoder for messages of Postgres' output plugin `pgoutput`, protocol version 1. It is pure: bytes in, values out.

Values are text in Postgres' output format. `UNCHANGED` stands for a large value (TOAST) that Postgres does not send,
because an update did not change it. On the wire, numbers are big-endian, and times are microseconds since 2000-01-01.
"""

import enum
import struct
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from harvest_lib.errors import AdaptorError
from harvest_lib.postgres.sql_ascii import ESCAPED


class Unchanged(enum.Enum):
    """The type of `UNCHANGED`, which replaces values that Postgres does not send."""

    UNCHANGED = "unchanged"


UNCHANGED = Unchanged.UNCHANGED

Value: TypeAlias = str | Unchanged | None

_2000_MILLISECONDS = 946_684_800_000


class Begin(NamedTuple):
    """The begin of a committed transaction. `timestamp`: time of its commit, in milliseconds since 1970."""

    lsn: int
    timestamp: int
    xid: int


class Commit(NamedTuple):
    """The end of a transaction. `end`: the LSN after the transaction. A reader that has read the transaction continues
    there."""

    lsn: int
    end: int
    timestamp: int


class Column(NamedTuple):
    """A column of a table. `is_key`: the column belongs to the key that identifies a row in updates and deletes."""

    name: str
    type_oid: int
    modifier: int
    is_key: bool


class Relation(NamedTuple):
    """Description of a table. Postgres sends it before the table's first change, and after each change of its columns.

    `identity` is the replica identity: `d` the primary key, `n` nothing, `f` the full row, `i` an index.
    """

    oid: int
    schema: str
    name: str
    identity: str
    columns: Sequence[Column]


class Insert(NamedTuple):
    """A row was added."""

    oid: int
    new: Sequence[Value]


class Update(NamedTuple):
    """A row was changed. `old` is the full former row under identity `f`. Under any other identity, `old` is the former
    key if the key was changed, else None."""

    oid: int
    old: Sequence[Value] | None
    old_is_key: bool
    new: Sequence[Value]


class Delete(NamedTuple):
    """A row was deleted. `old` is its key, or the full row under identity `f`."""

    oid: int
    old: Sequence[Value]
    old_is_key: bool


class Truncate(NamedTuple):
    """Tables were truncated."""

    oids: Sequence[int]
    cascades: bool
    restarts_sequences: bool


class Other(NamedTuple):
    """A message that changes no rows: an origin, a type, or a message of an application."""

    kind: str


Decoded: TypeAlias = Begin | Commit | Relation | Insert | Update | Delete | Truncate | Other

_OTHERS = b"OYM"


def decode(payload: bytes) -> Decoded:
    """Decode one message. Raises AdaptorError if `payload` is not a message of protocol version 1."""
    try:
        cursor = _Cursor(payload)
        decoded = _decode(cursor)
    except (struct.error, IndexError, ValueError) as error:
        raise _undecodable(payload, f"{type(error).__name__} at byte {cursor.position}") from error
    if decoded is None:
        raise _undecodable(payload, "an unknown kind of message")
    if cursor.position != len(payload) and not isinstance(decoded, Other):
        raise _undecodable(payload, f"{len(payload) - cursor.position} bytes too many")
    return decoded


def _decode(cursor: "_Cursor") -> Decoded | None:
    kind = cursor.character()
    match kind:
        case "I":
            (oid,) = cursor.numbers(">I")
            cursor.expect("N")
            return Insert(oid, cursor.row())
        case "U":
            (oid,), mark = cursor.numbers(">I"), cursor.character()
            is_key, old = mark == "K", None
            if mark in "KO":
                old = cursor.row()
                mark = cursor.character()
            _require(mark == "N")
            return Update(oid, old, is_key, cursor.row())
        case "D":
            (oid,), mark = cursor.numbers(">I"), cursor.character()
            _require(mark in "KO")
            return Delete(oid, cursor.row(), mark == "K")
        case "B":
            lsn, committed, xid = cursor.numbers(">QqI")
            return Begin(lsn, _milliseconds(committed), xid)
        case "C":
            _, lsn, end, committed = cursor.numbers(">BQQq")  # flags first, unused so far
            return Commit(lsn, end, _milliseconds(committed))
        case "R":
            (oid,), schema, name = cursor.numbers(">I"), cursor.string(), cursor.string()
            identity, (count,) = cursor.character(), cursor.numbers(">h")
            return Relation(oid, schema or "pg_catalog", name, identity, [cursor.column() for _ in range(count)])
        case "T":
            count, flags = cursor.numbers(">IB")
            return Truncate(list(cursor.numbers(f">{count}I")), bool(flags & 1), bool(flags & 2))
        case _:
            return Other(kind) if kind.encode() in _OTHERS else None


class _Cursor:
    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self.position = 0

    def numbers(self, form: str) -> tuple[int, ...]:
        """Read the numbers that `form`, a format of `struct`, describes."""
        found = struct.unpack_from(form, self._payload, self.position)
        self.position += struct.calcsize(form)
        return found

    def character(self) -> str:
        self.position += 1
        return chr(self._payload[self.position - 1])

    def expect(self, character: str) -> None:
        _require(self.character() == character)

    def string(self) -> str:
        end = self._payload.index(b"\0", self.position)
        text = self._payload[self.position : end].decode("utf-8", ESCAPED)
        self.position = end + 1
        return text

    def column(self) -> Column:
        (flags,), name = self.numbers(">B"), self.string()
        type_oid, modifier = self.numbers(">Ii")
        return Column(name, type_oid, modifier, bool(flags & 1))

    def row(self) -> Sequence[Value]:
        (count,) = self.numbers(">h")
        return [self._value() for _ in range(count)]

    def _value(self) -> Value:
        kind = self.character()
        if kind == "n":
            return None
        if kind == "u":
            return UNCHANGED
        _require(kind == "t")
        (length,) = self.numbers(">i")
        _require(0 <= length <= len(self._payload) - self.position)
        self.position += length
        return self._payload[self.position - length : self.position].decode("utf-8", ESCAPED)


def _require(condition: bool) -> None:  # noqa: FBT001 - like an assertion
    if not condition:
        raise ValueError("not as the protocol has it")


def _milliseconds(microseconds: int) -> int:
    return _2000_MILLISECONDS + microseconds // 1000


def _undecodable(payload: bytes, evidence: str) -> AdaptorError:
    return AdaptorError(
        "Postgres sent a change that cannot be decoded",
        evidence=f"kind {payload[:1]!r}, {len(payload)} bytes: {evidence}",
        next_step="report it with the server's version: the requested protocol is pgoutput's version 1",
    )
