"""Databases of tests, handed back empty: to make one and drop it costs a tenth of a second of the processor."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import TupleRow

_SECONDS = 60
_EMPTY = """
DO $$
DECLARE name name;
BEGIN
    FOR name IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' LOOP
        EXECUTE format('DROP SCHEMA %I CASCADE', name);
    END LOOP;
    CREATE SCHEMA public AUTHORIZATION pg_database_owner;
    GRANT USAGE ON SCHEMA public TO PUBLIC;
END $$
"""
_SHAPE = """
SELECT ARRAY[
    (SELECT count(*) FROM pg_class), (SELECT count(relacl) FROM pg_class), (SELECT count(*) FROM pg_proc),
    (SELECT count(proacl) FROM pg_proc), (SELECT count(*) FROM pg_type), (SELECT count(typacl) FROM pg_type),
    (SELECT count(*) FROM pg_namespace), (SELECT count(*) FROM pg_operator), (SELECT count(*) FROM pg_cast),
    (SELECT count(*) FROM pg_collation), (SELECT count(*) FROM pg_language), (SELECT count(*) FROM pg_extension),
    (SELECT count(*) FROM pg_event_trigger), (SELECT count(*) FROM pg_publication),
    (SELECT count(*) FROM pg_foreign_data_wrapper), (SELECT count(*) FROM pg_largeobject_metadata),
    (SELECT count(*) FROM pg_default_acl), (SELECT count(*) FROM pg_ts_config),
    (SELECT count(*) FROM pg_db_role_setting, pg_database WHERE setdatabase = pg_database.oid
        AND datname = current_database()),
    (SELECT count(*) FROM pg_replication_slots WHERE database = current_database()),
    (SELECT count(datacl) + sum(datconnlimit) + sum(datdba::bigint) FROM pg_database
        WHERE datname = current_database())
]::text, (SELECT array_agg(nspname || coalesce(nspacl::text, '') ORDER BY nspname) FROM pg_namespace)::text
"""


class Databases:
    """Hands out databases that are as a new one, one after the other, on one server.

    Each has a name of its own for as long as a test has it: a client that a test left behind finds no other test's.
    """

    def __init__(self, dsn: Callable[[], str]) -> None:
        """`dsn` connects a superuser to a database that is not one of these. A server may come back elsewhere."""
        self._dsn = dsn
        self._connection = psycopg.connect(dsn(), autocommit=True)
        self._spare: list[str] = []
        self._shape: object = None

    @contextmanager
    def database(self, name: str, mend: Callable[[], None] = lambda: None) -> Iterator[str]:
        """Yield how to connect to an empty database of that name. It goes afterwards, with its connections; `mend`
        brings the server back, if it has to be."""
        if self._spare:
            self._execute("ALTER DATABASE {} RENAME TO {}", self._spare.pop(), name)
        else:
            # A copy of files costs a fraction of a copy through the log where neither waits for the disk.
            self._execute("CREATE DATABASE {} STRATEGY file_copy", name)
        dsn = make_conninfo(self._dsn(), dbname=name)
        if self._shape is None:
            self._shape = self._shape_of(dsn)
        yield dsn
        mend()
        spare = f"spare_{uuid4().hex}"
        try:
            self._keep(name, spare)
        except psycopg.Error:
            for each in (name, spare):
                self._execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", each)

    def _keep(self, name: str, spare: str) -> None:
        """Empty the database for the next one. Raises psycopg.Error where something is left of what was made."""
        ended = "SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity WHERE datname = %s"
        self._server().execute(ended, [1000 * _SECONDS, name])
        self._execute("ALTER DATABASE {} RENAME TO {}", name, spare)
        with psycopg.connect(make_conninfo(self._dsn(), dbname=spare), autocommit=True) as connection:
            connection.execute("SET lock_timeout = '5s'; SET client_min_messages = error")
            connection.execute(_EMPTY)
            if connection.execute(_SHAPE).fetchone() != self._shape:
                raise psycopg.DataError("something is left")
        self._spare.append(spare)

    def _shape_of(self, dsn: str) -> object:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(_EMPTY)
            return connection.execute(_SHAPE).fetchone()

    def _execute(self, statement: str, *names: str) -> None:
        self._server().execute(sql.SQL(statement).format(*map(sql.Identifier, names)))

    def _server(self) -> "psycopg.Connection[TupleRow]":
        """Return the connection that is kept; another one where a test has killed the server meanwhile."""
        with suppress(psycopg.OperationalError):
            self._connection.execute("SELECT 1")
            return self._connection
        self._connection = psycopg.connect(self._dsn(), autocommit=True)
        return self._connection
