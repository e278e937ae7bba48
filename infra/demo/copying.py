"""The same flights once more, for the act that delivers exactly once: from Spark's table into an outbox."""

import queue
import threading
import time

import psycopg
from psycopg import sql

from harvest_lib.database import connect, translated
from harvest_lib.errors import HarvestError
from infra.demo.loading import Month
from infra.demo.place import Place

_COPY = """
INSERT INTO {outbox} (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
SELECT %(topic)s, coalesce(tail_number, carrier || flight), row_to_json(flights)::text,
       ARRAY['event-type', 'batch', 'event-id'], ARRAY['flight', %(batch)s, flight_id::text]
FROM flights WHERE month = %(month)s ORDER BY flight_id
"""
_MONTHS = range(1, 13)


class Copying:
    """A thread that writes an outbox row for each flight that is in Postgres, a transaction per month."""

    writer = "SQL"

    def __init__(self, place: Place) -> None:
        """Prepare; the flights are in the database of `place`."""
        self.months: list[Month] = []
        self.done = False
        self._place = place
        self._came: queue.SimpleQueue[Month | HarvestError | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="copying", daemon=True)

    @property
    def rows(self) -> int:
        """Rows committed so far."""
        return sum(month.rows for month in self.months)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def look(self) -> list[Month]:
        """Return the months committed since the last look. Raises HarvestError when Postgres has refused one."""
        new: list[Month] = []
        while not self._came.empty():
            match self._came.get():
                case None:
                    self.done = True
                case Month() as month:
                    new.append(month)
                case error:
                    raise error
        self.months += new
        return new

    def stop(self) -> None:
        """Let the month that is being written be the last."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            with connect(self._place.dsn) as connection:
                for month in _MONTHS:
                    if self._stopping.is_set():
                        return
                    self._came.put(self._copied(connection, month))
        except HarvestError as error:
            self._came.put(error)
        else:
            self._came.put(None)

    def _copied(self, connection: psycopg.Connection[tuple[object, ...]], month: int) -> Month:
        batch, began = f"flights-2013-{month:02}", time.monotonic()
        statement = sql.SQL(_COPY).format(outbox=sql.Identifier(self._place.outbox))
        with translated():
            done = connection.execute(statement, {"topic": self._place.topic, "batch": batch, "month": month})
        return Month(batch=batch, rows=done.rowcount, seconds=time.monotonic() - began, at=time.time())
