"""Generates SQL with the minimal grants of a consumer's role in Postgres. The owner of the consumer's tables runs it.

Promises
- The script first revokes the role's grants on the consumer's tables, so that it may be run again.
- psycopg quotes the names. No name is in a comment, because a line break in the name would end the comment.
"""

from collections.abc import Iterator

from psycopg import sql

from harvest_lib.postgres.table_names import name_parts

_CHECKPOINTS = "SELECT, INSERT, UPDATE"
_PARKED = "SELECT, INSERT, UPDATE"
_VALUES = "SELECT, INSERT, UPDATE, DELETE"


def consumer_grants(role: str, table: str = "consumers", *, key_values: bool = False) -> str:
    """Return the SQL with the grants on the tables of `create_tables` and, with `key_values`, on the table of
    `create_key_values`."""
    return "".join(f"{line}\n" for line in _lines(role, table, key_values=key_values))


def _lines(role: str, table: str, *, key_values: bool) -> Iterator[str]:
    yield "-- The minimal privileges of a consumer on its own tables. Run this as their owner, once they exist"
    yield "-- (`create_tables`, `create_key_values`); it may be run again. The role has to exist. Grants on the"
    yield "-- application's own tables are not included."
    yield "BEGIN;"
    name, parts = sql.Identifier(role), name_parts(table)
    if len(parts) > 1:
        yield _text(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(sql.Identifier(parts[0]), name))
    granted = [("", _CHECKPOINTS), ("_parked", _PARKED), *([("_state", _VALUES)] if key_values else [])]
    for suffix, privileges in granted:
        names = {"table": sql.Identifier(*name_parts(table, suffix)), "role": name}
        yield _text(sql.SQL("REVOKE ALL ON {table} FROM {role}").format(**names))
        yield _text(sql.SQL("GRANT {privileges} ON {table} TO {role}").format(privileges=sql.SQL(privileges), **names))
    yield "COMMIT;"


def _text(statement: sql.Composed) -> str:
    return f"{statement.as_string(None)};"
