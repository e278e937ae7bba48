"""The flights of 2013 on their way into an outbox, a thousand to a transaction, on a thread of their own."""

import csv
import io
import json
import threading
import zipfile
from collections import Counter
from collections.abc import Iterator
from itertools import islice

from harvest_lib.database import connect, translated
from infra.demo.place import Place
from spark_jobs.example_flights.source import published_source

_BATCH = 1_000
_COPY = """
COPY outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values) FROM STDIN
"""
_SHOWN = ("origin", "dest", "carrier", "flight", "time_hour")


class Flights:
    """Loads all of them: slowly, as long as nobody calls `load_rest`."""

    def __init__(self, place: Place, *, per_second: int) -> None:
        self.by_key: Counter[str] = Counter()
        """Committed flights, by key."""
        self._error: BaseException | None = None
        self._place, self._pause = place, _BATCH / per_second
        self._unthrottled, self._ending = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="flights", daemon=True)

    def committed(self) -> int:
        """Return the number committed. Raises the error that stopped the others."""
        if self._error is not None:
            raise self._error
        return self.by_key.total()

    @property
    def done(self) -> bool:
        """True if nothing more comes."""
        return not self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def load_rest(self) -> None:
        """Load the rest without pauses."""
        self._unthrottled.set()

    def stop(self) -> None:
        """Load no more."""
        self._ending.set()
        self._unthrottled.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with connect(self._place.dsn) as connection:
                flights = _flights()
                while batch := list(islice(flights, _BATCH)):
                    with translated(), connection.cursor() as cursor, cursor.copy(_COPY) as rows:
                        for key, value in batch:
                            rows.write_row(("now", self._place.topic, key, value, [], []))
                    self.by_key.update(key for key, _ in batch)
                    self._unthrottled.wait(self._pause)
                    if self._ending.is_set():
                        return
        except BaseException as error:  # noqa: BLE001 - the caller that waits for the flights raises it
            self._error = error


def _flights() -> Iterator[tuple[str, str]]:
    """Return key and value: the aircraft, or where nobody knows it, carrier and number of the flight."""
    with zipfile.ZipFile(published_source()) as archive, archive.open(archive.namelist()[0]) as packed:
        for row in csv.DictReader(io.TextIOWrapper(packed, encoding="utf-8")):
            aircraft = row["tailnum"]
            key = aircraft if aircraft and aircraft != "NA" else row["carrier"] + row["flight"]
            yield key, json.dumps({name: row[name] for name in _SHOWN})
