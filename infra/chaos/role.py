"""The harvesters' role in Postgres, with the grants that `harvest grants` prints and a single grant more.

It may also call `pg_read_file`, by which it reads where a timeline forked. Operators may grant it to save work after a
failover.
"""

import secrets
from collections.abc import Callable

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from harvest_lib.config.choices import ReadingMode
from harvest_lib.grants import Grants
from harvest_lib.outbox import OutboxTable

NAME = "harvester"
_ROLE = sql.Identifier(NAME)

_CREATE = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}")
_LOGIN = sql.SQL("ALTER ROLE {} {}")
_PASSWORD = sql.SQL("ALTER ROLE {} PASSWORD {}")
_MAY_READ_FORKS = sql.SQL("GRANT EXECUTE ON FUNCTION pg_read_file(text) TO {}")
_REVOKE = sql.SQL("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {}")
_END_SESSIONS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s"


class Role:
    """The role on a Postgres server and its standbys. `dsn` returns the connection string of the tables' owner."""

    def __init__(self, outbox: OutboxTable, mode: ReadingMode, dsn: Callable[[], str]) -> None:
        self._grants = Grants(outbox=outbox, mode=mode, harvester=NAME, reader="", writers={})
        self._dsn = dsn
        self._password = secrets.token_urlsafe()

    def make(self) -> None:
        """Create the role and give it its grants. The tables must exist."""
        self._run(_CREATE.format(_ROLE, sql.Literal(self._password)), _MAY_READ_FORKS.format(_ROLE))
        self.grant()

    def dsn(self, dsn: str) -> str:
        """Return the connection string of the role for the server of `dsn`."""
        return make_conninfo(dsn, user=NAME, password=self._password)

    def grant(self) -> None:
        """Give the role the grants that it needs."""
        self._run(self._grants.script().encode())

    def revoke(self) -> None:
        """Revoke all its grants on tables. Its sessions stay open."""
        self._run(_REVOKE.format(_ROLE))

    def change_password(self) -> None:
        """Invalidate the password that harvesters know, and end their sessions."""
        self._run(_PASSWORD.format(_ROLE, sql.Literal(secrets.token_urlsafe())))
        self._end_sessions()

    def restore_password(self) -> None:
        """Make the harvesters' password valid again."""
        self._run(_PASSWORD.format(_ROLE, sql.Literal(self._password)))

    def lock_out(self) -> None:
        """Forbid the role to log in, and end its sessions."""
        self._run(_LOGIN.format(_ROLE, sql.SQL("NOLOGIN")))
        self._end_sessions()

    def let_in(self) -> None:
        """Permit the role to log in again."""
        self._run(_LOGIN.format(_ROLE, sql.SQL("LOGIN")))

    def _end_sessions(self) -> None:
        with psycopg.connect(self._dsn(), autocommit=True) as connection:
            connection.execute(_END_SESSIONS, (NAME,))

    def _run(self, *statements: sql.Composed | bytes) -> None:
        with psycopg.connect(self._dsn(), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)
