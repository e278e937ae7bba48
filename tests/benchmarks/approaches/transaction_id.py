"""By transaction id, then position, below the oldest open transaction."""

from tests.benchmarks.approaches.reader import PAGE, Connection, Row

_POLL = """
SELECT id, kafka_key, number, kafka_value, transaction_id FROM approaches.outbox
WHERE (transaction_id, id) > (%s::xid8, %s) AND transaction_id < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY transaction_id, id LIMIT %s
"""


class TransactionIdAndPosition:
    """Loses nothing; sends a key's records as their transactions began, and nothing newer than the oldest open one."""

    def __init__(self) -> None:
        self._transaction_id, self._position = "0", 0

    def poll(self, connection: Connection) -> list[Row]:
        rows = connection.execute(_POLL, (self._transaction_id, self._position, PAGE)).fetchall()
        if rows:
            self._transaction_id, self._position = rows[-1][4], rows[-1][0]
        return rows
