"""Query of the present values of columns that an update did not change, and that Postgres therefore did not send."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import psycopg
from psycopg import errors as pg
from psycopg import sql

from harvest_lib.errors import AdaptorError
from harvest_lib.pipeline.adaptors.postgres.catalog import SELECT_GRANT, Table, placed, present, refusals, rows_of
from harvest_lib.pipeline.adaptors.postgres.values import reader_of
from harvest_lib.postgres.sql_ascii import ESCAPED

# The equality operators of the index that identifies a row, so that Postgres uses the index. They have their schema:
# an extension's operators are in the extension's schema.
_EQUALS = """
SELECT DISTINCT ON (a.attname) a.attname::text, n.nspname::text, o.oprname::text
FROM pg_index AS i CROSS JOIN unnest(i.indkey::int2[], i.indclass::oid[]) AS k (attnum, opclass)
JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
JOIN pg_opclass AS c ON c.oid = k.opclass
JOIN pg_am AS m ON m.oid = c.opcmethod AND m.amname = 'btree'
JOIN pg_amop AS e ON e.amopfamily = c.opcfamily AND e.amoplefttype = c.opcintype AND e.amoprighttype = c.opcintype
  AND e.amopstrategy = 3
JOIN pg_operator AS o ON o.oid = e.amopopr JOIN pg_namespace AS n ON n.oid = o.oprnamespace
WHERE i.indrelid = %s AND i.indisunique
ORDER BY a.attname, i.indisreplident DESC, i.indisprimary DESC
"""


def row_of(
    connection: psycopg.Connection[Any], table: Table, key: Mapping[str, str], columns: Sequence[str]
) -> Mapping[str, Any] | None:
    """Return the present values of `columns` in the row with this key, without dropped columns; None if there is no
    such row. If the table or a column of the key was dropped, the result is empty.

    A value has the present type of its column, which may differ from the type at the time of the change.

    The table is identified by its oid, so that a renamed table is found too.
    """
    while True:
        now = placed(connection, table)
        if now is None:
            return {}
        try:
            found = _row(connection, now, key, columns)
        except AdaptorError as error:
            if isinstance(error.__cause__, pg.UndefinedTable):
                continue  # renamed since, or dropped
            if not isinstance(error.__cause__, pg.UndefinedColumn):
                raise
            there = present(connection, table)
            columns = [each for each in columns if each in there]
            if not columns or not there.issuperset(key):
                return {}
            continue
        if found.is_same:
            return found.values


class _Found(NamedTuple):
    is_same: bool
    """False if another table has the table's name by now."""
    values: Mapping[str, Any] | None


def _row(connection: psycopg.Connection[Any], table: Table, key: Mapping[str, str], columns: Sequence[str]) -> _Found:
    found_equals = rows_of(connection, f"the key of {table.namespace}", _EQUALS, (table.oid,))
    equals = {
        column: sql.SQL("OPERATOR({}.{})").format(sql.Identifier(schema), sql.SQL(name))
        for column, schema, name in found_equals
    }
    statement = sql.SQL(
        "SELECT to_regclass({name})::oid = {oid}, found.* FROM (SELECT) AS one "
        "LEFT JOIN (SELECT true, {columns} FROM {rows} WHERE {key}) AS found ON true"
    ).format(
        name=sql.Literal(sql.Identifier(table.schema, table.name).as_string(None)),
        oid=sql.Literal(table.oid),
        columns=sql.SQL(", ").join(map(sql.Identifier, columns)),
        rows=table.rows,
        key=sql.SQL(" AND ").join(
            sql.SQL("{} {} {}").format(sql.Identifier(name), equals.get(name, sql.SQL("=")), value)
            for name, value in key.items()
        ),
    )
    with refusals(f"to read the values that a change of {table.namespace} left out", SELECT_GRANT):
        found = connection.execute(statement).pgresult
    if found is None or found.get_value(0, 0) != b"t":
        return _Found(is_same=False, values=None)
    if found.get_value(0, 1) is None:
        return _Found(is_same=True, values=None)
    # The raw result is text in the same format as in changes, and reports the base type for a domain.
    named: dict[str, Any] = {}
    for place, name in enumerate(columns, start=2):
        value = found.get_value(0, place)
        named[name] = reader_of(found.ftype(place))(value.decode("utf-8", ESCAPED)) if value is not None else None
    return _Found(is_same=True, values=named)
