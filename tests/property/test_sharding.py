"""A key's shard is the same in Python and in SQL, whatever is in it, and shards get equal shares of the keys."""

import psycopg
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from psycopg import sql

from harvest_lib.source.sharding import shard_expression, shard_of

pytestmark = pytest.mark.gate

keys = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=100)
numbers = st.integers(1, 1000)

ENCODINGS = {"LATIN1": "Bjørn", "EUC_JP": "日本", "WIN1251": "Жук", "SQL_ASCII": "Bjørn 日本"}


@pytest.fixture(scope="module")
def connection(stack):
    with psycopg.connect(stack.dsn, autocommit=True) as made:
        yield made


def asked(connection, key, shards):
    statement = sql.SQL("SELECT {}").format(shard_expression(sql.SQL("%(key)s::text"), shards))
    return connection.execute(statement, {"key": key}).fetchone()[0]


@given(key=keys, shards=numbers)
@example(key="", shards=7)
@example(key="ß\U0001f980\u0301 %s", shards=1000)
def test_sql_and_python_agree(connection, key, shards):
    assert asked(connection, key, shards) == shard_of(key, shards)


@given(key=keys, shards=numbers)
def test_a_shard_is_one_of_those_there_are(key, shards):
    assert 0 <= shard_of(key, shards) < shards


@pytest.mark.parametrize(
    ("key", "shards", "shard"), [("", 1000, 149), ("order-1", 2, 0), ("order-1", 1000, 690), ("Bjørn", 1000, 721)]
)
def test_the_shard_of_a_key_never_changes(key, shards, shard):
    """Checkpoints of shipped versions rest on these numbers."""
    assert shard_of(key, shards) == shard


@pytest.mark.parametrize("shards", [2, 3, 5, 16])
@pytest.mark.parametrize("pattern", ["{}", "order-{}", "{:08d}", "customer/{}/eu"])
def test_keys_are_spread_evenly(shards, pattern):
    found = [0] * shards
    for number in range(20_000):
        found[shard_of(pattern.format(number), shards)] += 1
    # Six standard deviations of a fair throw.
    assert max(abs(count - 20_000 / shards) for count in found) < 6 * (20_000 / shards) ** 0.5


def test_null_has_no_shard(connection):
    assert asked(connection, None, 3) is None


def test_the_expression_fits_statements_without_parameters_too(connection):
    statement = sql.SQL("SELECT {} FROM (VALUES ('a'), ('b')) AS t (key) ORDER BY key").format(
        shard_expression(sql.Identifier("t", "key"), 5)
    )
    assert connection.execute(statement).fetchall() == [(shard_of("a", 5),), (shard_of("b", 5),)]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_encoding_of_the_database_does_not_matter(stack, connection, unique, encoding):
    key, name = ENCODINGS[encoding], sql.Identifier(unique("db")[:63])
    connection.execute(
        sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING {} LOCALE 'C'").format(name, sql.Literal(encoding))
    )
    try:
        conninfo = psycopg.conninfo.make_conninfo(stack.dsn, dbname=name._obj[0], client_encoding="utf8")
        with psycopg.connect(conninfo, autocommit=True) as other:
            other.execute("CREATE TABLE t (key varchar(100))")
            other.execute("INSERT INTO t VALUES (%s)", [key])
            expression = shard_expression(sql.Identifier("key"), 1000)
            found = other.execute(sql.SQL("SELECT key, {} FROM t").format(expression)).fetchone()
        assert found == (key, shard_of(key, 1000))
    finally:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))
