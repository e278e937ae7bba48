"""The source table of the pipeline: flights of 2013, and changes of them while the pipeline runs."""

import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

import psycopg

from harvest_lib.postgres.database import connect
from harvest_lib.postgres.translation import translated
from infra.demo.feeding import Feed, published_flights

TABLES = """
CREATE TABLE flights (
  id bigint PRIMARY KEY, year int NOT NULL, month int NOT NULL, day int NOT NULL, dep_delay numeric(6, 1),
  carrier text NOT NULL, flight int NOT NULL, tailnum text, origin text NOT NULL, dest text NOT NULL,
  distance double precision, time_hour timestamptz NOT NULL
);
CREATE TABLE audit_notes (id bigint PRIMARY KEY, note text NOT NULL);
CREATE SCHEMA copied;
CREATE TABLE copied.flights (
  id bigint PRIMARY KEY, month int NOT NULL, day int NOT NULL, dep_delay numeric(6, 1), carrier text NOT NULL,
  flight int NOT NULL, aircraft text, origin text NOT NULL, dest text NOT NULL, distance double precision,
  time_hour timestamptz NOT NULL
);
"""
COLUMNS = (
    *("id", "year", "month", "day", "dep_delay", "carrier", "flight", "tailnum", "origin", "dest"),
    *("distance", "time_hour"),
)

_LOAD = f"COPY flights ({', '.join(COLUMNS)}) FROM STDIN"
_DELAY = "UPDATE flights SET dep_delay = %s, dest = %s WHERE id = %s"
_CANCEL = "DELETE FROM flights WHERE id = %s"
_NOTE = "INSERT INTO audit_notes SELECT coalesce(max(id), 0) + 1, 'nobody asked for this table' FROM audit_notes"
_INSERT = f"INSERT INTO flights ({', '.join(COLUMNS)}) VALUES ({', '.join(['%s'] * len(COLUMNS))})"  # noqa: S608 - constants
_MOST_IN_ONE = 20
_AIRPORTS = ("ATL", "BOS", "LAX", "MIA", "ORD", "SFO")


def load(dsn: str, rows: int) -> int:
    """Make the tables, insert the first `rows` flights, and return the number of inserted rows."""
    with connect(dsn) as connection, translated():
        connection.execute(TABLES)
        with connection.cursor() as cursor, cursor.copy(_LOAD) as copy:
            for number, flight in enumerate(islice(published_flights(), rows), start=1):
                copy.write_row((number, *(flight[name] for name in COLUMNS[1:])))
        row = connection.execute("SELECT count(*) FROM flights").fetchone()
    return int(str(row[0])) if row else 0


class ChangeFeed(Feed):
    """Makes updates, inserts and deletes, in transactions of one to twenty changes, at `per_second` changes per second.

    It pauses when it has made the number of changes that `allow` permits.
    """

    def __init__(self, dsn: str, *, rows: int, total: int, per_second: float, seed: int) -> None:
        super().__init__("changes", self._make)
        self.made = 0
        """Number of committed changes."""
        self._dsn, self._rows, self._total, self._per_second = dsn, rows, total, per_second
        self._dice = random.Random(seed)  # noqa: S311 - nothing is kept secret by it
        self._allowed = 0

    def allow(self, part: float) -> None:
        """Permit changes up to this fraction of all changes."""
        self._allowed = round(self._total * part)
        self.wake()

    def _make(self) -> Iterator[float | None]:
        with connect(self._dsn) as connection:
            ids, next_id = list(range(1, self._rows + 1)), self._rows + 1
            while self.made < self._total:
                size = min(self._dice.randint(1, _MOST_IN_ONE), self._allowed - self.made)
                if not size:
                    yield None
                    continue
                with connection.transaction():
                    for _ in range(size):
                        next_id = self._change(connection, ids, next_id)
                    connection.execute(_NOTE)
                with connection.transaction(force_rollback=True):
                    connection.execute("UPDATE flights SET dest = 'never' WHERE id = %s", (ids[0],))
                self.made += size
                yield size / self._per_second

    def _change(self, connection: psycopg.Connection[Any], ids: list[int], next_id: int) -> int:
        dice = self._dice
        kind, place = dice.random(), dice.randrange(len(ids))
        if kind < 0.6:  # noqa: PLR2004 - more updates than inserts and deletes, as is usual
            connection.execute(_DELAY, (dice.randint(-100, 9_000) / 10, dice.choice(_AIRPORTS), ids[place]))
        elif kind < 0.8:  # noqa: PLR2004
            ids[place], ids[-1] = ids[-1], ids[place]
            connection.execute(_CANCEL, (ids.pop(),))
        else:
            when = f"2013-12-{dice.randint(1, 31):02} 10:00:00Z"
            extra = (next_id, 2013, 12, 31, None, "XX", next_id % 9_999, None, "JFK", "LAX", 2475.0, when)
            connection.execute(_INSERT, extra)
            ids.append(next_id)
            next_id += 1
        return next_id


def rows_of(dsn: str, table: str) -> dict[int, dict[str, Any]]:
    """Return all rows of a table by id."""
    with connect(dsn) as connection, connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        cursor.execute(psycopg.sql.SQL("SELECT * FROM {}").format(psycopg.sql.Identifier(*table.split("."))))
        return {row["id"]: row for row in cursor}
