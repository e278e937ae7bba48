"""Conversion of an outbox row to a parked record (jsonb) and back; the conversion preserves every value exactly.

The record contains most columns as plain JSON values, readable for an operator. For some types jsonb would change or
refuse values, such as json with a duplicate key or with \\u0000. The record contains these columns as texts, in an
object under the empty name, since no column has an empty name.
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
"""SQL expression: the column `record` as shown to operators, with all columns in a single object."""


def columns_statement(table: sql.Identifier) -> sql.Composed:
    """Return a query for the columns of a table: the name of each, and whether jsonb preserves its values exactly."""
    return sql.SQL(_COLUMNS).format(table=sql.Literal(table.as_string(None)))


def record_of(columns: Sequence[tuple[str, bool]]) -> sql.Composable:
    """Return the SQL expression that converts the row `o` with these columns to a record, for a statement with
    parameters."""
    texts = [name for name, is_kept in columns if not is_kept]
    if not texts:
        return sql.SQL(ALL_BY_JSON)
    return sql.SQL(_SOME_BY_TEXT).format(
        names=_listed(in_statement(sql.Literal(name)) for name in texts),
        texts=_listed(sql.SQL("{}::text").format(_of_row(name)) for name in texts),
        columns=_listed(_of_row(name) for name, is_kept in columns if is_kept),
    )


def field_of(name: str, kind: str | None) -> sql.Composable:
    """Return the SQL expression for a column of a row that is put back. `kind` is the type of the column if the record
    stores it as text, else None."""
    if kind is None:
        return in_statement(sql.Identifier("back", name))
    made = sql.SQL(kind.replace("%", "%%"))
    return sql.SQL("(moved.record -> '' ->> {})::{}").format(in_statement(sql.Literal(name)), made)


def _of_row(name: str) -> sql.Composable:
    return in_statement(sql.Identifier("o", name))


def _listed(parts: Iterable[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)
