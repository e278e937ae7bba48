"""Roles of a test's own, and the connection that makes them."""

import secrets

import psycopg
import pytest
from psycopg import sql


@pytest.fixture
def owner(dsn):
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def role(owner):
    """Make roles of names nobody has."""
    made = []

    def make(options="", name=None):
        name = name or f"role_{secrets.token_hex(6)}"
        made.append(sql.Identifier(name))
        owner.execute(sql.SQL("CREATE ROLE {} " + options).format(made[-1]))
        return name

    yield make
    for each in reversed(made):
        owner.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(each))
        owner.execute(sql.SQL("DROP ROLE {}").format(each))
