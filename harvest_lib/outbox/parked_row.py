"""A row of the outbox as the table of parked records has it, and back, each column as it was written.

Most columns are values of JSON, for those who look at a record. Of a type that jsonb changes or does not take, such as
json with a key twice or with \\u0000, the text is kept, by the column's name under the empty name, which no column has.
"""

from collections.abc import Iterable, Sequence

from psycopg import sql

from harvest_lib.database import in_statement

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
"""`record`, for those who look at it."""


def columns_statement(table: sql.Identifier) -> sql.Composed:
    """Return the statement that finds each column's name, and whether JSON keeps it as it is."""
    return sql.SQL(_COLUMNS).format(table=sql.Literal(table.as_string(None)))


def record_of(columns: Sequence[tuple[str, bool]]) -> sql.Composable:
    """Return the expression of the record for the row `o` with such columns, in a statement with values."""
    texts = [name for name, is_kept in columns if not is_kept]
    if not texts:
        return sql.SQL(ALL_BY_JSON)
    return sql.SQL(_SOME_BY_TEXT).format(
        names=_listed(in_statement(sql.Literal(name)) for name in texts),
        texts=_listed(sql.SQL("{}::text").format(_of_row(name)) for name in texts),
        columns=_listed(_of_row(name) for name, is_kept in columns if is_kept),
    )


def field_of(name: str, kind: str | None) -> sql.Composable:
    """Return the expression of a column that is put back, `kind` its type if the record has its text."""
    if kind is None:
        return in_statement(sql.Identifier("back", name))
    made = sql.SQL(kind.replace("%", "%%"))
    return sql.SQL("(moved.record -> '' ->> {})::{}").format(in_statement(sql.Literal(name)), made)


def _of_row(name: str) -> sql.Composable:
    return in_statement(sql.Identifier("o", name))


def _listed(parts: Iterable[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)
