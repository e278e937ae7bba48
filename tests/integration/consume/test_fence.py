"""In either store: Old commits T1, New restores, Old tries T2 and is refused, New commits its own."""

from functools import partial

import pytest
from support.recorded import SHARD, checkpoint

from harvest_lib.consume import PostgresStore, create_tables
from harvest_lib.consume.sqlite_store import SqliteStore

pytestmark = pytest.mark.gate


def in_postgres(request):
    dsn = request.getfixturevalue("dsn")
    create_tables(dsn)
    return partial(PostgresStore, dsn, SHARD)


def in_sqlite(request):
    log = request.getfixturevalue("make_topic")(**{"cleanup.policy": "compact"})
    settings = {"bootstrap.servers": request.getfixturevalue("bootstrap_servers")}
    return partial(SqliteStore, request.getfixturevalue("tmp_path"), settings, SHARD, log=log)


@pytest.fixture(params=[in_postgres, in_sqlite])
def make_store(request):
    """Make stores of one shard."""
    made, make = [], request.param(request)

    def one():
        made.append(make())
        return made[-1]

    yield one
    for store in made:
        store.close()


def write(store, name):
    store.begin().execute(f"INSERT INTO seen VALUES ('{name}')")  # noqa: S608 - a name of ours


def seen(store):
    rows = store.begin().execute("SELECT name FROM seen ORDER BY name").fetchall()
    store.rollback()
    return [name for (name,) in rows]


@pytest.mark.parametrize("is_amid_t2", [False, True])
def test_old_commits_nothing_once_new_has_restored(make_store, is_amid_t2):
    old, new = make_store(), make_store()
    assert old.restore() == checkpoint()
    old.begin().execute("CREATE TABLE seen (name text)")
    assert old.commit(checkpoint(0))
    write(old, "T1")
    assert old.commit(checkpoint(1))
    if is_amid_t2:
        write(old, "T2")
    assert new.restore() == checkpoint(1)
    assert seen(new) == ["T1"]
    if not is_amid_t2:
        write(old, "T2")
    assert old.commit(checkpoint(2)) is False
    write(new, "T2 of New")
    assert new.commit(checkpoint(3))
    third = make_store()
    assert third.restore() == checkpoint(3)
    assert seen(third) == ["T1", "T2 of New"]
