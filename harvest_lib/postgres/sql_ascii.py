"""Support for databases without an encoding (`SQL_ASCII`). Text in them is bytes, which need not be UTF-8.

If the client encoding were UTF-8, the server would fail a query whose result is not UTF-8. So text is read as bytes,
and bytes that are not UTF-8 are escaped in Python's strings (`surrogateescape`). Such a string is sent to the server as
the same bytes.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from psycopg import sql
from psycopg.adapt import Buffer, Loader
from psycopg.pq import Format
from psycopg.types.json import set_json_loads
from psycopg.types.string import StrBinaryDumper, StrDumper, StrDumperUnknown

ESCAPED = "surrogateescape"
"""Error handler of `decode` and `encode` for text of such a database."""
_TEXTS = (0, "text", "varchar", "bpchar", "name")
"""Postgres' types of text; 0 stands for types that psycopg does not know."""


class _TextLoader(Loader):
    def load(self, data: Buffer) -> str:
        return bytes(data).decode("utf-8", ESCAPED)


class _BinaryTextLoader(_TextLoader):
    format = Format.BINARY


class _TextDumper(StrDumper):
    def dump(self, obj: str) -> bytes:
        return as_bytes(obj)


class _UnknownDumper(StrDumperUnknown):
    def dump(self, obj: str) -> bytes:
        return as_bytes(obj)


class _BinaryTextDumper(StrBinaryDumper):
    def dump(self, obj: str) -> bytes:
        return as_bytes(obj)


class _Cursor(psycopg.Cursor[Any]):
    def execute(self, query: Any, params: Sequence[Any] | Mapping[str, Any] | None = None, **options: Any) -> "_Cursor":
        """Execute a statement, encoded as UTF-8. psycopg would refuse names with characters outside ASCII."""
        if isinstance(query, str | sql.Composable):
            query = query.encode() if isinstance(query, str) else query.as_bytes(None)
        return super().execute(query, params, **options)


def take_text_as_it_is(connection: psycopg.Connection[Any]) -> None:
    """If the database has no encoding, make a connection read and write text as bytes. For any other database do
    nothing, because the server converts text to and from UTF-8."""
    if connection.info.parameter_status("server_encoding") != "SQL_ASCII":
        return
    connection.execute("SET client_encoding = 'SQL_ASCII'")
    adapters = connection.adapters
    for each in _TEXTS:
        adapters.register_loader(each, _TextLoader)
        adapters.register_loader(each, _BinaryTextLoader)
    for dumper in (_BinaryTextDumper, _TextDumper, _UnknownDumper):
        adapters.register_dumper(str, dumper)
    set_json_loads(_json, connection)
    connection.cursor_factory = _Cursor


def _json(data: str | bytes) -> Any:
    return json.loads(data if isinstance(data, str) else bytes(data).decode("utf-8", ESCAPED))


def has_no_encoding(connection: psycopg.Connection[Any]) -> bool:
    """Return True if text that is read from a connection may contain escaped bytes that are not UTF-8."""
    return connection.info.parameter_status("client_encoding") == "SQL_ASCII"


def is_utf8(text: str) -> bool:
    """Return True if a text has no escaped bytes, so that it was valid UTF-8."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_bytes(text: str) -> bytes:
    """Return the bytes from which a text was read."""
    return text.encode("utf-8", ESCAPED)


def shown(text: str) -> str:
    """Return a text for display to operators. Bytes that are not UTF-8 are shown as \\xe9, for example."""
    return text if is_utf8(text) else as_bytes(text).decode("utf-8", "backslashreplace")
