"""Parking records as a harvester does, for the tests of what operators do with them."""

from psycopg import sql

from harvest_lib.outbox.parking.parked_row import columns_statement, record_of
from harvest_lib.postgres.database import in_statement

_MOVE = """
WITH moved AS (
  DELETE FROM {table} AS o WHERE id = %(id)s
  RETURNING o.id, o.kafka_topic, o.kafka_key, {row} || '{{"leader_id": null}}' AS record
)
INSERT INTO {parked} (id, kafka_topic, kafka_key, reason, held, record)
SELECT id, kafka_topic, kafka_key, %(reason)s, %(held)s, record FROM moved
"""


class Parking:
    """The harvester's side of an outbox's parked records."""

    def __init__(self, connection, parked):
        self.connection = connection
        self._columns = columns_statement(parked.outbox.identifier)
        self._names = {
            "table": in_statement(parked.outbox.identifier),
            "parked": in_statement(parked.table.identifier),
        }

    def lock(self):
        self.execute("LOCK TABLE {parked} IN SHARE ROW EXCLUSIVE MODE")

    def move(self, record_id, *, held=False, reason="refused"):
        self._names["row"] = record_of(self.connection.execute(self._columns).fetchall())
        self.execute(_MOVE, id=record_id, held=held, reason=f"held behind {held}" if held else reason)

    def execute(self, statement, **values):
        values = {name: bool(value) if name == "held" else value for name, value in values.items()}
        return self.connection.execute(sql.SQL(statement).format(**self._names), values)

    def ids(self):
        """Return the ids in the outbox, those parked and those held."""
        held = dict(self.execute("SELECT id, held FROM {parked} ORDER BY id").fetchall())
        waiting = [record_id for (record_id,) in self.execute("SELECT id FROM {table} ORDER BY id")]
        return waiting, [each for each in held if not held[each]], [each for each in held if held[each]]
