"""A destination table: its columns, the columns that identify a row, and the statements that write rows.

Each transaction reads the table's definition again, under a lock that blocks changes of the definition. Without the
lock, a column could get another type, and a cast to the former type would round or truncate values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg import sql

from harvest_lib.errors import AdaptorError, MessageRefused
from harvest_lib.pipeline.adaptors.postgres.catalog import refusals, split
from harvest_lib.pipeline.adaptors.postgres.money import columns_of_money, is_carried
from harvest_lib.pipeline.adaptors.postgres.options import PostgresWriting
from harvest_lib.pipeline.adaptors.postgres.values import text_of
from harvest_lib.pipeline.message import Op, PipelineMessage

_LOCK = "SELECT FROM {} WHERE false"

# The modifier -1 returns a type without its length; NULL would return `character` and `bit`, whose length is 1.
# `family` is the topmost table of which this table is a partition or a child: tables with the same family share rows.
# User-defined types (oids from 16384 on) may contain money.
_COLUMNS = """
WITH RECURSIVE found AS (
  SELECT c.oid FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
  WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')
    AND NOT EXISTS (SELECT FROM pg_rewrite AS r WHERE r.ev_class = c.oid)
), above AS (
  SELECT oid FROM found
  UNION SELECT i.inhparent FROM above JOIN pg_inherits AS i ON i.inhrelid = above.oid
), family AS (
  SELECT min(oid::int8) AS oid FROM above WHERE NOT EXISTS (SELECT FROM pg_inherits AS i WHERE i.inhrelid = above.oid)
)
SELECT a.attname::text, format_type(a.atttypid, -1), a.attgenerated <> '',
       a.attnotnull AND NOT a.atthasdef AND a.attidentity = '', a.attidentity = 'a',
       CASE WHEN a.attcollation <> t.typcollation
            THEN quote_ident(s.nspname) || '.' || quote_ident(o.collname) ELSE '' END,
       coalesce(o.collisdeterministic, true), family.oid, found.oid::int8,
       a.atttypid >= 16384 OR a.atttypid IN ('money'::regtype, 'money[]'::regtype)
FROM family, found JOIN pg_attribute AS a ON a.attrelid = found.oid JOIN pg_type AS t ON t.oid = a.atttypid
LEFT JOIN pg_collation AS o ON o.oid = a.attcollation LEFT JOIN pg_namespace AS s ON s.oid = o.collnamespace
WHERE a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""

_OTHER = """
SELECT CASE WHEN c.relkind = 'v' THEN 'a view' WHEN c.relkind = 'm' THEN 'a materialized view'
  WHEN c.relkind = 'f' THEN 'a foreign table' WHEN c.relkind NOT IN ('r', 'p') THEN 'no table'
  WHEN EXISTS (SELECT FROM pg_rewrite AS r WHERE r.ev_class = c.oid) THEN 'a table with rules' END
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s
"""

_KEY = """
SELECT a.attname::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_index AS i ON i.indrelid = c.oid AND i.indisprimary
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
WHERE n.nspname = %s AND c.relname = %s ORDER BY array_position(i.indkey::int2[], a.attnum)
"""

_INSERT = """
INSERT INTO {table} AS t ({columns}) OVERRIDING SYSTEM VALUE SELECT {casts} FROM unnest({arrays}) AS v ({columns})
ON CONFLICT ({key}) DO {action}
"""
_UPDATE = "UPDATE {table} AS t SET {changes} FROM unnest({arrays}) AS v ({columns}) WHERE {matches}"
_DELETE = "DELETE FROM {table} AS t USING unnest({arrays}) AS v ({columns}) WHERE {matches}"
_RANK = """
SELECT dense_rank() OVER (ORDER BY {casts}) FROM unnest({arrays}) WITH ORDINALITY AS v ({columns}, "harvest place")
ORDER BY "harvest place"
"""

_PLACE = "harvest place"
_WHOLE = frozenset({"smallint", "integer", "bigint"})
_TEXT = frozenset({"text", "character varying"})

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A destination table. `types` has the type of each column that can be written. `key`: the columns that identify a
    row. `required`: columns that an insert must contain. `fixed`: columns that are never updated. `generated`: columns
    that Postgres computes from other columns."""

    name: tuple[str, str]
    types: Mapping[str, str]
    key: Sequence[str]
    required: frozenset[str]
    fixed: frozenset[str]
    generated: frozenset[str]
    collations: Mapping[str, str]
    """Collations, quoted as SQL, of columns whose collation is not the default of their type."""
    by_bytes: frozenset[str]
    """Columns in which texts with different bytes are different values: their collation is deterministic."""
    money: Mapping[str, bool]
    """Columns that contain money, as `columns_of_money` returns them."""
    family: int
    """A number that is the same for tables which may share rows (partitions, parents and children)."""

    def __str__(self) -> str:
        return ".".join(self.name)

    def insert(self, columns: Sequence[str]) -> sql.Composed:
        changed = [each for each in columns if each not in self.key and each not in self.fixed]
        sets = [sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(each)) for each in changed]
        action = sql.SQL("UPDATE SET ") + sql.SQL(", ").join(sets) if sets else sql.SQL("NOTHING")
        return self._fill(_INSERT, columns, key=_listed(self.key), action=action)

    def update(self, columns: Sequence[str]) -> sql.Composed:
        changed = [each for each in columns if each not in self.key and each not in self.fixed]
        sets = [sql.SQL("{} = {}").format(sql.Identifier(each), self._cast(each)) for each in changed or self.key]
        return self._fill(_UPDATE, columns, changes=sql.SQL(", ").join(sets))

    def delete(self) -> sql.Composed:
        return self._fill(_DELETE, self.key)

    def ranks(self) -> sql.Composed:
        """Return the statement that assigns a number to each key. Keys that Postgres considers equal get the same
        number."""
        order = [
            sql.SQL("{} COLLATE {}").format(self._cast(each), sql.SQL(self.collations[each]))
            if each in self.collations
            else self._cast(each)
            for each in self.key
        ]
        return self._fill(_RANK, self.key, casts=sql.SQL(", ").join(order))

    def key_of(self, message: PipelineMessage) -> Key:
        """Return the key of a message's row, as text. Raises MessageRefused if the message does not fit the table."""
        data, known = message.data, self.types.keys() | self.generated
        unknown = [each for each in data if each not in known] if message.op is not Op.DELETE else []
        missing = [each for each in self.key if data.get(each) is None]
        foreign = [each for each in data if self.money.get(each) and not is_carried(data[each])]
        if not unknown and not missing and not foreign:
            return tuple(text_of(data[each], self.types[each]) for each in self.key)
        if unknown:
            what = f"has no column {', '.join(unknown)}"
        elif missing:
            what = f"needs {', '.join(missing)} to identify a row"
        else:
            what = f"takes for {', '.join(foreign)} (money) a number with two decimals, or text such as `$1,234.50`"
        raise MessageRefused(
            f"the table {self} does not take message {message.offset}",
            evidence=f"namespace {message.namespace}, {message.op.name}: the table {what}",
            next_step="add the column, or have a transform (`omit`, `pick`, `rename`, `call`) make the message fit",
        )

    def is_plain(self, message: PipelineMessage) -> bool:
        """Return True if the message's key has only one possible text, so that equal keys always have equal texts."""
        return all(self._is_plain(each, message.data[each]) for each in self.key)

    def _is_plain(self, column: str, value: object) -> bool:
        of_type = self.types[column]
        if of_type in _WHOLE:
            return type(value) is int
        return of_type in _TEXT and column in self.by_bytes and isinstance(value, str)

    def _fill(self, statement: str, columns: Sequence[str], **named: sql.Composable) -> sql.Composed:
        matches = [sql.SQL("t.{} = {}").format(sql.Identifier(each), self._cast(each)) for each in self.key]
        named.setdefault("casts", sql.SQL(", ").join(map(self._cast, columns)))
        return sql.SQL(statement).format(
            table=sql.Identifier(*self.name),
            columns=_listed(columns),
            arrays=sql.SQL(", ").join(sql.SQL("${}::text[]").format(sql.SQL(str(n + 1))) for n in range(len(columns))),
            matches=sql.SQL(" AND ").join(matches),
            **named,
        )

    def _cast(self, column: str) -> sql.Composed:
        # Without the type's length: a cast would truncate a value that is too long, while an insert refuses it.
        return sql.SQL("v.{}::{}").format(sql.Identifier(column), sql.SQL(self.types[column]))


def find(connection: psycopg.Connection[Any], namespace: str, options: PostgresWriting) -> Target:
    """Return the table of a namespace. The table's definition is locked until the transaction ends. Raises
    AdaptorError."""
    name = split(options.table or namespace)
    with refusals(f"to read {'.'.join(name)}", "check the user's grants"):
        _require_own_rows(name, connection.execute(_OTHER, name).fetchall())  # before a foreign server is queried
        try:
            connection.execute(sql.SQL(_LOCK).format(sql.Identifier(*name)))
        except (pg.UndefinedTable, pg.InvalidSchemaName) as error:
            raise _no_table(name, namespace, options) from error
        columns = connection.execute(_COLUMNS, name).fetchall()
        money = columns_of_money(connection, columns[0][8]) if any(each[9] for each in columns) else {}
        key = [each for (each,) in connection.execute(_KEY, name).fetchall()]
    key = list(options.key.get(".".join(name), key))
    if not columns:
        raise _no_table(name, namespace, options)
    unknown = sorted(set(key) - {each[0] for each in columns})
    if not key or unknown:
        raise AdaptorError(
            f"nothing identifies a row of {'.'.join(name)}",
            evidence=f"it has no column {', '.join(unknown)}" if unknown else "there is no primary key",
            next_step="add a primary key, or name columns with a unique index in `key`",
        )
    return Target(
        name=name,
        types={column: type_name for column, type_name, generated, *_ in columns if not generated},
        key=key,
        required=frozenset(column for column, _, generated, required, *_ in columns if required and not generated),
        fixed=frozenset(column for column, _, _, _, is_fixed, *_ in columns if is_fixed),
        generated=frozenset(column for column, _, generated, *_ in columns if generated),
        collations={each[0]: each[5] for each in columns if each[5]},
        by_bytes=frozenset(each[0] for each in columns if each[6]),
        money=money,
        family=columns[0][7],
    )


def _require_own_rows(name: tuple[str, str], found: Sequence[tuple[str | None]]) -> None:
    """Raise AdaptorError for a relation (such as a view) whose rows are stored in another table. Two names may then
    refer to one row, and Postgres does not report to which table it writes."""
    if found and found[0][0] is not None:
        raise AdaptorError(
            f"rows of {'.'.join(name)} cannot be written in order",
            evidence=f"it is {found[0][0]}: its rows are in another table, which other names may lead to as well",
            next_step="write to the table itself, on its own server: name it with `table`, or with the transform "
            "`route`; drop the rules of a table",
        )


def _no_table(name: tuple[str, str], namespace: str, options: PostgresWriting) -> AdaptorError:
    return AdaptorError(
        f"there is no table {'.'.join(name)} to write to",
        evidence="named by `table`" if options.table else f"for the namespace {namespace!r}",
        next_step="create it, name another with `table`, or rename the namespace with the transform `route`",
    )


def _listed(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))
