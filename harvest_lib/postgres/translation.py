"""Translates errors of Postgres, and of libpq, to errors of `harvest_lib.errors`.

Promise: a translated error has no password in it.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors as pg

from harvest_lib.errors import (
    DatabaseAccessDenied,
    DatabaseError,
    DatabaseUnavailable,
    KafkaAccessDenied,
    OutboxTableError,
)
from harvest_lib.postgres import postgres_causes

_log = logging.getLogger(__name__)

_ENDED_BY = {
    "25P03": "idle_in_transaction_session_timeout",
    "25P04": "transaction_timeout",
    "57P05": "idle_session_timeout",
}

_NO_DATABASE = re.compile(r'FATAL: +database ".*" does not exist')
"""Message of libpq for a missing database. The message decides, because a failed connection has no SQLSTATE."""

_NOT_LET_IN = re.compile(
    "password authentication failed|no pg_hba.conf entry|no password supplied|is not permitted to log in"
    "|permission denied for database"
)

_TLS_FAILED = re.compile(r"SSL error|certificate|does not support SSL|channel binding")

TAKES_NO_CHANGES = re.compile("session is read-only|server is in hot standby mode")
"""libpq's message if the connection requires a writable server, and the server is read-only."""

_NO_VALUE = re.compile(r"invalid \S+ value: ")

_STARTUP = "unsupported startup parameter"
"""PgBouncer's message about a setting that it refuses at the start of a session."""

_WOULD_FILTER = "query would be affected by row-level security policy"
"""Postgres' error for a statement under `row_security = off`. If the server's messages are in another language, the
error is treated as a missing privilege."""

HIDDEN_ROWS = "harvest: rows are hidden by row-level security"
"""Text of the error that a guarded statement raises if rows are hidden. Without the guard, the result would lack the
hidden rows."""


@contextmanager
def translated() -> Iterator[None]:
    """Translate psycopg's errors in the block to errors of `harvest_lib.errors`."""
    try:
        yield
    except psycopg.Error as error:
        raise translate(error) from error


def translate(error: psycopg.Error) -> DatabaseError | OutboxTableError:
    """Return the error of `harvest_lib.errors` for an error of psycopg. DatabaseUnavailable means that a retry may
    succeed."""
    evidence = evidence_of(error)
    state = error.sqlstate or ""
    if HIDDEN_ROWS in evidence or (isinstance(error, pg.InsufficientPrivilege) and _WOULD_FILTER in evidence):
        return hidden_rows(evidence)
    if isinstance(error, pg.InsufficientPrivilege) and not _NOT_LET_IN.search(evidence):
        return DatabaseAccessDenied(
            "Postgres refused an operation: the role lacks a privilege",
            evidence=evidence,
            next_step=r"ask the owner of the named object for a GRANT: psql's `\dp` shows the grants, and "
            "`harvest grants postgres` prints the grants of a harvester, a reader, a `--writer` and an `--operator`",
        )
    refusals = pg.InsufficientPrivilege | pg.InvalidPassword | pg.InvalidAuthorizationSpecification
    if isinstance(error, refusals) or _NOT_LET_IN.search(evidence):
        return DatabaseAccessDenied(
            "Postgres refused the login",
            evidence=evidence,
            next_step="check user and password in `dataSource`, its `sslmode`, and the entries of pg_hba.conf",
        )
    if isinstance(error, pg.UndefinedTable | pg.UndefinedColumn | pg.DatatypeMismatch | pg.UndefinedFunction):
        return OutboxTableError(
            "the outbox table is not there, or is not an outbox table",
            evidence=evidence,
            next_step="create it with `harvest init`, or name another with `outboxTable`",
        )
    if isinstance(error, pg.InvalidSchemaName):
        return OutboxTableError(
            "the schema of the outbox does not exist",
            evidence=evidence,
            next_step="as the owner of the database: CREATE SCHEMA … AUTHORIZATION …; or correct `outboxTable`",
        )
    if (setting := _ENDED_BY.get(state)) is not None:
        return DatabaseUnavailable(
            "a timeout of the role ended the session",
            evidence=evidence,
            next_step=f"ALTER ROLE … SET {setting} = 0, for the role that is named in `dataSource`",
        )
    if not state and _NO_VALUE.search(evidence):  # from libpq's environment: values in `dataSource` were checked
        return DatabaseError(
            "a parameter of the connection has a value that libpq does not know",
            evidence=evidence,
            next_step="correct it in `dataSource`, or in libpq's environment variable PG… for it",
        )
    if _STARTUP in evidence:
        return DatabaseError(
            "a pooler refuses a parameter of the connection",
            evidence=evidence,
            next_step="leave it out of `dataSource`, name Postgres itself there, or let the pooler ignore it "
            "(PgBouncer: ignore_startup_parameters)",
        )
    if isinstance(error, pg.InvalidCatalogName) or _NO_DATABASE.search(evidence):
        return DatabaseError(
            "the database does not exist", evidence=evidence, next_step="create it, or correct `dbname` in `dataSource`"
        )
    if not state and isinstance(error, psycopg.OperationalError) and _TLS_FAILED.search(evidence):
        return DatabaseUnavailable(
            "the TLS connection to Postgres failed",
            evidence=evidence,
            next_step="check `sslrootcert`, which verifies the server, `sslmode`, and that the server's certificate "
            "names `host`",
        )
    if not state and isinstance(error, psycopg.OperationalError) and TAKES_NO_CHANGES.search(evidence):
        return DatabaseUnavailable(
            "this server takes no changes: it is a standby, or read-only",
            evidence=evidence,
            next_step="name the primary in `dataSource`, or all servers: host=a,b",
        )
    if not state and isinstance(error, psycopg.OperationalError) and postgres_causes.opens_no_session(evidence):
        return DatabaseUnavailable(
            "Postgres opens no session",
            evidence=evidence,
            next_step="it is tried again; if the reason does not pass, check user, password and `dbname` in "
            "`dataSource`, and pg_hba.conf",
        )
    if postgres_causes.passes(error):
        if postgres_causes.answered(error):
            return DatabaseUnavailable(
                f"Postgres {postgres_causes.predicate(state)}",
                evidence=evidence,
                next_step=postgres_causes.next_step(state),
            )
        return DatabaseUnavailable(
            "Postgres does not answer",
            evidence=evidence,
            next_step="check that it runs, and host and port in `dataSource`",
        )
    return DatabaseError(
        "Postgres refused a statement", evidence=evidence, next_step="see the server's log for the statement"
    )


def hidden_rows(evidence: str) -> DatabaseAccessDenied:
    """Return the error for a role from which row-level security hides rows of a table."""
    return DatabaseAccessDenied(
        "row-level security hides rows from this role, and hidden rows would be skipped",
        evidence=evidence,
        next_step="as the owner, run the output of `harvest grants postgres`: it has the policy that shows all rows; "
        "if a restrictive policy hides rows, ALTER ROLE … BYPASSRLS",
    )


def log_denied(error: DatabaseAccessDenied | KafkaAccessDenied) -> None:
    """Log that a server refuses an operation that it allowed before. The caller retries the operation, which fails
    until an operator acts."""
    event = "kafka_access_denied" if isinstance(error, KafkaAccessDenied) else "database_access_denied"
    _log.error(event, extra={"reason": error.evidence, "next_step": error.next_step})


def evidence_of(error: psycopg.Error) -> str:
    """Return the message of Postgres or libpq, with the SQLSTATE if the error has one."""
    lines = str(error).strip().splitlines()
    text = (
        "; ".join(line.strip() for line in lines if line.strip())
        if isinstance(error, psycopg.OperationalError)
        else (lines[0] if lines else "")
    )
    return f"{text} (SQLSTATE {error.sqlstate})" if error.sqlstate else text or type(error).__name__
