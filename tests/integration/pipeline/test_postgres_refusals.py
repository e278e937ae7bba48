"""Refusals of the Postgres reader: gaps, where a slot, a table or a server is not what it was, and bad input."""

from contextlib import closing

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from support.pipeline_ends import collect, drop_slots, following, quick, refused, taken
from support.waiting import eventually

from harvest_lib.errors import DatabaseAccessDenied, PositionLost
from harvest_lib.pipeline.message import Mode, Op

pytestmark = pytest.mark.gate

ADD, DROP = "ALTER PUBLICATION {} ADD TABLE t", "ALTER PUBLICATION {} DROP TABLE t"


@pytest.fixture
def source(followed):
    return followed


def place(source):
    return f"postgres/{source.slot}"


def lost(reader, last):
    error = refused(reader, last)
    assert isinstance(error, PositionLost)
    return error


def move_slot(source, *, end_sessions=False):
    """Move the slot on as soon as nobody has it."""

    def moved():
        if end_sessions:
            source.connection.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")
        try:
            source.connection.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (source.slot,))
        except psycopg.errors.ObjectInUse:
            return False
        return True

    eventually(moved, "the slot is moved")


def test_a_slot_that_is_gone_or_was_moved_on_is_never_made_anew(source, reader):
    first = reader()
    _, last = collect(first, until=lambda _, last: "public.t" in last)
    first.close()
    source.put(1)
    move_slot(source)
    assert "moved the slot" in lost(reader(), last).cause
    drop_slots(source.connection)
    assert "not there any more" in lost(reader(), last).cause


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
    error = lost(reader(tables=["t", "u"]), last)
    assert (error.cause.split()[0], error.evidence) == ("public.u", "the pipeline ran without it")


@pytest.mark.parametrize(
    ("statements", "evidence"),
    [
        (["DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, note text)", ADD], "recreated"),
        ([DROP, ADD], "it is back by now"),
        ([DROP], "it is back by now"),  # put there by us
        (["DROP PUBLICATION {}"], "it is back by now"),
    ],
)
def test_a_table_that_was_made_anew_or_out_of_the_publication_is_known(source, reader, statements, evidence):
    last = logged(reader())
    for each in statements:
        source.connection.execute(sql.SQL(each).format(sql.Identifier(source.slot)))
    error = lost(reader(), last)
    assert error.cause.startswith("public.t was not followed for a while")
    assert evidence in error.evidence


@pytest.mark.parametrize("statement", [DROP, "DROP PUBLICATION {}"])
def test_a_table_that_is_taken_out_of_the_publication_while_it_is_followed_stops_the_reader(source, statement):
    with closing(quick(source)) as made:
        batches = following(made)
        source.connection.execute(sql.SQL(statement).format(sql.Identifier(source.slot)))
        with pytest.raises(PositionLost, match=r"public\.t was not followed"):
            for _, _batch in zip(range(200), batches, strict=False):
                pass


def test_a_table_that_is_renamed_or_dropped_stops_nobody(source):
    with closing(quick(source)) as made:
        batches = following(made)
        source.connection.execute("ALTER TABLE t RENAME TO other")
        source.connection.execute("INSERT INTO other VALUES (1, 'a')")
        assert [(each.namespace, each.data["id"]) for each in taken(batches, 1)] == [("public.t", 1)]
        source.connection.execute("DROP TABLE other")
        source.connection.execute("CREATE TABLE elsewhere AS SELECT 1")
        places = [each for _, batch in zip(range(10), batches, strict=False) for each in batch]
        assert {each.op for each in places} == {Op.NOOP}


def test_a_server_that_lacks_what_was_read_from_it_is_refused(source, reader):
    last = logged(reader())
    ahead = last[place(source)]
    last[place(source)] = ahead._replace(data={**ahead.data, "lsn": "FFFF/0"})
    assert "lacks what was read" in lost(reader(), last).cause


def test_a_slot_that_is_moved_while_the_connection_is_lost_is_noticed(source, reader):
    batches = following(reader())
    source.put(1)
    taken(batches, 1)
    source.put(2)
    move_slot(source, end_sessions=True)
    with pytest.raises(PositionLost, match="moved the slot"):
        for _, _batch in zip(range(100), batches, strict=False):
            pass


def test_anothers_slot_is_refused(source, reader):
    source.connection.execute("SELECT pg_create_physical_replication_slot(%s)", (source.slot,))
    try:
        assert "another's" in refused(reader()).cause
    finally:
        source.connection.execute("SELECT pg_drop_replication_slot(%s)", (source.slot,))


# -- bad input


def test_a_table_without_a_key_is_refused_before_any_slot_is_made(source, reader):
    source.connection.execute("CREATE TABLE bare (id int)")
    error = refused(reader(tables=["t", "bare"]))
    assert error.cause.startswith("public.bare cannot be followed")
    assert "PRIMARY KEY" in error.next_step
    assert not source.connection.execute(
        "SELECT FROM pg_replication_slots WHERE slot_name = %s", (source.slot,)
    ).fetchall()


def test_a_table_that_is_not_there_is_named(source, reader):
    assert refused(reader(tables=["t", "nowhere"])).cause == "there is no table public.nowhere"


def test_no_publication_and_no_tables(reader):
    assert "there is no publication" in refused(reader(tables=[])).cause


def test_a_publication_that_leaves_changes_out(source, reader):
    source.connection.execute("CREATE PUBLICATION partial FOR TABLE t WITH (publish = 'insert, update, delete')")
    error = refused(reader(publication="partial"))
    assert "leaves some changes out" in error.cause
    source.connection.execute(error.next_step)
    following(reader(publication="partial"))


def test_a_role_without_rights_is_told_the_statement_that_helps(source, unique):
    role = unique("role")[:63]
    source.connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'p'").format(sql.Identifier(role)))
    source.dsn = make_conninfo(source.dsn, user=role, password="p")
    try:
        for expected in ("REPLICATION", "CREATE PUBLICATION", "GRANT SELECT ON"):
            made = source.reader()
            error = refused(made)
            made.close()
            assert expected in error.next_step
            match expected:
                case "REPLICATION":
                    source.connection.execute(sql.SQL("ALTER ROLE {} REPLICATION").format(sql.Identifier(role)))
                case "CREATE PUBLICATION":
                    source.connection.execute(error.next_step.partition(": ")[2])
        source.connection.execute(sql.SQL("GRANT SELECT ON t TO {}").format(sql.Identifier(role)))
        made = source.reader()
        following(made)
        made.close()
    finally:
        source.connection.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
        source.connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def test_rows_that_a_policy_hides_are_not_left_out_of_the_copy(source, reader, unique):
    role = unique("role")[:63]
    run = source.connection.execute
    run(sql.SQL("CREATE ROLE {} LOGIN REPLICATION PASSWORD 'p'").format(sql.Identifier(role)))
    run(sql.SQL("GRANT SELECT ON t TO {}").format(sql.Identifier(role)))
    run(sql.SQL("CREATE PUBLICATION {} FOR TABLE t").format(sql.Identifier(source.slot)))
    run("ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY hides ON t USING (id > 1)")
    source.put(1, 2)
    source.dsn = make_conninfo(source.dsn, user=role, password="p")
    made = source.reader()
    try:
        error = refused(made)
        assert isinstance(error, DatabaseAccessDenied)
        assert "row-level security" in error.evidence
        assert "BYPASSRLS" in error.next_step
    finally:
        made.close()
        run(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
        run(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))
