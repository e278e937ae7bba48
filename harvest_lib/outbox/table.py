"""The outbox table, referred to by its name: the names of its side tables, its DDL, and checks of its columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import psycopg
from psycopg import sql

from harvest_lib.errors import DatabaseAccessDenied, OutboxTableError
from harvest_lib.outbox import column_types
from harvest_lib.outbox import native_table_queries as queries
from harvest_lib.outbox.column_types import FoundColumn
from harvest_lib.outbox.ddl_lock import lock_ddl
from harvest_lib.outbox.durable import require_durable
from harvest_lib.outbox.id_sequences import IdSequences
from harvest_lib.postgres.table_names import name_parts
from harvest_lib.postgres.translation import translated

Kind = Literal["goharvest", "native"]
ValueType = Literal["text", "bytea"]
LEDGER_SUFFIX = "_batches"
Beside = Literal["parked", "parked_ids", "segments", "subscriptions"]

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
SELECT a.attname, format_type(a.atttypid, NULL), a.attnotnull, a.atthasdef
FROM pg_attribute a WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
"""

_PRIVILEGES = """
SELECT has_table_privilege(to_regclass(%(table)s), 'SELECT') AND has_table_privilege(to_regclass(%(table)s), 'DELETE')
   AND has_column_privilege(to_regclass(%(table)s), 'leader_id', 'UPDATE'), current_user
"""

# Without USAGE on a schema of the search path, Postgres ignores the tables in it, as if they did not exist.
_HIDDEN = """
SELECT quote_ident(n.nspname), current_user FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relname = %s AND NOT has_schema_privilege(n.oid, 'USAGE') AND n.nspname IN (
  SELECT CASE name WHEN '$user' THEN current_user ELSE name END
  FROM unnest(string_to_array(current_setting('search_path'), ',')) AS path, trim(BOTH '" ' FROM path) AS name
)
"""

LONGEST_NAME_BYTES = 63

_NEVER_NULL = ("id", "kafka_topic", "kafka_header_keys", "kafka_header_values")
"""Columns that must be NOT NULL: a record with a null in any of them can be neither delivered nor parked."""


@dataclass(frozen=True, slots=True)
class OutboxTable:
    """The name of a table, with or without its schema. Statements always contain the name as a quoted identifier."""

    parts: tuple[str, ...]

    @classmethod
    def parse(cls, name: str) -> "OutboxTable":
        """Parse `table` or `schema.table`. A schema in double quotes may contain dots, as in SQL: `"my.app".outbox`."""
        return cls(name_parts(name))

    @property
    def identifier(self) -> sql.Identifier:
        """The quoted name for a statement of `psycopg.sql`."""
        return sql.Identifier(*self.parts)

    @property
    def parked(self) -> "OutboxTable":
        """The name of the side table for parked records."""
        return self._beside("_parked", "its parked records", ", or park nothing: `parking: stop`")

    @property
    def subscriptions(self) -> "OutboxTable":
        """The name of the side table for the progress of each subscription."""
        return self._beside("_subscriptions", "its subscriptions")

    @property
    def segments(self) -> "OutboxTable":
        """The name of the side table that lists passed and closed segments."""
        return self._beside("_segments", "its segments")

    @property
    def archived(self) -> "OutboxTable":
        """The name of the side table that lists archived segments."""
        return self._beside("_archived", "its archived segments")

    @property
    def replays(self) -> "OutboxTable":
        """The name of the side table that lists subscriptions filled by a replay."""
        return self._beside("_replays", "its replays")

    @property
    def parked_ids(self) -> "OutboxTable":
        """The name of the side table that lists the parked ids of subscriptions."""
        return self._beside("_parked_ids", "its parked ids")

    @property
    def batches(self) -> "OutboxTable":
        """The name of the ledger of Spark's batches: of the outbox for records alone, else of the business table."""
        return self._beside(LEDGER_SUFFIX, "Spark's batches")

    def _beside(self, suffix: str, whose: str, otherwise: str = "") -> "OutboxTable":
        last = self.parts[-1] + suffix
        if len(last.encode()) > LONGEST_NAME_BYTES:
            raise OutboxTableError(
                f"the name of {self} is too long for the name of the table of {whose}",
                evidence=f"{last!r} has {len(last.encode())} bytes, Postgres would cut it off after "
                f"{LONGEST_NAME_BYTES}",
                next_step=f"rename the outbox to at most {LONGEST_NAME_BYTES - len(suffix)} bytes{otherwise}",
            )
        return OutboxTable((*self.parts[:-1], last))

    def refuse_hidden(self, connection: psycopg.Connection[Any]) -> None:
        """Raise DatabaseAccessDenied if the table exists in a schema of the search path that this role may not use."""
        if len(self.parts) > 1:
            return  # for a name with a schema, Postgres itself reports the missing privilege
        with translated():
            row = connection.execute(_HIDDEN, (self.parts[-1],)).fetchone()
        if row is not None:
            raise DatabaseAccessDenied(
                f"the user {row[1]!r} may not use the schema of {self}",
                evidence=f"permission denied for schema {row[0]}: it has the table, and the user has no USAGE",
                next_step=f"GRANT USAGE ON SCHEMA {row[0]} TO {sql.Identifier(row[1]).as_string(None)}",
            )

    def beside(self, connection: psycopg.Connection[Any], name: Beside) -> "OutboxTable | None":
        """Return a side table if it exists; None if it does not exist, or if its name would be too long."""
        if not self.has_room_for(name):
            return None
        table: OutboxTable = getattr(self, name)
        return table if table.exists(connection) else None

    def has_room_for(self, name: Beside) -> bool:
        """Return False if the name of a side table would be too long."""
        try:
            getattr(self, name)
        except OutboxTableError:
            return False
        return True

    def exists(self, connection: psycopg.Connection[Any]) -> bool:
        """Return True if a table of this name exists."""
        with translated():
            return connection.execute(queries.PLACE, (str(self),)).fetchone() is not None

    def placed(self, connection: psycopg.Connection[Any]) -> "OutboxTable":
        """Return the table's name with its schema, which the search path determines. Raises OutboxTableError if the
        table does not exist."""
        with translated():
            row = connection.execute(queries.PLACE, (str(self),)).fetchone()
        if row is None:
            raise self._absent(connection)
        return OutboxTable((row[0], row[1]))

    def kind(self, connection: psycopg.Connection[Any]) -> Kind:
        """Return the layout of the table, `goharvest` or `native`. Raises OutboxTableError for a missing table, and for
        a native table whose `transaction_id` has another type. Raises DatabaseAccessDenied for a table hidden from this
        role."""
        with translated():
            row = connection.execute(queries.KIND, (str(self),)).fetchone()
        if row is None:
            raise self._absent(connection)
        if not row[0] and self._is_damaged(connection, self._columns(connection)):
            self.check_columns(connection)
        return "native" if row[0] else "goharvest"

    def _is_damaged(self, connection: psycopg.Connection[Any], columns: Mapping[str, FoundColumn]) -> bool:
        """Return True for a native table whose `transaction_id` has another type than xid8. Such a table must not be
        mistaken for goharvest's table, whose records are deleted after their delivery."""
        kind = columns["transaction_id"].type if "transaction_id" in columns else "xid8"
        return kind != "xid8" and self.beside(connection, "segments") is not None

    def value_type(self, connection: psycopg.Connection[Any]) -> ValueType:
        """Return the type of the column of values, `text` (for VARCHAR too) or `bytea`. Raises OutboxTableError if the
        column does not exist."""
        with translated():
            row = connection.execute(queries.VALUE_TYPE, (str(self),)).fetchone()
        if row is None:
            raise self._absent(connection)
        return "bytea" if row[0] == "bytea" else "text"

    def create_statement(self) -> sql.Composed:
        """Return the CREATE TABLE statement of goharvest's table, as goharvest documents it."""
        return sql.SQL(_CREATE).format(table=self.identifier)

    def create(self, connection: psycopg.Connection[Any]) -> bool:
        """Create the table, with goharvest's layout, unless it exists. Return True if it was created."""
        if self._columns(connection):
            return False
        with translated(), connection.transaction():
            lock_ddl(connection, str(self))
            existed = bool(self._columns(connection))
            connection.execute(self.create_statement())
        return not existed

    def check_columns(self, connection: psycopg.Connection[Any]) -> Kind:
        """Check the types of the columns and return the layout. Raises OutboxTableError if the table does not exist or
        is not an outbox."""
        columns = self._columns(connection)
        is_native = self._is_damaged(connection, columns) or self.kind(connection) == "native"
        expected = column_types.NATIVE if is_native else column_types.GOHARVEST
        missing = [name for name in expected if name not in columns]
        wrong = column_types.wrong_types(columns, expected)
        if missing or wrong:
            evidence = [f"{name} is missing" for name in missing]
            evidence += [f"{each} is {columns[each].type}, not {column_types.shown(expected[each])}" for each in wrong]
            remedy = None if missing else column_types.alter(self.identifier, columns, expected, is_native=is_native)
            raise OutboxTableError(
                f"the table {self} is not an outbox table",
                evidence="; ".join(evidence),
                next_step=remedy or "compare it with `harvest init --print`, or name another with `outboxTable`",
            )
        self._refuse_nullable([name for name in _NEVER_NULL if not columns[name].never_null])
        return "native" if is_native else "goharvest"

    def _refuse_nullable(self, names: Sequence[str]) -> None:
        if not names:
            return
        clauses = [sql.SQL("ALTER COLUMN {} SET NOT NULL").format(sql.Identifier(name)) for name in names]
        statement = sql.SQL("ALTER TABLE {} {}").format(self.identifier, sql.SQL(", ").join(clauses))
        raise OutboxTableError(
            f"the table {self} allows records without {', '.join(names)}, which cannot be delivered",
            evidence="these columns are not NOT NULL",
            next_step=f"as the owner, once no row has a null there: {statement.as_string(None)}",
        )

    def check_native(self, connection: psycopg.Connection[Any]) -> None:
        """Raise OutboxTableError unless this is a native table. Subscriptions need a native table."""
        if self.check_columns(connection) != "native":
            raise OutboxTableError(
                f"the table {self} does not name the transaction that wrote a record",
                evidence="it has goharvest's layout: there is no column transaction_id of type xid8, or the table is "
                "not partitioned",
                next_step="turn it into the native table with `harvest migrate`, which stops no writer, or choose "
                "`source: mark`",
            )

    def check(self, connection: psycopg.Connection[Any]) -> None:
        """Raise OutboxTableError or DatabaseAccessDenied if this role cannot mark and purge the table's rows."""
        self.check_columns(connection)
        self.check_sequence(connection)
        require_durable(connection, str(self))
        with translated():
            answer = connection.execute(_PRIVILEGES, {"table": str(self)}).fetchone()
        if answer is not None and not answer[0]:
            raise DatabaseAccessDenied(
                f"the user {answer[1]!r} may not harvest {self}",
                evidence="SELECT, DELETE and UPDATE (leader_id) are needed, at least one is missing",
                next_step=f"GRANT SELECT, DELETE, UPDATE (leader_id) ON {self} "
                f"TO {sql.Identifier(answer[1]).as_string(None)}",
            )

    def check_sequence(self, connection: psycopg.Connection[Any], column: str = "id") -> None:
        """Raise OutboxTableError if the sequence of `column` reserves ids in blocks or repeats ids."""
        IdSequences(str(self), column).check(connection)

    def _columns(self, connection: psycopg.Connection[Any]) -> dict[str, FoundColumn]:
        """Return the columns by name; an empty dict if the table does not exist."""
        with translated():
            found = connection.execute(_COLUMNS, (str(self),)).fetchall()
        return {
            name: FoundColumn(type=kind, never_null=strict, has_default=has_default)
            for name, kind, strict, has_default in found
        }

    def _absent(self, connection: psycopg.Connection[Any]) -> OutboxTableError:
        self.refuse_hidden(connection)
        return OutboxTableError(
            f"there is no table {self} in this database",
            evidence=f"database {connection.info.dbname!r}, user {connection.info.user!r}",
            next_step="create it with `harvest init`, or name another with `outboxTable`",
        )

    def __str__(self) -> str:
        return self.identifier.as_string(None)
