"""By position: remember the highest id read, ask for what is above."""

from tests.benchmarks.approaches.reader import PAGE, Connection, Row

_POLL = """
SELECT id, kafka_key, number, kafka_value FROM approaches.outbox WHERE id > %s ORDER BY id LIMIT %s
"""

_POLL_UNDER_XMIN = """
SELECT id, kafka_key, number, kafka_value FROM approaches.outbox
WHERE id > %s AND transaction_id < pg_snapshot_xmin(pg_current_snapshot()) ORDER BY id LIMIT %s
"""


class PositionOnly:
    """Loses whatever commits after a higher id was read."""

    _query = _POLL

    def __init__(self) -> None:
        self._position = 0

    def poll(self, connection: Connection) -> list[Row]:
        rows = connection.execute(self._query, (self._position, PAGE)).fetchall()
        if rows:
            self._position = rows[-1][0]
        return rows


class PositionUnderXmin(PositionOnly):
    """The same, of transactions older than any still open: loses a lower id that an open one has taken meanwhile."""

    _query = _POLL_UNDER_XMIN
