"""By time with a grace period: ask again for the last while, and leave out what was read before."""

from datetime import UTC, datetime, timedelta

from tests.benchmarks.approaches.reader import PAGE, Connection, Row

_POLL = """
SELECT id, kafka_key, number, kafka_value, create_time FROM approaches.outbox
WHERE create_time >= %s AND id <> ALL(%s) ORDER BY create_time, id LIMIT %s
"""


class GracePeriod:
    """Loses what commits later than the grace period after it was written; reads the period again at each poll."""

    def __init__(self, grace_seconds: float = 0.5) -> None:
        self._grace = timedelta(seconds=grace_seconds)
        self._since = datetime(1970, 1, 1, tzinfo=UTC)
        self._seen: dict[int, datetime] = {}

    def poll(self, connection: Connection) -> list[Row]:
        rows = connection.execute(_POLL, (self._since, list(self._seen), PAGE)).fetchall()
        if rows:
            self._since = max(self._since, rows[-1][4] - self._grace)
            self._seen |= {row[0]: row[4] for row in rows}
            self._seen = {id_: time for id_, time in self._seen.items() if time >= self._since}
        return rows
