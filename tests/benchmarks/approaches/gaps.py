"""By position, halting at gaps: an id that is missing may be rolled back or not committed yet; time decides."""

import time

from tests.benchmarks.approaches.reader import PAGE, Connection, Row

_POLL = """
SELECT id, kafka_key, number, kafka_value FROM approaches.outbox WHERE id > %s ORDER BY id LIMIT %s
"""


class GapDetection:
    """Waits at each gap, once for all gaps of a page; loses what commits after its id was given up."""

    def __init__(self, patience_seconds: float = 0.5) -> None:
        self._patience_seconds = patience_seconds
        self._position = 0
        self._missing_since: dict[int, float] = {}

    def poll(self, connection: Connection) -> list[Row]:
        rows, now = connection.execute(_POLL, (self._position, PAGE)).fetchall(), time.monotonic()
        expected, ready = self._position + 1, 0
        waiting: dict[int, float] = {}
        for row in rows:
            for missing in range(expected, row[0]):
                since = self._missing_since.get(missing, now)
                if waiting or now - since < self._patience_seconds:
                    waiting[missing] = since
            expected = row[0] + 1
            ready += not waiting
        if ready:
            self._position = rows[ready - 1][0]
        self._missing_since = waiting
        return rows[:ready]
