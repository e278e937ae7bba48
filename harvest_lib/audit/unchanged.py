"""The check that no locked table was rewritten or emptied, and that none lost a segment, since the snapshot was taken.

A snapshot shows the rows of a table only until the table's file is replaced. Rows that ALTER TABLE has rewritten are
newer than the snapshot, and after TRUNCATE, DROP and DETACH there are no rows: a query would find nothing, without an
error. The first statement that reads a table locks it (`ACCESS SHARE`) until the transaction ends, so a single check
after all tables are locked is enough.
"""

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.errors import DatabaseError
from harvest_lib.outbox import OutboxTable
from harvest_lib.postgres.database import in_statement
from harvest_lib.postgres.translation import translated

_LOCK = "SELECT FROM {} LIMIT 0"

# Queries of catalogue tables see the transaction's snapshot; catalogue functions return the present state.
_CHANGED = """
WITH RECURSIVE seen AS (
  SELECT named.oid::oid AS oid, c.relkind, c.relfilenode, named.oid AS root, c.relkind = 'p' AS is_partitioned
  FROM unnest(%(tables)s::text[]::regclass[]) AS named (oid) LEFT JOIN pg_class AS c ON c.oid = named.oid
  UNION ALL
  SELECT i.inhrelid, c.relkind, c.relfilenode, seen.root, seen.is_partitioned
  FROM seen JOIN pg_inherits AS i ON i.inhparent = seen.oid AND NOT i.inhdetachpending
  JOIN pg_class AS c ON c.oid = i.inhrelid
)
SELECT oid::regclass::text FROM seen
WHERE relkind IS NULL
  OR (relkind = 'r' AND pg_relation_filenode(oid) IS DISTINCT FROM relfilenode)
  OR (is_partitioned AND oid <> root AND oid NOT IN (SELECT relid FROM pg_partition_tree(root)))
ORDER BY 1 LIMIT 1
"""


def require_unchanged(connection: psycopg.Connection[Any], tables: Sequence[OutboxTable]) -> None:
    """Lock tables until the transaction ends. Raises DatabaseError if a table has changed since the transaction's
    snapshot."""
    with translated():
        for each in tables:
            connection.execute(sql.SQL(_LOCK).format(in_statement(each.identifier)))
        row = connection.execute(_CHANGED, {"tables": [str(each) for each in tables]}).fetchone()
    if row is not None:
        raise DatabaseError(
            "a table was rewritten or emptied, or lost a segment, while the audit began: the snapshot is older",
            evidence=f"it is {row[0]}",
            next_step="run the audit again: the result tables are as before",
        )
