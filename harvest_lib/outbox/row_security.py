"""Row-level security: checks that policies hide no rows of a table from this role, and guards for later queries.

A reader cannot distinguish a row that a policy hides from a missing row. A reader that stores its position would skip
such rows permanently. So a reader begins only if it sees all rows, and gets an error from Postgres as soon as that
changes. Usually `row_security = off` provides the error: a query that a policy would filter then fails. But with this
setting, a query also fails if its policies show all rows. If such policies exist, each statement contains a guard that
checks the policies. The statement already holds a lock on the table that excludes changes of policies, so the guard
sees exactly the policies that filter the statement's rows.
"""

from collections.abc import Sequence
from typing import Any, Literal

import psycopg
from psycopg import sql

from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import HIDDEN_ROWS, hidden_rows, translated

Command = Literal["SELECT", "UPDATE", "DELETE"]

_SPELLED: dict[Command, str] = {"SELECT": "r", "UPDATE": "w", "DELETE": "d"}

_APPLIES = """
p.polrelid = c.oid AND p.polcmd IN ('*', of.command) AND EXISTS (
  SELECT FROM unnest(p.polroles) AS r (role) WHERE CASE WHEN r.role = 0 THEN true ELSE pg_has_role(r.role, 'USAGE') END
)
"""

# Permissive policies add rows, so a single permissive policy that is always true shows all rows. Restrictive policies
# remove rows.
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

# Casting a text that is not a number to int raises an error that quotes the text. The cast is in an OFFSET, because
# Postgres evaluates an OFFSET even if the plan reads no rows, as it does when no policy shows any row.
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
    """Raise DatabaseAccessDenied if row-level security hides rows of a table from this role, or could hide rows. Return
    True if row-level security applies to this role on any of the tables. Missing tables are ignored. `segments`: check
    the partitions of the tables too."""
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
    """Check tables as `check_all_rows` does, and make later queries on this connection fail if they would miss rows.

    Return the guard to add to later statements with `guarded`, or None if the connection's setting suffices.
    """
    if not check_all_rows(connection, tables, commands):
        with translated():
            connection.execute("SET row_security = off")
        return None
    return all_rows_guard(tables, commands)


def all_rows_guard(tables: Sequence[sql.Identifier], commands: Sequence[Command] = ("SELECT",)) -> sql.Composed:
    """Return a guard: SQL that makes a statement fail unless this role sees all rows of the tables."""
    names = [in_statement(sql.Literal(each.as_string(None))) for each in tables]
    return sql.SQL(_GUARD).format(
        words=sql.Literal(HIDDEN_ROWS),
        tables=sql.SQL("ARRAY[{}]").format(sql.SQL(", ").join(names)),
        commands=sql.SQL("ARRAY[{}]").format(sql.SQL(", ").join(sql.Literal(_SPELLED[each]) for each in commands)),
    )


def guarded(statement: sql.Composed, guard: sql.Composable | None) -> sql.Composed:
    """Return the statement with the guard added, or unchanged if `guard` is None. The statement must return rows, and
    must have each % doubled, as in the guard."""
    if guard is None:
        return statement
    return sql.SQL("WITH guarded AS ({}) SELECT * FROM guarded {}").format(statement, guard)
