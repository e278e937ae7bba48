"""Check for UNLOGGED tables and an UNLOGGED sequence, which a crash of the server would empty or reset.

Postgres does not write UNLOGGED relations to its WAL, so it empties them when it starts after a crash. Positions,
parked records and undelivered committed records would be lost, and the sequence would give out ids again.
"""

from typing import Any

import psycopg

from harvest_lib.errors import OutboxTableError
from harvest_lib.postgres.translation import translated

_BESIDE = ("_parked", "_parked_ids", "_subscriptions", "_segments")

_UNLOGGED = """
SELECT c.oid::regclass::text, c.relkind = 'S'
FROM pg_class AS o JOIN pg_class AS c ON c.relpersistence = 'u' AND c.relkind <> 'p' AND (
  c.oid = o.oid OR c.oid IN (SELECT relid FROM pg_partition_tree(o.oid))
  OR (c.relkind = 'r' AND c.relnamespace = o.relnamespace
      AND c.relname::text IN (SELECT o.relname || suffix FROM unnest(%(beside)s::text[]) AS suffix))
  OR (c.relkind = 'S' AND c.oid IN (
    SELECT d.refobjid FROM pg_attrdef AS f JOIN pg_depend AS d ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid
    WHERE f.adrelid = o.oid AND d.refclassid = 'pg_class'::regclass
    UNION SELECT d.objid FROM pg_depend AS d
    WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = o.oid)))
WHERE o.oid = to_regclass(%(table)s) ORDER BY 2, 1
"""


def require_durable(connection: psycopg.Connection[Any], table: str) -> None:
    """Raise OutboxTableError if the table, a segment, a side table or the sequence is UNLOGGED. `table` is the quoted
    name of the outbox. Raises DatabaseError if the query fails."""
    with translated():
        found = connection.execute(_UNLOGGED, {"table": table, "beside": list(_BESIDE)}).fetchall()
    if found:
        raise OutboxTableError(
            f"a crash of the server would empty {table}, or its tables: committed records would be lost",
            evidence=f"UNLOGGED: {', '.join(name for name, _ in found)}",
            next_step="; ".join(
                f"ALTER {'SEQUENCE' if is_sequence else 'TABLE'} {name} SET LOGGED" for name, is_sequence in found
            )
            + " (as the owner; writers wait while a table is written to the log)",
        )
