"""Refusals of the Postgres reader: gaps, where a slot, a table or a server is not what it was, and bad input."""

from contextlib import closing

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from support.pipeline_ends import collect, drop_slots, following, quick, refused, taken
from support.waiting import eventually

from harvest_lib.errors import DatabaseAccessDenied, HarvestError, PositionLost
from harvest_lib.pipeline.message import Mode, Op

pytestmark = pytest.mark.gate

ADD, DROP = "ALTER PUBLICATION {} ADD TABLE t", "ALTER PUBLICATION {} DROP TABLE t"
PART = "ALTER PUBLICATION {} SET (publish = 'insert')"
WHOLE = "ALTER PUBLICATION {} SET (publish = 'insert, update, delete, truncate')"
LEAVES, ROOT = (f"ALTER PUBLICATION {{}} SET (publish_via_partition_root = {each})" for each in ("false", "true"))


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
    gone = lost(reader(), last)
    assert "not there any more" in gone.cause
    assert not gone.wears_off, "a failover may bring it late"
    source.connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (source.slot,))
    assert "moved the slot" in lost(reader(), last).cause


def logged(reader, tables=1):
    """Have a reader past its copy of so many tables, let it go, and return what the log has of it."""
    _, last = collect(reader, until=lambda _, last: sum(each.mode is Mode.COMPLETE for each in last.values()) == tables)
    reader.close()
    return last


def test_a_table_that_was_left_out_for_a_while_is_no_more_followed_as_if_nothing_had_been(source, reader):
    source.connection.execute("CREATE TABLE u (id int PRIMARY KEY)")
    last = logged(reader(tables=["t", "u"]), tables=2)
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
        ([PART, WHOLE], "the publication was altered"),
        ([ROOT, LEAVES], "the publication was altered"),
        (["ALTER PUBLICATION {} SET TABLE t WHERE (id > 7)", "ALTER PUBLICATION {} SET TABLE t"], "it is back by now"),
        (["ALTER PUBLICATION {} SET TABLE t (id)", "ALTER PUBLICATION {} SET TABLE t"], "it is back by now"),
    ],
)
def test_a_table_that_was_made_anew_or_out_of_the_publication_is_known(source, reader, statements, evidence):
    last = logged(reader())
    for each in statements:
        source.connection.execute(sql.SQL(each).format(sql.Identifier(source.slot)))
    error = lost(reader(), last)
    assert error.cause.startswith("public.t was not followed for a while")
    assert evidence in error.evidence


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize(
    "statements",
    [
        [DROP],
        ["DROP PUBLICATION {}"],
        [DROP, "DELETE FROM t", ADD],
        [PART, "DELETE FROM t", WHOLE],
        [LEAVES, ROOT],
        ["ALTER PUBLICATION {} SET TABLE t WHERE (id > 7)", "DELETE FROM t", "ALTER PUBLICATION {} SET TABLE t"],
        ["ALTER PUBLICATION {} RENAME TO other", "ALTER PUBLICATION other RENAME TO {}"],
        ["ALTER TABLE t RENAME TO before", "CREATE TABLE t (LIKE before INCLUDING ALL)"],
        ["DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY, note text)"],
    ],
)
def test_what_may_have_left_changes_out_stops_the_reader_and_each_that_starts_later(source, statements):
    source.put(1)
    last = {}
    with closing(quick(source)) as made:
        batches = made.read({})
        while not (last and next(reversed(last.values())).mode is Mode.COMPLETE):
            last.update((each.namespace, each) for each in next(batches))
        assert next(batches) == []
        for each in statements:
            source.connection.execute(sql.SQL(each).format(sql.Identifier(source.slot)))
        with pytest.raises(PositionLost, match=r"public\.t was not followed"):
            for _, batch in zip(range(200), batches, strict=False):
                last.update((each.namespace, each) for each in batch)
    for _ in range(2):
        with closing(quick(source)) as again, pytest.raises(PositionLost, match=r"public\.t was not followed"):
            next(again.read(last))


def test_partitions_that_are_followed_by_the_entry_of_their_table_are_missed_without_it(source, reader):
    run = source.connection.execute
    run("CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    run("CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (100)")
    run("CREATE PUBLICATION leaves FOR TABLE parted")
    last = logged(reader(publication="leaves", tables=["parted_1"]))
    run("ALTER PUBLICATION leaves DROP TABLE parted; ALTER PUBLICATION leaves ADD TABLE parted")
    assert "it is back by now" in lost(reader(publication="leaves", tables=["parted_1"]), last).evidence


@pytest.fixture
def parted(source):
    """A partitioned table with one partition; what executes statements."""
    run = source.connection.execute
    run("CREATE TABLE parted (id int PRIMARY KEY, u int NOT NULL) PARTITION BY RANGE (id)")
    run("CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (100)")
    run("CREATE UNIQUE INDEX by_u ON parted_1 (u)")
    yield run
    run("DROP TABLE parted")


UNSENT = {
    "an unlogged partition": "CREATE UNLOGGED TABLE parted_2 PARTITION OF parted FOR VALUES FROM (100) TO (200)",
    "a partition that becomes unlogged": "ALTER TABLE parted_1 SET UNLOGGED",
    "another replica identity": "ALTER TABLE parted_1 REPLICA IDENTITY USING INDEX by_u",
    "the full row of the table alone": "ALTER TABLE parted REPLICA IDENTITY FULL",
}


@pytest.mark.parametrize("statement", UNSENT.values(), ids=UNSENT)
def test_a_partition_whose_changes_are_not_sent_is_refused_before_any_slot_is_made(source, reader, parted, statement):
    parted(statement)
    error = refused(reader(tables=["parted"]))
    assert error.cause == "public.parted cannot be followed: Postgres does not send all its changes"
    assert "public.parted_" in error.evidence
    assert not parted("SELECT FROM pg_replication_slots WHERE slot_name = %s", (source.slot,)).fetchall()
    parted(error.next_step.partition(";")[0])
    following(reader(tables=["parted"]))


@pytest.mark.parametrize("statement", UNSENT.values(), ids=UNSENT)
def test_a_partition_whose_changes_are_not_sent_any_more_stops_the_reader(source, parted, statement):
    with closing(quick(source, tables=["parted"])) as made:
        batches = following(made)
        parted(statement)
        with pytest.raises(HarvestError) as stopped:
            for _, _batch in zip(range(200), batches, strict=False):
                pass
    assert isinstance(stopped.value, PositionLost) == ("UNLOGGED" in statement)
    assert "public.parted_" in stopped.value.evidence


def test_changes_of_a_partition_that_was_unlogged_while_nobody_read_are_lost(source, reader, parted):
    last = logged(reader(tables=["parted"]))
    parted("ALTER TABLE parted_1 SET UNLOGGED")
    error = lost(reader(tables=["parted"]), last)
    assert "unlogged" in error.evidence
    assert error.next_step.startswith("ALTER TABLE public.parted_1 SET LOGGED")


def test_a_table_of_a_schema_that_is_published_is_missed_without_it(source, reader):
    run = source.connection.execute
    run("CREATE PUBLICATION of_schema FOR TABLES IN SCHEMA public; CREATE SCHEMA elsewhere")
    last = logged(reader(publication="of_schema", tables=[]))
    run("CREATE TABLE another (id int PRIMARY KEY)")  # of no matter
    collect(reader(publication="of_schema", tables=["t"]), last, until=lambda found, _: True)
    run("ALTER PUBLICATION of_schema DROP TABLES IN SCHEMA public")
    run("ALTER PUBLICATION of_schema ADD TABLES IN SCHEMA public")
    assert "it is back by now" in lost(reader(publication="of_schema", tables=["t"]), last).evidence
    run("DROP SCHEMA elsewhere")


def test_a_table_that_moves_out_of_the_schema_that_is_published_stops_the_reader(source):
    run = source.connection.execute
    run(sql.SQL("CREATE PUBLICATION {} FOR TABLES IN SCHEMA public").format(sql.Identifier(source.slot)))
    run("CREATE SCHEMA elsewhere")
    try:
        with closing(quick(source)) as made:
            batches = following(made)
            run("ALTER TABLE t SET SCHEMA elsewhere")
            with pytest.raises(PositionLost, match="it was taken out of the publication"):
                for _, _batch in zip(range(200), batches, strict=False):
                    pass
    finally:
        run("DROP SCHEMA elsewhere CASCADE")


def test_another_entry_of_a_table_in_the_publication_changes_nothing(source, reader):
    last = logged(reader())
    statement = "ALTER PUBLICATION {} ADD TABLES IN SCHEMA public"
    source.connection.execute(sql.SQL(statement).format(sql.Identifier(source.slot)))
    source.put(7)
    found, _ = collect(reader(), last, until=lambda found, _: bool(found))
    assert [each.data["id"] for each in found] == [7]


def test_a_large_value_is_never_that_of_the_table_which_took_the_name(source, reader):
    run = source.connection.execute
    run("ALTER TABLE t ALTER note SET STORAGE EXTERNAL, ADD n int")
    batches = following(reader())
    run("INSERT INTO t VALUES (1, repeat('x', 20000), 1)")
    assert [len(each.data["note"]) for each in taken(batches, 1)] == [20_000]
    run("UPDATE t SET n = 2")
    run("ALTER TABLE t RENAME TO before")
    run("CREATE TABLE t (LIKE before INCLUDING ALL); INSERT INTO t VALUES (1, 'of another', 1)")
    assert [(each.data["n"], each.data["note"][:3]) for each in taken(batches, 1)] == [(2, "xxx")]
    run("CREATE SCHEMA elsewhere; ALTER TABLE before SET SCHEMA elsewhere; UPDATE elsewhere.before SET n = 3")
    assert [(each.data["n"], each.data["note"][:3]) for each in taken(batches, 1)] == [(3, "xxx")]
    run("UPDATE elsewhere.before SET n = 4; DROP SCHEMA elsewhere CASCADE")
    assert [dict(each.data) for each in taken(batches, 1)] == [{"id": 1, "n": 4}]


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


@pytest.mark.parametrize("lacks", ["commit", "timeline", "public.t"])
def test_a_position_of_another_version_is_refused_by_that_name_and_the_next_step_works(source, reader, lacks):
    """Not as a gap in the publication, or a server that was put back: nobody would find either."""
    source.put(1)
    first = reader()
    _, last = collect(first, until=lambda found, last: found and place(source) in last and "public.t" in last)
    first.close()
    name = f"{place(source)}/tables" if lacks == "public.t" else place(source)
    data = dict(last[name].data)
    if lacks == "public.t":
        data[lacks] = [data[lacks][0], *data[lacks][2:]]
    else:
        del data[lacks]
    error = lost(reader(), {**last, name: last[name]._replace(data=data)})
    assert "written by another version" in error.cause
    assert lacks in error.evidence
    assert f"pg_drop_replication_slot('{source.slot}')" in error.next_step
    drop_slots(source.connection)
    again = reader()  # with another folder
    found, _ = collect(again, until=lambda found, _: found)
    assert [each.data["id"] for each in found] == [1]
