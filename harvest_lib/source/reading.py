"""Reading ahead: streams of rows by id, the next piece of each on its way while the last is being delivered.

A statement is waited for on a thread of its own, which costs little: what takes Python's time, making rows of the
answer, is done by whoever asks for them.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.record import Row
from harvest_lib.source.thread import CallThread

_LAST = 2**63 - 1


class Ahead:
    """Statements on one connection, one after the other, waited for on a thread of their own."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._thread = CallThread(connection, "harvest-read")

    def execute(self, statement: sql.Composed, values: Mapping[str, Any]) -> "Future[psycopg.Cursor[Any]]":
        return self._thread.ask(
            lambda connection: connection.cursor(binary=True).execute(statement, values, prepare=True)
        )

    def close(self) -> None:
        """Wait for what was asked, and end the thread."""
        self._thread.end()


class Stream:
    """The rows of one statement, ascending by id, in pieces. It takes %(after)s and %(limit)s beside `values`."""

    def __init__(self, statement: sql.Composed, values: Mapping[str, Any], after: int) -> None:
        self._statement = statement
        self._values = values
        self._after = after
        self._asked: tuple[Future[psycopg.Cursor[Any]], int] | None = None
        self._rows: list[Row] = []
        self.is_done = False
        """True once the statement has no more than what is here."""

    @property
    def is_empty(self) -> bool:
        return self.is_done and not self._rows

    @property
    def reach(self) -> int:
        """Return the id up to which all rows are here."""
        return _LAST if self.is_done else self._after

    def ask(self, ahead: Ahead, limit: int) -> None:
        """Ask for the next piece, if there is none here and none was asked for."""
        if self.is_done or self._rows or self._asked is not None:
            return
        self._asked = ahead.execute(self._statement, {**self._values, "after": self._after, "limit": limit}), limit

    def hear(self) -> None:
        """Wait for the piece that was asked for."""
        if self._asked is not None:
            (answer, limit), self._asked = self._asked, None
            self._rows = answer.result().fetchall()
            if self._rows:
                self._after = self._rows[-1][0]
            self.is_done = len(self._rows) < limit

    def take(self, up_to: int) -> list[Row]:
        """Return the rows that are here with ids up to `up_to`."""
        rows = self._rows
        if not rows or rows[-1][0] <= up_to:
            self._rows = []
            return rows
        count = sum(1 for row in rows if row[0] <= up_to)
        self._rows = rows[count:]
        return rows[:count]


def merged(streams: Sequence[Stream], ahead: Ahead, limit: int) -> list[Row]:
    """Return the next rows of all streams together, ascending by id, and ask for what follows.

    Empty only when all streams are.
    """
    for stream in streams:
        stream.ask(ahead, limit)
    for stream in streams:
        stream.hear()
    reach = min((stream.reach for stream in streams), default=_LAST)
    pieces = [piece for stream in streams if (piece := stream.take(reach))]
    for stream in streams:
        stream.ask(ahead, limit)
    return pieces[0] if len(pieces) == 1 else sorted((row for piece in pieces for row in piece), key=_id)


def _id(row: Row) -> int:
    return row[0]
