"""The rights that a harvester's role needs to harvest and audit in Dagster, besides those of every harvester.

- the table `harvest_daemons`, by which a run proves that it lives
- the tables of audits in the schema `harvest_audit`; the role may not change a row of them
"""

from typing import Any, LiteralString

import psycopg
from psycopg import sql

from harvest_lib.errors import DatabaseAccessDenied, OutboxTableError
from harvest_lib.grants.postgres import Need, require_grants
from harvest_lib.outbox.daemons import daemons_table
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.postgres.translation import translated

COMMANDS = (
    "as the owner: `harvest init --dagster`, then run the output of `harvest grants postgres --dagster`, both with the "
    "harvester's configuration"
)
"""The next step of an error about a missing table or right."""

_AUDIT_SCHEMA = "harvest_audit"
_AUDIT_TABLES = ("summary", "audited", "lost", "duplicates", "reorderings", "unknown", "staging")
_RUN: tuple[LiteralString, ...] = ("SELECT", "INSERT", "UPDATE")
_AUDIT: tuple[LiteralString, ...] = ("SELECT", "INSERT", "DELETE")

_BODY = """BEGIN
IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = {name}) THEN RETURN; END IF;
IF to_regclass({daemons_name}) IS NULL THEN
  RAISE WARNING 'the table % does not exist: run `harvest init --dagster`, then this again', {daemons_name};
ELSE
  GRANT SELECT, INSERT, UPDATE ON {daemons} TO {role};
END IF;
IF to_regclass({staging_name}) IS NULL THEN
  RAISE WARNING 'the tables of audits do not exist: run `harvest init --dagster`, then this again';
ELSE
  GRANT USAGE ON SCHEMA {audit_schema} TO {role};
  GRANT SELECT, INSERT, DELETE ON {audit_tables} TO {role};
END IF;
END"""

_MAY_USE = "SELECT has_schema_privilege(oid, 'USAGE'), quote_ident(current_user) FROM pg_namespace WHERE nspname = %s"


def dagster_script(outbox: OutboxTable, role: str) -> str:
    """Return the SQL that grants the rights. The owner of the tables runs it after the script of `Grants`."""
    audited = [sql.Identifier(_AUDIT_SCHEMA, each) for each in _AUDIT_TABLES]
    body = sql.SQL(_BODY).format(
        name=sql.Literal(role),
        role=sql.Identifier(role),
        daemons=daemons_table(outbox).identifier,
        daemons_name=sql.Literal(str(daemons_table(outbox))),
        staging_name=sql.Literal(str(OutboxTable((_AUDIT_SCHEMA, "staging")))),
        audit_schema=sql.Identifier(_AUDIT_SCHEMA),
        audit_tables=sql.SQL(", ").join(audited),
    )
    # The body is a quoted literal, not in dollar quotes, which a name could end.
    statement = sql.SQL("DO {}").format(sql.Literal(body.as_string(None))).as_string(None)
    return f"\n-- the harvester in Dagster: the heartbeats of its runs, and the tables of audits\n{statement};\n"


def require_dagster(connection: psycopg.Connection[Any], outbox: OutboxTable) -> None:
    """Check that the connection's role can keep a run alive, and store audits.

    Raises OutboxTableError if the table of heartbeats is missing, DatabaseAccessDenied if rights are missing. Tables of
    audits that do not exist are no error: the first audit creates them.
    """
    daemons = daemons_table(outbox)
    if not daemons.exists(connection):
        raise OutboxTableError(
            f"there is no table {daemons}, by which Dagster's run proves that it lives",
            evidence="a run creates it only if its role may create tables",
            next_step=COMMANDS,
        )
    needs = [Need(privileges=_RUN, table=daemons)]
    with translated():
        row = connection.execute(_MAY_USE, (_AUDIT_SCHEMA,)).fetchone()
    if row is not None:
        may_use, role = row
        if not may_use:
            raise DatabaseAccessDenied(
                f"the user {connection.info.user!r} may not use the schema {_AUDIT_SCHEMA}",
                evidence="the schema has the tables of audits",
                next_step=f"as the owner: GRANT USAGE ON SCHEMA {_AUDIT_SCHEMA} TO {role}; {COMMANDS}",
            )
        needs += [Need(privileges=_AUDIT, table=OutboxTable((_AUDIT_SCHEMA, each))) for each in _AUDIT_TABLES]
    require_grants(connection, needs)
