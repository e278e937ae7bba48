"""Row-level security: checks that it hides no rows of a table from this role, and guards that make a query fail if so.

A row that a policy hides looks like a missing row. A reader that remembers its position skips such rows permanently. So
a reader begins only if it sees all rows, and gets an error from Postgres when that changes: `row_security = off` turns
a query that a policy would filter into an error. The setting would also refuse policies that show all rows: in this
case each statement checks the policies itself. By then it holds its lock on the table, which a change of a policy
needs: it sees exactly the policies that filter its rows.
"""

from collections.abc import Sequence
from typing import Any, Literal

import psycopg
from psycopg import sql

from harvest_lib.postgres.database import HIDDEN_ROWS, hidden_rows, in_statement, translated

Command = Literal["SELECT", "UPDATE", "DELETE"]

_SPELLED: dict[Command, str] = {"SELECT": "r", "UPDATE": "w", "DELETE": "d"}

_APPLIES = """
p.polrelid = c.oid AND p.polcmd IN ('*', of.command) AND EXISTS (
  SELECT FROM unnest(p.polroles) AS r (role) WHERE CASE WHEN r.role = 0 THEN true ELSE pg_has_role(r.role, 'USAGE') END
)
"""

# Permissive policies add rows, so a policy that is always true shows all; restrictive policies take rows away.
_HIDING = f"""
row_security_active(c.oid) AND (
  NOT EXISTS (
    SELECT FROM pg_policy AS p WHERE p.polpermissive AND pg_get_expr(p.polqual, p.polrelid) = 'true' AND {_APPLIES}
  ) OR EXISTS (
    SELECT FROM pg_policy AS p WHERE NOT p.polpermissive AND pg_get_expr(p.polqual, p.polrelid) <> 'true' AND {_APPLIES}
  )
)
"""  # noqa: S608 - it is above

_LOOK = f"""
SELECT c.oid::regclass::text, current_user::text, bool_or({_HIDING})
FROM pg_class AS c CROSS JOIN unnest(%(commands)s::text[]) AS of (command)
WHERE row_security_active(c.oid) AND (
  c.oid = ANY (SELECT to_regclass(name) FROM unnest(%(tables)s::text[]) AS name)
  OR %(segments)s AND c.oid IN (
    SELECT inhrelid FROM pg_inherits
    WHERE inhparent = ANY (SELECT to_regclass(name) FROM unnest(%(tables)s::text[]) AS name)
  )
)
GROUP BY c.oid ORDER BY 1
"""  # noqa: S608 - as above

# The cast of a text that is no number is an error that quotes the text. An OFFSET is evaluated even where the plan
# reads nothing, because no policy shows a row.
_GUARD = f"""
OFFSET coalesce((
  SELECT string_agg({{words}} || ' in ' || c.oid::regclass, '; ')
  FROM pg_class AS c CROSS JOIN unnest({{commands}}::text[]) AS of (command)
  WHERE c.oid = ANY (SELECT to_regclass(name) FROM unnest({{tables}}::text[]) AS name) AND {_HIDING}
)::int, 0)
"""  # noqa: S608 - as above


def check_all_rows(
    connection: psycopg.Connection[Any],
    tables: Sequence[sql.Identifier],
    commands: Sequence[Command] = ("SELECT",),
    *,
    segments: bool = False,
) -> bool:
    """Raise DatabaseAccessDenied if row-level security hides rows of a table from this role, or could; return True if
    it is in force for this role. Missing tables are passed over. `segments`: check partitions too."""
    values = {
        "tables": [each.as_string(None) for each in tables],
        "commands": [_SPELLED[each] for each in commands],
        "segments": segments,
    }
    with translated():
        found = connection.execute(_LOOK, values).fetchall()
    for table, user, hides in found:
        if hides:
            raise hidden_rows(f"no policy shows all rows of {table} to {user!r}, or a restrictive one takes some away")
    return bool(found)


def require_all_rows(
    connection: psycopg.Connection[Any], tables: Sequence[sql.Identifier], commands: Sequence[Command] = ("SELECT",)
) -> sql.Composable | None:
    """Do as `check_all_rows`, and make later queries on this connection fail rather than miss rows.

    Returns the guard that later statements need (`guarded`), None if they need none.
    """
    if not check_all_rows(connection, tables, commands):
        with translated():
            connection.execute("SET row_security = off")
        return None
    return all_rows_guard(tables, commands)


def all_rows_guard(tables: Sequence[sql.Identifier], commands: Sequence[Command] = ("SELECT",)) -> sql.Composed:
    """Return the guard that makes a statement fail unless this role sees all rows of the tables."""
    names = [in_statement(sql.Literal(each.as_string(None))) for each in tables]
    return sql.SQL(_GUARD).format(
        words=sql.Literal(HIDDEN_ROWS),
        tables=sql.SQL("ARRAY[{}]").format(sql.SQL(", ").join(names)),
        commands=sql.SQL("ARRAY[{}]").format(sql.SQL(", ").join(sql.Literal(_SPELLED[each]) for each in commands)),
    )


def guarded(statement: sql.Composed, guard: sql.Composable | None) -> sql.Composed:
    """Return a query, or a change that returns rows, under a guard, which has each % doubled."""
    if guard is None:
        return statement
    return sql.SQL("WITH guarded AS ({}) SELECT * FROM guarded {}").format(statement, guard)
