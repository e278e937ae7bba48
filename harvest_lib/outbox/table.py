"""The outbox table by name: its definition, the check that it is one, and what waits in it."""

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.database import translated
from harvest_lib.errors import DatabaseAccessDenied, OutboxTableError

_CREATE = """\
CREATE TABLE IF NOT EXISTS {table} (
  id                  BIGSERIAL PRIMARY KEY,
  create_time         TIMESTAMP WITH TIME ZONE NOT NULL,
  kafka_topic         VARCHAR(249) NOT NULL,
  kafka_key           VARCHAR(100) NOT NULL,
  kafka_value         VARCHAR(10000),
  kafka_header_keys   TEXT[] NOT NULL,
  kafka_header_values TEXT[] NOT NULL,
  leader_id           UUID
)"""

_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, NULL)
FROM pg_attribute a WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
"""

_PRIVILEGES = """
SELECT has_table_privilege(to_regclass(%(table)s), 'SELECT') AND has_table_privilege(to_regclass(%(table)s), 'DELETE')
   AND has_column_privilege(to_regclass(%(table)s), 'leader_id', 'UPDATE'), current_user
"""

_CACHE = """
SELECT seqrelid::regclass::text, seqcache FROM pg_sequence
WHERE seqrelid = pg_get_serial_sequence(%s, 'id')::regclass AND seqcache > 1
"""

_BACKLOG = """
SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(create_time)), 0)::float8,
       count(*) FILTER (WHERE leader_id IS NOT NULL)
FROM {table}
"""

_PARKED_SUFFIX = "_parked"
_LONGEST_NAME_BYTES = 63

_EXPECTED = {
    "id": {"bigint", "integer"},
    "create_time": {"timestamp with time zone"},
    "kafka_topic": {"character varying", "text"},
    "kafka_key": {"character varying", "text"},
    "kafka_value": {"character varying", "text"},
    "kafka_header_keys": {"text[]"},
    "kafka_header_values": {"text[]"},
    "leader_id": {"uuid"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What waits in an outbox: records in all, the age of the oldest in seconds, and how many a leader has marked."""

    records: int
    oldest_age_seconds: float
    marked: int


@dataclass(frozen=True, slots=True)
class OutboxTable:
    """A table's name, as one or two identifiers; whatever they hold, they are only ever quoted, never interpolated."""

    parts: tuple[str, ...]

    @classmethod
    def parse(cls, name: str) -> "OutboxTable":
        """Read `table` or `schema.table`."""
        return cls(tuple(name.split(".", 1)))

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(*self.parts)

    @property
    def parked(self) -> "OutboxTable":
        """The name of the table beside this one that takes parked records."""
        last = self.parts[-1] + _PARKED_SUFFIX
        if len(last.encode()) > _LONGEST_NAME_BYTES:
            raise OutboxTableError(
                f"the name of {self} leaves no room for that of its parked records",
                evidence=f"{last!r} has {len(last.encode())} bytes, Postgres would cut it off after "
                f"{_LONGEST_NAME_BYTES}",
                next_step="rename the outbox to at most "
                f"{_LONGEST_NAME_BYTES - len(_PARKED_SUFFIX)} bytes, or park nothing: `parking: stop`",
            )
        return OutboxTable((*self.parts[:-1], last))

    def create_statement(self) -> sql.Composed:
        """Return the DDL: goharvest's table, unchanged."""
        return sql.SQL(_CREATE).format(table=self.identifier)

    def create(self, connection: psycopg.Connection[Any]) -> bool:
        """Create the table unless it is there; tell whether it was created."""
        with translated():
            existed = bool(self._columns(connection))
            connection.execute(self.create_statement())
        return not existed

    def check_columns(self, connection: psycopg.Connection[Any]) -> None:
        """Raise OutboxTableError if there is no such table, or it is not an outbox."""
        with translated():
            columns = self._columns(connection)
        if not columns:
            raise OutboxTableError(
                f"there is no table {self} in this database",
                evidence=f"database {connection.info.dbname!r}, user {connection.info.user!r}",
                next_step="create it with `harvest init`, or name another with `outboxTable`",
            )
        wrong = [
            f"{name} is {columns[name]}, not {' or '.join(sorted(types))}" if name in columns else f"{name} is missing"
            for name, types in _EXPECTED.items()
            if columns.get(name) not in types
        ]
        if wrong:
            raise OutboxTableError(
                f"the table {self} is not an outbox table",
                evidence="; ".join(wrong),
                next_step="compare it with `harvest init --print`, or name another with `outboxTable`",
            )

    def check(self, connection: psycopg.Connection[Any]) -> None:
        """Raise OutboxTableError or DatabaseAccessDenied if the table cannot be harvested."""
        self.check_columns(connection)
        with translated():
            cached = connection.execute(_CACHE, (self._quoted(connection),)).fetchone()
        if cached is not None:
            raise OutboxTableError(
                f"the sequence of {self} hands out ids in lots, so that they do not follow the order of commits",
                evidence=f"{cached[0]} has CACHE {cached[1]}",
                next_step=f"ALTER SEQUENCE {cached[0]} CACHE 1",
            )
        with translated():
            answer = connection.execute(_PRIVILEGES, {"table": self._quoted(connection)}).fetchone()
        if answer is not None and not answer[0]:
            raise DatabaseAccessDenied(
                f"the user {answer[1]!r} may not harvest {self}",
                evidence="SELECT, DELETE and UPDATE (leader_id) are needed, at least one is missing",
                next_step=f'GRANT SELECT, DELETE, UPDATE (leader_id) ON {self} TO "{answer[1]}"',
            )

    def backlog(self, connection: psycopg.Connection[Any]) -> Backlog:
        """Count what waits. Reads the whole table: for people, not for the hot path."""
        with translated():
            row = connection.execute(sql.SQL(_BACKLOG).format(table=self.identifier)).fetchone()
        records, age, marked = row if row is not None else (0, 0.0, 0)
        return Backlog(records=records, oldest_age_seconds=max(0.0, age), marked=marked)

    def _columns(self, connection: psycopg.Connection[Any]) -> dict[str, str]:
        return dict(connection.execute(_COLUMNS, (self._quoted(connection),)).fetchall())

    def _quoted(self, connection: psycopg.Connection[Any]) -> str:
        return self.identifier.as_string(connection)

    def __str__(self) -> str:
        return self.identifier.as_string(None)
