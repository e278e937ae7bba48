"""Queries of Postgres' catalogue: the published tables, and the requirements for reading them (log level, privileges,
publication, keys).

The error for a missing requirement contains the statement that fixes it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, LiteralString

import psycopg
from psycopg import errors as pg
from psycopg import sql

from harvest_lib.errors import AdaptorError, DatabaseAccessDenied, DatabaseUnavailable
from harvest_lib.postgres.translation import evidence_of, translate
from harvest_lib.source.server_identity import require_primary

_ROLE = """
SELECT current_setting('wal_level'), rolreplication OR rolsuper, quote_ident(rolname), quote_ident(current_database())
FROM pg_roles WHERE rolname = current_user
"""

_PUBLICATION = "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate FROM pg_publication WHERE pubname = %s"

# As JSON, because the view's columns depend on the version: row filters and column lists exist since Postgres 15.
_PUBLISHED = "SELECT to_jsonb(t) FROM pg_publication_tables AS t WHERE pubname = %s ORDER BY schemaname, tablename"

# An index may have further columns (INCLUDE) that are not part of its key.
_KEY = """ARRAY(
  SELECT a.attname::text FROM pg_index AS i
  JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
  WHERE i.indrelid = c.oid AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END
  ORDER BY array_position(i.indkey::int2[], a.attnum))"""
_KEY_OF = "SELECT " + _KEY + " FROM pg_class AS c WHERE c.oid = %s"  # noqa: S608 - it is above
_TABLE = (
    "SELECT c.oid::int8, c.relreplident::text, c.relkind = 'p', "
    + _KEY
    + """
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')
"""
)

_COLUMNS = """
SELECT attname::text, atttypid::oid::int8, attgenerated::text FROM pg_attribute
WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""

_NAME = """
SELECT n.nspname::text, c.relname::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid = %s
"""

_BASE_TYPE = """
WITH RECURSIVE base AS (
  SELECT oid, typbasetype FROM pg_type WHERE oid = %s
  UNION ALL SELECT t.oid, t.typbasetype FROM base JOIN pg_type AS t ON t.oid = base.typbasetype
)
SELECT oid::int8 FROM base WHERE typbasetype = 0
"""

# A change of a publication's options changes the xmin of its row. Each entry of a table or schema in a publication has
# an oid of its own. A partition is published by its own entry and by the entries of its ancestors.
_STANDING = """
SELECT coalesce(p.xmin::text::int8, 0), ARRAY(
  SELECT r.oid::int8 FROM pg_publication_rel AS r WHERE r.prpubid = p.oid AND r.prrelid IN (SELECT * FROM above)
  UNION SELECT p.oid::int8 WHERE p.puballtables
  {schemas}
  ORDER BY 1), c.oid IS NOT NULL, coalesce(to_regclass(%(name)s)::oid, 0)::int8
FROM (SELECT %(oid)s::oid AS oid) AS t
LEFT JOIN pg_class AS c ON c.oid = t.oid LEFT JOIN pg_publication AS p ON p.pubname = %(publication)s
"""
_ABOVE = "WITH above AS (SELECT %(oid)s::oid UNION SELECT relid::oid FROM pg_partition_ancestors(%(oid)s::oid))"
_SCHEMAS = """
  UNION SELECT n.oid::int8 FROM pg_publication_namespace AS n JOIN pg_class AS a ON a.relnamespace = n.pnnspid
  WHERE n.pnpubid = p.oid AND a.oid IN (SELECT * FROM above)
"""
_SCHEMAS_SINCE = 150_000

# A statement that rewrites or truncates a table gives it a new file. The files of a partitioned table are the files of
# its partitions.
_FILES = """
SELECT c.oid::int8, coalesce(pg_relation_filenode(c.oid), 0)::int8 FROM pg_class AS c
WHERE c.oid = %(oid)s OR c.oid IN (SELECT relid FROM pg_partition_tree(%(oid)s::oid)) ORDER BY 1
"""

SELECT_GRANT = (
    "GRANT SELECT ON the table, and USAGE ON its SCHEMA, TO the user that the pipeline has; where rows have policies, "
    "ALTER ROLE … BYPASSRLS"
)
"""The next step in an error for a role that may not read a table."""

_FIRST_OF_USERS = 16384
"""The lowest oid of user-defined types. Types with a lower oid are built in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A published table. `columns` maps the columns that Postgres sends to the oids of their base types. `key`: the
    columns that identify a row.

    `oid` is the same after a rename; another table of the same name has another `oid`. `membership`: the oids of the
    table's entries in the publication; an entry that is removed and added again has another oid. `altered`: the id of
    the transaction that last changed the publication's options. `files`: oid and file number of each file that stores
    rows; a file number changes when the table is rewritten or truncated.
    """

    oid: int
    membership: Sequence[int]
    altered: int = 0
    files: Sequence[tuple[int, int]] = ()
    schema: str
    name: str
    columns: Mapping[str, int]
    key: Sequence[str]
    row_filter: str | None
    is_partitioned: bool = False

    @property
    def namespace(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def rows(self) -> sql.Composable:
        """SQL of the relation to select from. Rows of a partitioned table's partitions are included, rows of tables
        that inherit from the table are not."""
        name = sql.Identifier(self.schema, self.name)
        return name if self.is_partitioned else sql.SQL("ONLY {}").format(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Present state of a table in a publication. `altered` and `membership`: as in `Table`. `is_there`: the table
    exists. `named`: the oid of the table that has this table's name now, 0 if there is none."""

    altered: int
    membership: Sequence[int]
    is_there: bool
    named: int


def split(namespace: str) -> tuple[str, str]:
    """Return the schema and the table's name for a namespace. The default schema is `public`."""
    schema, dot, name = namespace.partition(".")
    return (schema, name) if dot else ("public", namespace)


@contextmanager
def refusals(what: str, next_step: str) -> Iterator[None]:
    """Convert psycopg's errors in the block to a HarvestError: AdaptorError, DatabaseAccessDenied or
    DatabaseUnavailable. `what` names the step that failed, `next_step` its remedy."""
    try:
        yield
    except (pg.InsufficientPrivilege, pg.UndefinedTable, pg.UndefinedColumn, pg.UndefinedObject) as error:
        kind = DatabaseAccessDenied if isinstance(error, pg.InsufficientPrivilege) else AdaptorError
        raise kind(f"Postgres refused: {what}", evidence=evidence_of(error), next_step=next_step) from error
    except psycopg.Error as error:
        translated = translate(error)
        settled = isinstance(error, pg.ObjectNotInPrerequisiteState | pg.ConfigurationLimitExceeded)  # permanent
        if not settled and isinstance(translated, DatabaseUnavailable | DatabaseAccessDenied):
            raise translated from error
        raise AdaptorError(f"Postgres refused: {what}", evidence=evidence_of(error), next_step=next_step) from error


def rows_of(
    connection: psycopg.Connection[Any],
    what: str,
    statement: LiteralString,
    values: Sequence[object] | Mapping[str, object] = (),
) -> list[tuple[Any, ...]]:
    """Execute a statement and return its rows. `what` describes the rows for an error. Raises the errors of
    `refusals`."""
    with refusals(f"to read {what}", "check the user's grants"):
        return connection.execute(statement, values).fetchall()


def require_decoding(connection: psycopg.Connection[Any]) -> None:
    """Raise an error if the server is not a primary, if its `wal_level` is too low for logical decoding, or if the
    connection's role may not use logical decoding."""
    require_primary(connection)
    ((wal_level, may_replicate, role, _),) = rows_of(connection, "its settings", _ROLE)
    if wal_level != "logical":
        raise AdaptorError(
            "the server's log lacks the details that logical decoding needs",
            evidence=f"wal_level is {wal_level}",
            next_step="ALTER SYSTEM SET wal_level = logical; and restart the server",
        )
    if not may_replicate:
        raise DatabaseAccessDenied(
            f"the role {role} may not follow changes",
            evidence="it has neither REPLICATION nor SUPERUSER",
            next_step=f"ALTER ROLE {role} REPLICATION; and a line for it in pg_hba.conf",
        )


def publish(connection: psycopg.Connection[Any], publication: str, namespaces: Sequence[str]) -> None:
    """Create a publication of `namespaces` if there is none. Add the tables that an existing publication lacks. Without
    namespaces, the publication must exist, and is not changed. Raises AdaptorError for an unsuitable publication."""
    name = sql.Identifier(publication)
    tables = sql.SQL(", ").join(sql.Identifier(*split(each)) for each in namespaces)
    absent = [each for each in namespaces if not rows_of(connection, "publications", _TABLE, split(each))]
    found = rows_of(connection, "publications", _PUBLICATION, (publication,))
    if absent:
        raise AdaptorError(
            f"there is no table {', '.join('.'.join(split(each)) for each in absent)}",
            evidence="named in `tables`; a view cannot be followed",
            next_step="correct `tables`, or the database in `data_source`",
        )
    if found == [(False,)]:
        raise AdaptorError(
            f"the publication {publication!r} leaves some changes out",
            evidence="its `publish` lacks insert, update, delete or truncate",
            next_step=_spelled(
                sql.SQL("ALTER PUBLICATION {} SET (publish = 'insert, update, delete, truncate')").format(name)
            ),
        )
    if not found:
        if not namespaces:
            raise AdaptorError(
                f"there is no publication {publication!r}",
                evidence="and no `tables` are named from which it could be made",
                next_step="name `tables`, or make it: CREATE PUBLICATION … FOR TABLE …",
            )
        statement = sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true)").format(
            name, tables
        )
    else:
        there = {f"{each['schemaname']}.{each['tablename']}" for each in _published(connection, publication)}
        missing = [each for each in namespaces if ".".join(split(each)) not in there]
        if not missing:
            return
        tables = sql.SQL(", ").join(sql.Identifier(*split(each)) for each in missing)
        statement = sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(name, tables)
    remedy = f"as the owner of the tables, with CREATE on the database: {_spelled(statement)}"
    with refusals(f"to publish {', '.join(namespaces)}", remedy):
        connection.execute(statement)


def standing(connection: psycopg.Connection[Any], publication: str, oid: int, namespace: str) -> Standing:
    """Return the present state of the table `oid` in a publication. `namespace` is the name that the table had when its
    definition was read."""
    schemas = _SCHEMAS if connection.info.server_version >= _SCHEMAS_SINCE else ""
    statement = _ABOVE + _STANDING.replace("{schemas}", schemas)
    name = sql.Identifier(*split(namespace)).as_string(None)
    ((altered, membership, is_there, named),) = rows_of(
        connection, "publications", statement, {"oid": oid, "name": name, "publication": publication}
    )
    return Standing(altered=altered, membership=membership, is_there=is_there, named=named)


def placed(connection: psycopg.Connection[Any], table: Table) -> Table | None:
    """Return a table with its present schema and name, None if it was dropped."""
    found = rows_of(connection, table.namespace, _NAME, (table.oid,))
    return replace(table, schema=found[0][0], name=found[0][1]) if found else None


def key_of(connection: psycopg.Connection[Any], oid: int) -> Sequence[str]:
    """Return the columns that identify a row of a table at present. The result is empty if there are no such columns,
    or if the table was dropped."""
    found = rows_of(connection, "keys", _KEY_OF, (oid,))
    return found[0][0] if found else ()


def present(connection: psycopg.Connection[Any], table: Table) -> frozenset[str]:
    """Return the names of the columns that a table has at present."""
    return frozenset(name for name, _, _ in rows_of(connection, table.namespace, _COLUMNS, (table.oid,)))


def tables(connection: psycopg.Connection[Any], publication: str, namespaces: Sequence[str]) -> list[Table]:
    """Return the published tables in `namespaces`, ordered by name. If `namespaces` is empty, return all published
    tables. Raises AdaptorError for tables that cannot be followed."""
    wanted = {".".join(split(each)) for each in namespaces}
    missing, found, keyless = set(wanted), [], []
    for listed in _published(connection, publication):
        schema, name = listed["schemaname"], listed["tablename"]
        if wanted and f"{schema}.{name}" not in wanted:
            continue
        missing.discard(f"{schema}.{name}")
        oid, identity, is_partitioned, key = next(
            iter(rows_of(connection, f"{schema}.{name}", _TABLE, (schema, name))), (0, "n", False, [])
        )
        if identity == "n" or not key:
            keyless.append(f"{schema}.{name}")
            continue
        columns = rows_of(connection, f"{schema}.{name}", _COLUMNS, (oid,))
        now = standing(connection, publication, oid, f"{schema}.{name}")
        sent = listed.get("attnames")
        kept = {
            column: base_type(connection, type_oid)
            for column, type_oid, generated in columns
            if (column in sent if sent is not None else not generated)
        }
        found.append(
            Table(
                oid=oid,
                membership=now.membership,
                altered=now.altered,
                files=rows_of(connection, f"{schema}.{name}", _FILES, {"oid": oid}),
                schema=schema,
                name=name,
                columns=kept,
                key=key,
                row_filter=listed.get("rowfilter"),
                is_partitioned=is_partitioned,
            )
        )
    if missing:
        raise AdaptorError(
            f"the publication {publication!r} does not have {', '.join(sorted(missing))}",
            evidence="a partitioned table is published as itself only with publish_via_partition_root",
            next_step=f"ALTER PUBLICATION {_spelled(sql.Identifier(publication))} SET "
            "(publish_via_partition_root = true), or name its partitions",
        )
    if keyless:
        raise AdaptorError(
            f"{', '.join(keyless)} cannot be followed: nothing identifies a row",
            evidence="there is no primary key, and no index as replica identity",
            next_step="ALTER TABLE … ADD PRIMARY KEY (…), or ALTER TABLE … REPLICA IDENTITY USING INDEX …",
        )
    if not found:
        raise AdaptorError(
            f"the publication {publication!r} has no tables",
            next_step="ALTER PUBLICATION … ADD TABLE …, or name `tables`",
        )
    return found


def base_type(connection: psycopg.Connection[Any], oid: int) -> int:
    """Return the oid of a type; for a domain, the oid of its base type."""
    if oid < _FIRST_OF_USERS:
        return oid
    return next((int(row[0]) for row in rows_of(connection, "types", _BASE_TYPE, (oid,))), oid)


def _published(connection: psycopg.Connection[Any], publication: str) -> list[dict[str, Any]]:
    return [row[0] for row in rows_of(connection, "publications", _PUBLISHED, (publication,))]


def _spelled(statement: sql.Composable) -> str:
    return statement.as_string(None)
