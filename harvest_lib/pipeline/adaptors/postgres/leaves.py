"""Check for tables and partitions of a publication whose changes Postgres does not send completely.

Changes of an unlogged table are not in the log. A partition may have a replica identity that differs from its table's:
deletes may then identify a row by columns other than the table's key, or old rows may lack columns that Postgres
describes as present. Foreign partitions need no check: a partitioned table with a key cannot have them.
"""

from dataclasses import dataclass
from typing import Any

import psycopg

from harvest_lib.pipeline.adaptors.postgres.catalog import Table, rows_of

# A replica identity without columns needs no check: Postgres refuses the first update or delete.
_UNSENT = """
SELECT kind, name, columns FROM (
  SELECT CASE WHEN c.relpersistence = 'u' THEN 'unlogged'
    WHEN c.oid <> %(oid)s AND c.relreplident <> 'f'
      AND 'f' = (SELECT relreplident FROM pg_class WHERE oid = %(oid)s) THEN 'narrow'
    WHEN identity.columns <> '{}' AND NOT %(key)s::text[] <@ identity.columns THEN 'identity' END AS kind,
    format('%%I.%%I', n.nspname, c.relname) AS name, array_to_string(identity.columns, ', ') AS columns
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
  CROSS JOIN LATERAL (SELECT ARRAY(
    SELECT a.attname::text FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = i.indrelid
      AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
    WHERE i.indrelid = c.oid AND CASE c.relreplident
      WHEN 'i' THEN i.indisreplident WHEN 'd' THEN i.indisprimary ELSE false END) AS columns) AS identity
  WHERE c.relkind = 'r'
    AND (c.oid = %(oid)s OR c.oid IN (SELECT relid FROM pg_partition_tree(%(oid)s::oid) WHERE isleaf))
) AS leaf WHERE kind IS NOT NULL ORDER BY kind DESC, name LIMIT 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsent:
    """A table or partition whose changes Postgres does not send completely. `is_lost`: earlier changes are lost."""

    is_lost: bool
    evidence: str
    remedy: str


def unsent(connection: psycopg.Connection[Any], table: Table) -> Unsent | None:
    """Return a description of the first table, among a table and its partitions, whose changes are not sent completely.
    Return None if Postgres sends all changes.

    Raises the errors of `catalog.refusals`.
    """
    found = rows_of(connection, table.namespace, _UNSENT, {"oid": table.oid, "key": list(table.key)})
    for kind, name, columns in found:
        match kind:
            case "unlogged":
                evidence, remedy = f"{name} is unlogged: its changes are in no log", f"ALTER TABLE {name} SET LOGGED"
            case "narrow":
                evidence = f"{table.namespace} is under REPLICA IDENTITY FULL, and {name} logs less of an old row"
                remedy = f"ALTER TABLE {name} REPLICA IDENTITY FULL"
            case _:
                evidence = f"deletes in {name} name a row by {columns}, and the table by {', '.join(table.key)}"
                remedy = f"ALTER TABLE {name} REPLICA IDENTITY FULL"
        return Unsent(is_lost=kind == "unlogged", evidence=evidence, remedy=remedy)
    return None
