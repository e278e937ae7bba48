"""By mark and purge: take the head of the table by writing who has it, delete it at the next poll."""

from uuid import uuid4

from tests.benchmarks.approaches.reader import PAGE, Connection, Row

_MARK = """
UPDATE approaches.marked SET leader_id = %s WHERE id = ANY(ARRAY(
  SELECT id FROM approaches.marked WHERE leader_id IS NULL OR leader_id <> %s ORDER BY id LIMIT %s FOR UPDATE
)) RETURNING id, kafka_key, number, kafka_value
"""

_PURGE = "DELETE FROM approaches.marked WHERE id = ANY(%s)"


class MarkAndPurge:
    """Loses nothing and waits for nobody; writes each record twice more."""

    def __init__(self) -> None:
        self._leader_id = uuid4()
        self._held: list[int] = []

    def poll(self, connection: Connection) -> list[Row]:
        if self._held:
            connection.execute(_PURGE, (self._held,))
        rows = sorted(connection.execute(_MARK, (self._leader_id, self._leader_id, PAGE)).fetchall())
        self._held = [row[0] for row in rows]
        return rows
