"""What every reader is: something that is polled, and gives each time what it takes to be new."""

from typing import Any, Protocol

import psycopg

PAGE = 1_000
"""Records a poll returns at most."""

Connection = psycopg.Connection[tuple[Any, ...]]

Row = tuple[Any, ...]
"""The outbox id, the key, the record's number among those of its key, the value; what the reader adds comes after."""


class Reader(Protocol):
    """One subscriber. What it remembers between polls it keeps in memory: crashes are not what is compared."""

    def poll(self, connection: Connection) -> list[Row]:
        """Return what is new, at most a page, in the order in which it would be sent."""
        ...
