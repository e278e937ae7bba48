"""Databases that tests hand back: the next test's is as a new one, or is a new one."""

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from support.databases import Databases

pytestmark = pytest.mark.gate

MADE = [
    "CREATE TABLE t (id serial PRIMARY KEY); CREATE SCHEMA other CREATE TABLE u (v text)",
    "CREATE TYPE mood AS ENUM ('good'); CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "DROP SCHEMA public",
    "ALTER SCHEMA public RENAME TO private",
]
KEPT_BY_THE_DATABASE = [
    "CREATE PUBLICATION p FOR ALL TABLES",
    "REVOKE EXECUTE ON FUNCTION pg_catalog.now() FROM PUBLIC",
    "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC",
    "ALTER DATABASE {} SET search_path = elsewhere",
    "ALTER DATABASE {} CONNECTION LIMIT 5",
    "REVOKE CONNECT ON DATABASE {} FROM PUBLIC",
    "SELECT lo_create(0)",
    "CREATE FOREIGN DATA WRAPPER elsewhere",
]


@pytest.fixture
def databases(stack):
    return Databases(lambda: stack.dsn)


def use(databases, name, *statements):
    """Use a database; return its oid, and what is in it at first."""
    with databases.database(name) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        oid = connection.execute("SELECT oid FROM pg_database WHERE datname = current_database()").fetchone()
        found = connection.execute(
            "SELECT array_agg(relname::text) FROM pg_class WHERE relnamespace = 'public'::regnamespace"
        ).fetchone()
        for statement in statements:
            connection.execute(statement.format(conninfo_to_dict(dsn)["dbname"]))
    return oid, found


@pytest.mark.parametrize("statements", MADE)
def test_what_is_in_schemas_goes(databases, unique, statements):
    first, empty = use(databases, unique("one")[:60], statements)
    assert use(databases, unique("two")[:60]) == (first, empty)


@pytest.mark.parametrize("statements", KEPT_BY_THE_DATABASE)
def test_a_database_that_is_not_as_a_new_one_is_not_handed_out_again(databases, unique, statements):
    first, empty = use(databases, unique("one")[:60], statements)
    second, found = use(databases, unique("two")[:60])
    assert second != first
    assert found == empty


def test_who_is_still_connected_finds_no_other_test(databases, unique):
    name = unique("one")[:60]
    with databases.database(name) as left:
        connection = psycopg.connect(left, autocommit=True)
    with databases.database(unique("two")[:60]):
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError, match="does not exist"):
            psycopg.connect(left)


def test_a_database_that_a_test_has_dropped_costs_nothing(databases, unique, stack):
    name = unique("one")[:60]
    with databases.database(name), psycopg.connect(stack.dsn, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    use(databases, unique("two")[:60])


def test_two_at_once_are_two(databases, unique):
    with databases.database(unique("one")[:60]) as one, databases.database(unique("two")[:60]) as two:
        oids = [
            psycopg.connect(each).execute("SELECT oid FROM pg_database WHERE datname = current_database()").fetchone()
            for each in (one, two)
        ]
    assert len({*oids}) == 2
