"""The copy of the Postgres adaptor: a snapshot of all tables, whatever happens to them meanwhile."""

import threading
from base64 import b64encode

import psycopg
import pytest
from psycopg import sql
from support.pipeline_ends import collect, taken
from support.waiting import eventually

from harvest_lib.pipeline.adaptors.postgres import copy
from harvest_lib.pipeline.adaptors.postgres.replication import Replication
from harvest_lib.pipeline.message import Mode, Op

pytestmark = pytest.mark.gate


def two_tables(source):
    source.put(1, 2)
    source.connection.execute("CREATE TABLE u (id int PRIMARY KEY, v int)")
    source.connection.execute("INSERT INTO u SELECT n, n FROM generate_series(1, 5) AS n")


def content(found, namespace):
    """Return the rows of a table that messages leave, by id."""
    table = {}
    for each in found:
        if each.namespace != namespace or each.op is Op.NOOP:
            continue
        match each.op:
            case Op.COMMAND:
                table.clear()
            case Op.DELETE:
                del table[each.data["id"]]
            case _:
                table[each.data["id"]] = each.data.get("v")
    return table


def test_killed_in_the_copy_it_copies_again_and_misses_no_delete(source, reader):
    source.put(*range(1, 11))
    first = reader(batch_rows=3)
    last = {}
    for _, batch in zip(range(2), first.read({}), strict=False):
        last.update((each.namespace, each) for each in batch)
    assert last["public.t"].mode is Mode.COPY
    first.close()
    source.connection.execute("DELETE FROM t WHERE id = 1")  # it was copied before, and will not be again
    source.put(11)
    found, _ = collect(reader(), last, until=lambda found, _: sum(each.data["id"] == 11 for each in found) == 2)
    assert (Op.DELETE, {"id": 1}) in [(each.op, dict(each.data)) for each in found]
    assert {each.data["id"] for each in found if each.mode is Mode.COPY} == set(range(2, 12))


def test_a_table_that_is_added_later_is_copied_while_the_others_go_on(source, reader):
    source.put(1)
    first = reader()
    _, last = collect(first, until=lambda found, last: "public.t" in last and last["public.t"].mode is Mode.COMPLETE)
    first.close()
    source.put(2)
    source.connection.execute("CREATE TABLE u (id int PRIMARY KEY)")
    source.connection.execute("INSERT INTO u VALUES (7)")
    found, _ = collect(reader(tables=["t", "u"]), last, until=lambda found, _: len(found) >= 2)
    assert {(each.namespace, each.data["id"], each.mode) for each in found} == {
        ("public.u", 7, Mode.COPY),
        ("public.t", 2, Mode.SYNC),
    }


def test_a_writer_that_began_before_the_table_was_published_is_waited_for(source, reader):
    first = reader()
    _, last = collect(first, until=lambda _, last: "public.t" in last)
    first.close()
    source.connection.execute("CREATE TABLE u (id int PRIMARY KEY)")
    with psycopg.connect(source.dsn) as early:
        early.execute("INSERT INTO u VALUES (7)")
        batches = reader(tables=["t", "u"]).read(last)
        assert [each.op for each in next(batches)] == [Op.NOOP, Op.NOOP]  # the tables are others now
        assert [next(batches) for _ in range(3)] == [[], [], []]
        early.commit()
        assert [each.data["id"] for each in taken(batches, 1)] == [7]


def test_a_table_that_changes_before_its_copy_leaves_the_others_followed(source, reader):
    run = source.connection.execute
    first = reader()
    _, last = collect(first, until=lambda _, last: "public.t" in last and last["public.t"].mode is Mode.COMPLETE)
    first.close()
    run("CREATE TABLE u (id int PRIMARY KEY)")
    with psycopg.connect(source.dsn) as early:
        early.execute("SELECT pg_current_xact_id()")
        batches = reader(tables=["t", "u"]).read(last)
        assert [each.op for each in next(batches)] == [Op.NOOP, Op.NOOP]
        assert next(batches) == []
        for change in ("DROP", "ADD"):
            run(sql.SQL(f"ALTER PUBLICATION {{}} {change} TABLE u").format(sql.Identifier(source.slot)))
        early.commit()
        noted = next(batch for batch in batches if batch)
    assert noted[0].namespace == f"postgres/{source.slot}/tables"
    assert set(noted[0].data) == {"public.t", "public.u"}
    assert None not in noted[0].data.values()


def test_changes_made_while_it_copies_all_arrive(source, reader):
    """The snapshot is taken before they begin, so the last of them comes last, as a change."""
    source.put(*range(1, 2_001))
    batches, found = reader(batch_rows=50).read({}), []

    def more():
        found.extend(each for each in next(batches) if each.op is not Op.NOOP)
        return found

    def change():
        with psycopg.connect(source.dsn, autocommit=True) as connection:
            for number in range(300):
                connection.execute("UPDATE t SET note = %s WHERE id = %s", (f"v{number}", number % 50 + 1))
                connection.execute("DELETE FROM t WHERE id = %s", (1_000 + number,))
            connection.execute("INSERT INTO t VALUES (0, 'last')")

    changing = threading.Thread(target=change)
    eventually(more, "the copy has begun")
    changing.start()
    eventually(lambda: more()[-1].data["id"] == 0, "the last change has arrived")
    changing.join(60)
    table = {}
    for each in found:
        if each.op is Op.DELETE:
            table.pop(each.data["id"], None)
        else:
            table[each.data["id"]] = each.data["note"]
    assert table == dict(source.connection.execute("SELECT id, note FROM t").fetchall())


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE u ALTER v TYPE bigint",
        "ALTER TABLE u ALTER v TYPE bigint USING v * 10",
        "ALTER TABLE u ADD w timestamptz DEFAULT clock_timestamp()",
        "TRUNCATE u; INSERT INTO u VALUES (7, 7)",
        "VACUUM FULL u",
        "DROP TABLE u; CREATE TABLE u (id int PRIMARY KEY, v int); INSERT INTO u VALUES (9, 9);"
        "ALTER PUBLICATION {} ADD TABLE u",
    ],
)
def test_a_table_that_is_rewritten_before_it_is_copied_arrives_whole(source, reader, statement):
    two_tables(source)
    batches = reader(tables=["t", "u"]).read({})
    next(batch for batch in batches if batch)  # the snapshot is taken, and nothing is copied yet
    for each in statement.format(sql.Identifier(source.slot).as_string(None)).split(";"):
        source.connection.execute(each)
    found = []
    while len([each for each in found if each.mode is Mode.COMPLETE]) < 2:
        found += next(batches)
    found += [each for each in next(batches) if each.op is not Op.NOOP]
    assert content(found, "public.t").keys() == {1, 2}
    source.connection.execute("INSERT INTO u VALUES (100, 100)")
    while 100 not in content(found, "public.u"):
        found += next(batches)
    assert content(found, "public.u") == dict(source.connection.execute("SELECT id, v FROM u").fetchall())


@pytest.mark.parametrize("statement", ["ALTER TABLE u ALTER v TYPE bigint", "TRUNCATE u", "DROP TABLE u"])
def test_what_would_empty_a_snapshot_waits_until_all_tables_are_copied(source, reader, statement):
    two_tables(source)
    batches = reader(tables=["t", "u"], batch_rows=1).read({})
    next(batch for batch in batches if any(each.namespace == "public.t" for each in batch))
    with pytest.raises(psycopg.errors.LockNotAvailable):
        source.connection.execute(f"SET lock_timeout = 200; {statement}")
    found = taken(batches, 6)
    assert content(found, "public.u") == {n: n for n in range(1, 6)}


def test_a_partition_that_is_rewritten_or_attached_before_the_copy_arrives_whole(source, reader):
    run = source.connection.execute
    run("CREATE TABLE parted (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)")
    run("CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (100)")
    run("INSERT INTO parted SELECT n, n FROM generate_series(1, 5) AS n")
    batches = reader(tables=["parted"]).read({})
    next(batch for batch in batches if batch)
    run("CREATE TABLE parted_2 AS SELECT n AS id, n AS v FROM generate_series(100, 105) AS n")
    run("ALTER TABLE parted_2 ALTER id SET NOT NULL")
    run("ALTER TABLE parted ATTACH PARTITION parted_2 FOR VALUES FROM (100) TO (200)")
    run("VACUUM FULL parted_1")
    found = [each for each in taken(batches, 11) if each.op is not Op.NOOP]
    assert content(found, "public.parted") == dict(run("SELECT id, v FROM parted").fetchall())


def test_a_lock_of_another_is_waited_for_and_the_reader_can_be_stopped_meanwhile(source, reader):
    two_tables(source)
    batches = reader(tables=["t", "u"]).read({})
    next(batch for batch in batches if batch)
    with psycopg.connect(source.dsn) as other:
        other.execute("LOCK TABLE u IN ACCESS EXCLUSIVE MODE")
        assert [next(batches), next(batches)] == [[], []]
        other.execute("TRUNCATE u; INSERT INTO u VALUES (7, 7)")
        other.commit()
    found = taken(batches, 3)
    while content(found, "public.u") != {7: 7}:
        found += next(batches)


@pytest.mark.parametrize("prepared", [False, True])
def test_a_pipeline_that_was_stopped_while_its_slot_was_made_begins_once_it_can(
    source, reader, caplog, monkeypatch, prepared
):
    monkeypatch.setattr(copy, "_PATIENCE_SECONDS", 0.0)
    source.put(1)
    holder = psycopg.connect(source.dsn)
    name = source.slot
    if prepared:
        holder.tpc_begin(holder.xid(1, name, "b"))
    holder.execute("INSERT INTO t VALUES (2, 'open')")
    if prepared:
        holder.tpc_prepare()
    left_behind = Replication(source.dsn, {})
    left_behind.ask(f'CREATE_REPLICATION_SLOT "{name}" LOGICAL pgoutput EXPORT_SNAPSHOT')
    place = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s"
    waits = """
        SELECT FROM pg_replication_slots JOIN pg_stat_activity ON pid = active_pid
        WHERE slot_name = %s AND wait_event_type = 'Lock'
    """
    eventually(lambda: source.connection.execute(waits, (name,)).fetchone() is not None, "it waits for a transaction")
    left_behind.close()  # as at a stop: the server's side does not notice
    assert source.connection.execute(place, (name,)).fetchone() == (None,)
    batches = reader().read({})
    with caplog.at_level("INFO"):
        while not (said := [each for each in caplog.records if each.msg == "reader_waits"]):
            assert next(batches) == []
    who = f"'1_{b64encode(name.encode()).decode()}_" if prepared else f"pid {holder.info.backend_pid} (idle in"
    assert who in said[0].reason
    holder.tpc_commit() if prepared else holder.commit()
    holder.close()
    found = []
    while not any(each.mode is Mode.COMPLETE for each in found):
        found += next(batches)
    assert next(batches) == []  # the copy's transaction is over
    assert [each.data["id"] for each in found if each.mode is Mode.COPY] == [1, 2]
    assert [each.data["lsn"] for each in found if each.namespace == f"postgres/{name}"] != ["None"]
    source.put(3)
    assert [each.data["id"] for each in taken(batches, 1)] == [3]
