"""Rows of an SQL_ASCII database, whose text has no encoding. A row that cannot be sent gets the reason as its header.

A value is bytes in Kafka, so a value that is not UTF-8 is sent as it is. Topic, key and headers are text in the clients
and in the tables of parked records. A record with a topic, key or header that is not UTF-8 is never sent.
"""

from collections.abc import Iterator, Sequence
from typing import Any, overload

import psycopg

from harvest_lib.postgres.sql_ascii import as_bytes, has_no_encoding, is_utf8, shown
from harvest_lib.record import Row, Unreadable

_SHOWN = 80


@overload
def readable(rows: list[Row], connection: psycopg.Connection[Any]) -> list[Row]: ...
@overload
def readable(rows: Sequence[Row], connection: psycopg.Connection[Any]) -> Sequence[Row]: ...
def readable(rows: Sequence[Row], connection: psycopg.Connection[Any]) -> Sequence[Row]:
    """Return the rows, with each value that is not UTF-8 converted to bytes. A row that cannot be sent gets a single
    header value instead of its headers: an `Unreadable` with the reason."""
    return [_readable(row) for row in rows] if has_no_encoding(connection) else rows


def _readable(row: Row) -> Row:
    record_id, topic, key, value, names, contents = row
    if isinstance(value, str) and not is_utf8(value):
        value = as_bytes(value)
    for what, text in _texts(row):
        if not is_utf8(text):
            reason = f"the {what} is not UTF-8: {shown(text)[:_SHOWN]}"
            return record_id, topic, key, value, [], [Unreadable(reason)]
    return record_id, topic, key, value, names, contents


def _texts(row: Row) -> Iterator[tuple[str, str]]:
    _, topic, key, _, names, contents = row
    yield "topic", topic
    yield "key", key
    for what, texts in (("name of a header", names), ("value of a header", contents)):
        yield from ((what, text) for text in _flat(texts))


def _flat(texts: Sequence[Any]) -> Iterator[str]:
    for text in texts:
        if isinstance(text, list):  # an array of arrays, which the type of the column allows
            yield from _flat(text)
        elif text is not None:
            yield text
