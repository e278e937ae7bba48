"""A gap in what the Postgres reader sends is an error: a slot, a table, a server that is not what it was before."""

import psycopg
import pytest
from psycopg import sql
from support.pipeline_ends import (
    PostgresSource,
    collect,
    drop_slots,
    following,
    own_database,
    quick,
    readers,
    refused,
    taken,
)
from support.waiting import eventually

from harvest_lib.errors import PositionLost
from harvest_lib.pipeline.message import Mode, Op


@pytest.fixture(scope="module")
def dsn(stack):
    with own_database(stack) as made:
        yield made


@pytest.fixture
def source(dsn, unique):
    made = PostgresSource(dsn, unique)
    yield made
    made.close()


@pytest.fixture
def reader(source):
    with readers(source) as make:
        yield make


def place(source):
    return f"postgres/{source.slot}"


def test_a_slot_that_is_gone_or_was_moved_on_is_never_made_anew(source, reader):
    first = reader()
    _, last = collect(first, until=lambda _, last: "public.t" in last)
    first.close()
    source.put(1)

    def moved():
        try:
            source.connection.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (source.slot,))
        except psycopg.errors.ObjectInUse:
            return False
        return True

    eventually(moved, 10, "the slot is free")
    error = refused(reader(), last)
    assert isinstance(error, PositionLost)
    assert "moved the slot" in error.cause
    drop_slots(source.connection)
    error = refused(reader(), last)
    assert isinstance(error, PositionLost)
    assert "not there any more" in error.cause


def logged(reader):
    """Have a reader past its copy, let it go, and return what the log has of it."""
    _, last = collect(reader, until=lambda _, last: any(each.mode is Mode.COMPLETE for each in last.values()))
    reader.close()
    return last


def test_a_table_that_was_left_out_for_a_while_is_no_more_followed_as_if_nothing_had_been(source, reader):
    source.connection.execute("CREATE TABLE u (id int PRIMARY KEY)")
    last = logged(reader(tables=["t", "u"]))
    _, last = collect(
        reader(tables=["t"]), last, until=lambda _, last: None in last[f"{place(source)}/tables"].data.values()
    )
    error = refused(reader(tables=["t", "u"]), last)
    assert isinstance(error, PositionLost)
    assert (error.cause.split()[0], error.evidence) == ("public.u", "the pipeline ran without it")


def test_a_table_that_somebody_took_out_of_the_publication_is_not_put_back_as_if_nothing_had_been(source, reader):
    source.connection.execute("CREATE TABLE u (id int PRIMARY KEY)")
    last = logged(reader(tables=["t", "u"]))
    source.connection.execute(sql.SQL("ALTER PUBLICATION {} DROP TABLE u").format(sql.Identifier(source.slot)))
    error = refused(reader(tables=["t", "u"]), last)
    assert isinstance(error, PositionLost)
    assert error.cause.startswith("public.u was not followed for a while")


def test_a_table_that_was_made_anew_is_another(source, reader):
    last = logged(reader())
    source.connection.execute("DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, note text)")
    source.connection.execute(sql.SQL("ALTER PUBLICATION {} ADD TABLE t").format(sql.Identifier(source.slot)))
    error = refused(reader(), last)
    assert isinstance(error, PositionLost)
    assert "made anew" in error.evidence


def test_a_table_that_was_out_of_the_publication_and_is_back_is_known(source, reader):
    last = logged(reader())
    name = sql.Identifier(source.slot)
    for action in ("DROP", "ADD"):
        source.connection.execute(sql.SQL("ALTER PUBLICATION {} {} TABLE t").format(name, sql.SQL(action)))
    assert "it is back by now" in refused(reader(), last).evidence
    source.connection.execute(sql.SQL("DROP PUBLICATION {}").format(name))
    assert "it is back by now" in refused(reader(), last).evidence  # put there by us


@pytest.mark.parametrize("statement", ["ALTER PUBLICATION {} DROP TABLE t", "DROP PUBLICATION {}"])
def test_a_table_that_is_taken_out_of_the_publication_while_it_is_followed_stops_the_reader(source, statement):
    made = quick(source)
    try:
        batches = following(made)
        source.connection.execute(sql.SQL(statement).format(sql.Identifier(source.slot)))
        with pytest.raises(PositionLost, match=r"public\.t was not followed"):
            for _, _batch in zip(range(200), batches, strict=False):
                pass
    finally:
        made.close()


def test_a_table_that_is_renamed_or_dropped_stops_nobody(source):
    made = quick(source)
    try:
        batches = following(made)
        source.connection.execute("ALTER TABLE t RENAME TO other")
        source.connection.execute("INSERT INTO other VALUES (1, 'a')")
        assert [(each.namespace, each.data["id"]) for each in taken(batches, 1)] == [("public.t", 1)]
        source.connection.execute("DROP TABLE other")
        source.connection.execute("CREATE TABLE elsewhere AS SELECT 1")
        places = [each for _, batch in zip(range(10), batches, strict=False) for each in batch]
        assert {each.op for each in places} == {Op.NOOP}
    finally:
        made.close()


def test_a_server_that_lacks_what_was_read_from_it_is_refused(source, reader):
    last = logged(reader())
    ahead = last[place(source)]
    last[place(source)] = ahead._replace(data={**ahead.data, "lsn": "FFFF/0"})
    error = refused(reader(), last)
    assert isinstance(error, PositionLost)
    assert "lacks what was read" in error.cause


def test_a_slot_that_is_moved_while_the_connection_is_lost_is_noticed(source, reader):
    batches = following(reader())
    source.put(1)
    taken(batches, 1)

    def moved():
        source.connection.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")
        try:
            source.connection.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (source.slot,))
        except psycopg.errors.ObjectInUse:
            return False
        return True

    source.put(2)
    eventually(moved, 10, "the slot is moved")
    with pytest.raises(PositionLost, match="moved the slot"):
        for _, _batch in zip(range(100), batches, strict=False):
            pass


def test_anothers_slot_is_refused(source, reader):
    source.connection.execute("SELECT pg_create_physical_replication_slot(%s)", (source.slot,))
    try:
        assert "another's" in refused(reader()).cause
    finally:
        source.connection.execute("SELECT pg_drop_replication_slot(%s)", (source.slot,))
