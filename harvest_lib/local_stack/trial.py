"""The database of `harvest try`."""

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from harvest_lib.conninfo import parameters_of


def own_database(dsn: str, name: str) -> str:
    """Create a database on a server unless it exists, and return its connection string."""
    parameters = parameters_of(dsn)
    with psycopg.connect(**parameters, autocommit=True) as connection:
        if not connection.execute("SELECT FROM pg_database WHERE datname = %s", (name,)).rowcount:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return make_conninfo("", **{**parameters, "dbname": name})
