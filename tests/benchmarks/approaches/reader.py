"""The protocol of a reader: a poll returns the records that the reader takes to be new."""

from typing import Any, Protocol

import psycopg

PAGE = 1_000
"""Records a poll returns at most."""

Connection = psycopg.Connection[tuple[Any, ...]]

Row = tuple[Any, ...]
"""The outbox id, the key, the record's number among those of its key, the value; a reader's own columns follow."""


class Reader(Protocol):
    """One subscriber. It keeps its state between polls in memory: crashes are not compared."""

    def poll(self, connection: Connection) -> list[Row]:
        """Return what is new, at most a page, in the order in which it would be sent."""
        ...
