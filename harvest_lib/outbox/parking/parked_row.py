"""Conversion of an outbox row to a parked record and back, each column unchanged.

Most columns are values of JSON, readable for an operator. For a type that jsonb changes or refuses, such as json with a
key twice or with \\u0000, the record has the column's text by its name, under the empty name, which no column has.
"""

from collections.abc import Iterable, Sequence

from psycopg import sql

from harvest_lib.postgres.database import in_statement

_COLUMNS = """
SELECT attname::text, atttypid IN (
  'bool'::regtype, 'int2'::regtype, 'int4'::regtype, 'int8'::regtype, 'oid'::regtype, 'numeric'::regtype,
  'text'::regtype, 'varchar'::regtype, 'bpchar'::regtype, 'name'::regtype, 'text[]'::regtype, 'varchar[]'::regtype,
  'bytea'::regtype, 'uuid'::regtype, 'jsonb'::regtype, 'xid8'::regtype,
  'date'::regtype, 'timestamp'::regtype, 'timestamptz'::regtype
)
FROM pg_attribute WHERE attrelid = {table}::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""

ALL_BY_JSON = "to_jsonb(o)"

_SOME_BY_TEXT = """
(SELECT to_jsonb(kept) || jsonb_build_object('', jsonb_object(ARRAY[{names}], ARRAY[{texts}]))
 FROM (SELECT {columns}) AS kept)
"""

SHOWN = "(record - '') || coalesce(record -> '', jsonb_build_object())"
"""`record` as an operator reads it."""


def columns_statement(table: sql.Identifier) -> sql.Composed:
    """Return the statement that finds each column's name, and whether JSON keeps its value unchanged."""
    return sql.SQL(_COLUMNS).format(table=sql.Literal(table.as_string(None)))


def record_of(columns: Sequence[tuple[str, bool]]) -> sql.Composable:
    """Return the expression of the record for the row `o` with the columns, in a statement with parameters."""
    texts = [name for name, is_kept in columns if not is_kept]
    if not texts:
        return sql.SQL(ALL_BY_JSON)
    return sql.SQL(_SOME_BY_TEXT).format(
        names=_listed(in_statement(sql.Literal(name)) for name in texts),
        texts=_listed(sql.SQL("{}::text").format(_of_row(name)) for name in texts),
        columns=_listed(_of_row(name) for name, is_kept in columns if is_kept),
    )


def field_of(name: str, kind: str | None) -> sql.Composable:
    """Return the expression of a column to put back. `kind` is its type if the record has its text."""
    if kind is None:
        return in_statement(sql.Identifier("back", name))
    made = sql.SQL(kind.replace("%", "%%"))
    return sql.SQL("(moved.record -> '' ->> {})::{}").format(in_statement(sql.Literal(name)), made)


def _of_row(name: str) -> sql.Composable:
    return in_statement(sql.Identifier("o", name))


def _listed(parts: Iterable[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)
