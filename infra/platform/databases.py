"""Databases for the services of the platform. Each service has its own database, and a role that can use no other
service's database.

Passwords are generated once, and stored beside the data in files that only the owner can read. Each start sets the
passwords in Postgres again, so that the files or the database may be recreated.
"""

from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from harvest_lib.conninfo import parameters_of
from harvest_lib.errors import StackError
from harvest_lib.local_stack.passwords import kept_secret, scram_verifier


def own_database(dsn: str, name: str, *, password_file: Path) -> str:
    """Create a database and its role unless they exist, set the role's password, and return its connection string.

    Raises StackError if the server refuses a statement or does not answer.
    """
    password = kept_secret(password_file)
    identifier = sql.Identifier(name)
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            # CREATE ROLE and CREATE DATABASE have no IF NOT EXISTS.
            if connection.execute("SELECT FROM pg_roles WHERE rolname = %s", (name,)).fetchone() is None:
                connection.execute(sql.SQL("CREATE ROLE {}").format(identifier))
            connection.execute(
                sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}").format(
                    identifier, sql.Literal(scram_verifier(connection, password))
                )
            )
            if connection.execute("SELECT FROM pg_database WHERE datname = %s", (name,)).fetchone() is None:
                connection.execute(sql.SQL("GRANT {} TO CURRENT_USER").format(identifier))  # CREATE … OWNER needs it
                connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(identifier, identifier))
                connection.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(identifier))
    except psycopg.Error as error:
        raise StackError(
            f"the database {name} of the platform could not be made",
            evidence=error.diag.message_primary or "Postgres does not answer",
            next_step="give the user of HARVEST_DSN the rights CREATEDB and CREATEROLE, or unset it",
        ) from error
    return make_conninfo(dsn, dbname=name, user=name, password=password)


def sqlalchemy_url(dsn: str, driver: str) -> str:
    """Return a connection string as a URL of SQLAlchemy, with all its parameters and the password."""
    from sqlalchemy import URL  # noqa: PLC0415 - only the platform needs it

    known = parameters_of(dsn)
    url = URL.create(
        driver,
        username=known.pop("user", None),
        password=known.pop("password", None),
        host=known.pop("host", None),
        port=int(known.pop("port", "5432")),
        database=known.pop("dbname", None),
        query=known,
    )
    return url.render_as_string(hide_password=False)
