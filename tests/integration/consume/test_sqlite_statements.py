"""Limits of a user's statements on a shard's state in SQLite."""

import sqlite3
from contextlib import suppress

import pytest
from support.recorded import Machines, asked, change, checkpoint

from harvest_lib.consume import StateRefused

pytestmark = pytest.mark.gate


@pytest.fixture
def store(bootstrap_servers, make_topic, tmp_path):
    """Make stores of one shard, each on a machine of its own."""
    log = make_topic(**{"cleanup.policy": "compact"})
    machines = Machines({"bootstrap.servers": bootstrap_servers}, log, tmp_path)
    yield machines
    machines.close()


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize(
    "end",
    [
        lambda state: state.execute("COMMIT"),
        lambda state: state.commit(),
        lambda state: state.execute("ROLLBACK"),
        lambda state: state.executescript("SELECT 1"),
        lambda state: state.close(),
        lambda state: state.execute("ATTACH ':memory:' AS other"),
    ],
)
def test_the_users_function_cannot_end_the_transaction(store, end):
    first = store()
    first.restore()
    state = first.begin()
    state.execute("CREATE TABLE t (a)")
    with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
        end(state)
    first.rollback()
    assert asked(first, "SELECT count(*) FROM sqlite_schema WHERE name = 't'") == [(0,)]


@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_what_is_kept_after_a_transaction_that_a_conflict_ended_does_not_count(store, how):
    first = store()
    first.restore()
    change(first, "CREATE TABLE t (a PRIMARY KEY)", "INSERT INTO t VALUES (1)", offset=1)
    state = first.begin()
    with suppress(sqlite3.IntegrityError):
        state.execute("INSERT OR ROLLBACK INTO t VALUES (1)")
    state.execute("INSERT INTO t VALUES (2)")
    with pytest.raises(RuntimeError, match="ended the transaction"):
        first.commit(checkpoint(2)) if how == "commit" else first.rollback()
    assert first.restore() == checkpoint(1)
    assert asked(first, "SELECT a FROM t") == [(1,)]


def test_a_cursor_that_is_left_open_does_no_harm(store):
    first = store()
    first.restore()
    change(first, "CREATE TABLE t (a)", "CREATE TABLE u (a)", "INSERT INTO t VALUES (1), (2)")
    state = first.begin()
    left_open = state.execute("SELECT a FROM t")
    left_open.fetchone()
    state.execute("INSERT INTO t VALUES (3)")
    assert first.commit(checkpoint(2))
    change(first, "INSERT INTO u VALUES (1)", offset=3)
    left_open.close()
    change(first, "INSERT INTO t VALUES (4)", offset=4)
    change(first, "INSERT INTO t VALUES (5)", offset=5)
    second = store()
    assert second.restore() == checkpoint(5)
    assert asked(second, "SELECT a FROM t ORDER BY a") == [(1,), (2,), (3,), (4,), (5,)]
    assert asked(second, "SELECT a FROM u") == [(1,)]


def test_a_constraint_that_is_broken_at_the_end_of_a_transaction_keeps_nothing_of_it(store):
    first = store()
    first.restore()
    change(
        first,
        "CREATE TABLE t (a INTEGER PRIMARY KEY, parent REFERENCES t DEFERRABLE INITIALLY DEFERRED)",
        offset=1,
    )
    first.begin().execute("INSERT INTO t VALUES (1, 2)")
    with pytest.raises(StateRefused, match="FOREIGN KEY"):
        first.commit(checkpoint(2))
    change(first, "INSERT INTO t VALUES (3, NULL)", offset=3)
    second = store()
    assert second.restore() == checkpoint(3)
    assert asked(second, "SELECT a FROM t") == [(3,)]
