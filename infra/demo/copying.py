"""Copies the flights from the table that Spark wrote into a native outbox, for the act that delivers exactly once."""

import time
from collections.abc import Iterator

from psycopg import sql

from harvest_lib.postgres.database import connect
from harvest_lib.postgres.translation import translated
from infra.demo.feeding import Feed
from infra.demo.loading import Month
from infra.demo.place import Place

_COPY = """
INSERT INTO {outbox} (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
SELECT %(topic)s, coalesce(tail_number, carrier || flight), row_to_json(flights)::text,
       ARRAY['event-type', 'batch', 'event-id'], ARRAY['flight', %(batch)s, flight_id::text]
FROM flights WHERE month = %(month)s ORDER BY flight_id
"""
_MONTHS = range(1, 13)


class Copying(Feed):
    """A thread that writes an outbox row for each flight in Postgres, in one transaction per month."""

    writer = "SQL"

    def __init__(self, place: Place) -> None:
        """Prepare. The database of `place` must have the flights."""
        super().__init__("copying", self._copy)
        self.months: list[Month] = []
        self._copied: list[Month] = []
        self._place = place

    @property
    def rows(self) -> int:
        """Number of committed rows at the last `look`."""
        return sum(month.rows for month in self.months)

    def look(self) -> list[Month]:
        """Return the months committed since the last call. Raises HarvestError if Postgres has refused a month."""
        super().look()
        new = self._copied[len(self.months) :]
        self.months += new
        return new

    def _copy(self) -> Iterator[float]:
        statement = sql.SQL(_COPY).format(outbox=sql.Identifier(self._place.outbox))
        with connect(self._place.dsn) as connection:
            for number in _MONTHS:
                batch, began = f"flights-2013-{number:02}", time.monotonic()
                with translated():
                    done = connection.execute(statement, {"topic": self._place.topic, "batch": batch, "month": number})
                seconds = time.monotonic() - began
                self._copied.append(Month(batch=batch, rows=done.rowcount, seconds=seconds, at=time.time()))
                yield 0.0
