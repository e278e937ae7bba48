"""By snapshot: what is visible in this snapshot and was not in the one before, in order of id."""

from tests.benchmarks.approaches.reader import PAGE, Connection, Row

_LOOK = """
SELECT pg_current_snapshot()::text, (
  SELECT min(id + 0) FROM approaches.outbox
  WHERE transaction_id >= pg_snapshot_xmax(%(prev)s::pg_snapshot)
     OR transaction_id = ANY(ARRAY(SELECT pg_snapshot_xip(%(prev)s::pg_snapshot))))
"""  # `id + 0` keeps the planner from walking the primary key in search of the lowest

_PAGE = """
SELECT id, kafka_key, number, kafka_value FROM approaches.outbox
WHERE id > %(after)s AND pg_visible_in_snapshot(transaction_id, %(cur)s::pg_snapshot)
  AND NOT pg_visible_in_snapshot(transaction_id, %(prev)s::pg_snapshot)
ORDER BY id LIMIT %(page)s
"""


class Snapshot:
    """Loses nothing and waits for nobody; a key's records come as they committed if writers lock the key first."""

    def __init__(self) -> None:
        self._prev, self._cur, self._after = "1:1:", "", 0

    def poll(self, connection: Connection) -> list[Row]:
        if not self._cur:
            looked = connection.execute(_LOOK, {"prev": self._prev}).fetchone()
            cur, lowest = looked or ("", None)
            if lowest is None:
                return []
            self._cur, self._after = cur, lowest - 1
        between = {"after": self._after, "cur": self._cur, "prev": self._prev, "page": PAGE}
        rows = connection.execute(_PAGE, between).fetchall()
        if len(rows) == PAGE:
            self._after = rows[-1][0]
        else:
            self._prev, self._cur = self._cur, ""
        return rows
