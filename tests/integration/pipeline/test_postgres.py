"""The Postgres adaptor beyond the contract: every kind of change, restarts, the slot, what writing refuses."""

import threading
from base64 import b64encode
from contextlib import closing, suppress
from dataclasses import replace
from decimal import Decimal
from itertools import islice

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from support.pipeline_ends import collect, following, opened, quick, taken
from support.pipelines import Running, Script, declared
from support.waiting import eventually

from harvest_lib.errors import AdaptorError, MessageRefused
from harvest_lib.pipeline.adaptors import writing
from harvest_lib.pipeline.adaptors.postgres import copy
from harvest_lib.pipeline.adaptors.postgres.replication import Replication
from harvest_lib.pipeline.adaptors.postgres.slot_watch import SlotWatch
from harvest_lib.pipeline.message import Mode, Op, PipelineMessage

pytestmark = pytest.mark.gate

WIDE = """
CREATE DOMAIN positive AS int CHECK (value > 0);
CREATE TYPE mood AS ENUM ('fair', 'foul');
CREATE TABLE wide (
  id positive PRIMARY KEY, b bool, i8 bigint, f4 real, f8 float8, n numeric, fixed numeric(8, 2), t text, v varchar(5),
  c char(4), bits bit(4), vb varbit, bin bytea, d date, ts timestamp, tz timestamptz, span interval, u uuid,
  j json, jb jsonb, a int[], ta text[], ca char(3)[], m mood, net inet, r int4range,
  made int GENERATED ALWAYS AS (id * 2) STORED, "Odd ""%" text)
"""
FILL = """
INSERT INTO wide (id, b, i8, f4, f8, n, fixed, t, v, c, bits, vb, bin, d, ts, tz, span, u, j, jb, a, ta, ca, m, net, r,
  "Odd ""%")
VALUES (1, true, -9223372036854775808, 0.1, 1e300, 'NaN', 1.10, E'é\\n\\\\', 'abc', 'abcd', '1010', '10101', '\\x00ff',
  '2013-01-01', 'infinity', '2013-01-01 05:15:00.123456+02', '1 mon -3 days', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11',
  '{"a": 1.10}', '"text"', '{1,NULL}', '{"a,b",""}', '{abc,d}', 'foul', '10.0.0.0/8', '[1,5)', 'odd'),
  (2, NULL, NULL, 'NaN', '-Infinity', 1e100, NULL, '', NULL, NULL, NULL, '', '', '0044-03-15 BC', NULL, 'infinity',
  NULL, NULL, 'null', 'null', '{}', NULL, NULL, NULL, NULL, 'empty', NULL)
"""


@pytest.fixture
def source(followed):
    return followed


def changes(found):
    return [(each.op, dict(each.data)) for each in found]


def test_copy_says_where_it_begins_and_when_it_is_complete(source, reader):
    source.put(1, 2, 3)
    made = reader(batch_rows=2)
    batches = [batch for _, batch in zip(range(3), filter(None, made.read({})), strict=False)]
    assert [[(each.op, each.mode, each.namespace) for each in batch] for batch in batches] == [
        [(Op.NOOP, Mode.SYNC, f"postgres/{source.slot}"), (Op.NOOP, Mode.SYNC, f"postgres/{source.slot}/tables")],
        [(Op.INSERT, Mode.COPY, "public.t")] * 2,
        [(Op.INSERT, Mode.COPY, "public.t"), (Op.NOOP, Mode.COMPLETE, "public.t")],
    ]


def test_each_kind_of_change(source, reader):
    run = source.connection.execute
    batches = following(reader())
    run("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    run("UPDATE t SET note = 'c' WHERE id = 1")
    run("UPDATE t SET id = 3 WHERE id = 1")
    run("DELETE FROM t WHERE id = 2")
    with source.connection.transaction(force_rollback=True):
        run("INSERT INTO t VALUES (99, 'never')")
    run("ALTER TABLE t ADD late timestamptz")
    run("UPDATE t SET late = '2013-01-01 00:00:00+00'")
    run("TRUNCATE t")
    found = taken(batches, 8)
    assert changes(found)[:6] == [
        (Op.INSERT, {"id": 1, "note": "a"}),
        (Op.INSERT, {"id": 2, "note": "b"}),
        (Op.UPDATE, {"id": 1, "note": "c"}),
        (Op.DELETE, {"id": 1}),
        (Op.INSERT, {"id": 3, "note": "c"}),
        (Op.DELETE, {"id": 2}),
    ]
    assert found[6].data["late"].isoformat() == "2013-01-01T00:00:00+00:00"
    assert changes(found)[7:] == [(Op.COMMAND, {"command": "truncate"})]
    assert {each.mode for each in found} == {Mode.SYNC}


def test_a_large_value_that_an_update_leaves_alone_comes_whole(source, reader):
    source.connection.execute("ALTER TABLE t ALTER note SET STORAGE EXTERNAL, ADD n int")
    batches = following(reader())
    source.connection.execute("INSERT INTO t VALUES (1, repeat('x', 20000), 1)")
    source.connection.execute("UPDATE t SET n = 2")
    assert [len(each.data["note"]) for each in taken(batches, 2)] == [20_000, 20_000]
    source.connection.execute("UPDATE t SET n = 3")  # gone by the time it is read: its delete follows
    source.connection.execute("UPDATE t SET id = 2")
    gone, new = taken(batches, 2)
    assert (gone.op, gone.data) == (Op.DELETE, {"id": 1})
    assert (new.op, len(new.data["note"])) == (Op.INSERT, 20_000)


@pytest.mark.parametrize(
    ("of_type", "value", "becomes", "arrives"),
    [
        ("bytea", "decode(repeat('00', 9000), 'hex')", "text USING 'abcd12'", "abcd12"),
        ("bytea", "decode(repeat('00', 9000), 'hex')", "text USING 'none'", "none"),
        ("numeric", "repeat('9', 20000)::numeric", "text USING 'none'", "none"),
        ("text", "repeat('9', 20000)", "numeric USING 1.50", Decimal("1.50")),
        ("text", "repeat('9', 20000)", "bytea USING '\\x00ff'", b"\0\xff"),
        ("text", "repeat('9', 20000)", "blob USING '\\x00ff'", b"\0\xff"),
    ],
)
def test_a_large_value_is_of_the_type_that_its_column_has_by_now(source, reader, of_type, value, becomes, arrives):
    run = source.connection.execute
    run("CREATE DOMAIN blob AS bytea")
    run(f"CREATE TABLE large (id int PRIMARY KEY, big {of_type}, n int)")
    run("ALTER TABLE large ALTER big SET STORAGE EXTERNAL")
    batches = following(reader(tables=["large"]))
    run(f"INSERT INTO large VALUES (1, {value}, 1)")  # noqa: S608 - ours
    run("UPDATE large SET n = 2")
    run(f"ALTER TABLE large ALTER big TYPE {becomes}")
    assert taken(batches, 2)[1].data == {"id": 1, "big": arrives, "n": 2}


@pytest.mark.parametrize("key", ["uid", "id, uid"])
@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_a_key_that_is_stored_out_of_line_is_whole(source, reader, key, identity):
    run = source.connection.execute
    run(f"CREATE TABLE far (id int, uid text, note text, PRIMARY KEY ({key}))")
    run(f"ALTER TABLE far ALTER uid SET STORAGE EXTERNAL, REPLICA IDENTITY {identity}")
    batches = following(reader(tables=["far"]))
    run("INSERT INTO far SELECT n, n || repeat('x', 2300), 'a' FROM generate_series(1, 4) AS n")
    run("UPDATE far SET note = 'b' WHERE id < 3")
    run("UPDATE far SET id = 7 WHERE id = 2")
    run("DELETE FROM far WHERE id = 3")
    table = {}
    for each in taken(batches, 9 if key == "id, uid" else 8):
        named = tuple(each.data[name] for name in key.split(", "))
        if each.op is Op.DELETE:
            del table[named]
        else:
            table[named] = (each.data["id"], each.data["uid"], each.data["note"])
    assert sorted(table.values()) == run("SELECT * FROM far ORDER BY id").fetchall()


def test_columns_may_be_renamed_and_dropped_while_nobody_reads(source, reader):
    run = source.connection.execute
    run("ALTER TABLE t ALTER note SET STORAGE EXTERNAL, ADD n int")
    batches = following(reader())
    run("INSERT INTO t VALUES (1, repeat('x', 20000), 1), (2, 'b', 2), (3, 'c', 3)")
    run("UPDATE t SET n = 5 WHERE id = 1")
    run("DELETE FROM t WHERE id = 2")
    run("ALTER TABLE t RENAME id TO ident")
    run("ALTER TABLE t DROP note")
    run("DELETE FROM t WHERE ident = 3")
    assert changes(taken(batches, 6))[3:] == [
        (Op.UPDATE, {"id": 1, "n": 5}),  # its large value is nowhere any more
        (Op.DELETE, {"id": 2}),
        (Op.DELETE, {"ident": 3}),
    ]


def test_under_the_full_row_as_identity_a_key_that_becomes_another_leaves_no_row_behind(source, reader, write, unique):
    run, copy_of = source.connection.execute, unique("copy")[:50]
    run("CREATE TABLE full_row (id int, b int NOT NULL, v text, PRIMARY KEY (id))")
    run("ALTER TABLE full_row REPLICA IDENTITY FULL")
    run(f"CREATE TABLE {copy_of} (LIKE full_row INCLUDING ALL)")
    batches = following(reader(tables=["full_row"]))

    def copied(count):
        write(*[(each.op, copy_of, each.data) for each in taken(batches, count)])
        return run(sql.SQL("SELECT * FROM {} ORDER BY b").format(sql.Identifier(copy_of))).fetchall()

    run("INSERT INTO full_row VALUES (1, 10, 'x'), (2, 20, NULL)")
    assert copied(2) == [(1, 10, "x"), (2, 20, None)]
    for table in ("full_row", copy_of):
        run(f"ALTER TABLE {table} DROP CONSTRAINT {table}_pkey, ADD PRIMARY KEY (b)")
    run("UPDATE full_row SET b = 11 WHERE b = 10")  # the first key stays
    run("UPDATE full_row SET id = 3 WHERE b = 20")
    run("UPDATE full_row SET id = id")
    run("INSERT INTO full_row VALUES (3, 30, 'y')")
    run("DELETE FROM full_row WHERE b = 20")
    assert copied(8) == run("SELECT * FROM full_row ORDER BY b").fetchall() == [(1, 11, "x"), (3, 30, "y")]


@pytest.mark.parametrize("stopped", [False, True])
def test_under_the_full_row_as_identity_the_key_may_be_renamed(source, reader, stopped):
    run = source.connection.execute
    run("CREATE TABLE named (id int PRIMARY KEY, note text)")
    run("ALTER TABLE named REPLICA IDENTITY FULL")
    made = reader(tables=["named"])
    if stopped:
        _, last = collect(
            made, until=lambda _, last: "public.named" in last and last["public.named"].mode is Mode.COMPLETE
        )
        made.close()
    batches = None if stopped else following(made)
    run("INSERT INTO named VALUES (1, 'a')")
    run("UPDATE named SET note = 'b'")
    if batches:
        assert [each.op for each in taken(batches, 2)] == [Op.INSERT, Op.UPDATE]
    run("ALTER TABLE named RENAME id TO ident")
    run("UPDATE named SET note = NULL")
    run("DELETE FROM named")
    row = {"ident": 1, "note": None}
    if not stopped:
        assert changes(taken(batches, 3)) == [
            (Op.DELETE, {"ident": 1, "note": "b"}),
            (Op.INSERT, row),
            (Op.DELETE, row),
        ]
        return
    batches = reader(tables=["named"]).read(last)
    assert changes(taken(batches, 5)) == [
        (Op.INSERT, {"id": 1, "note": "a"}),
        (Op.DELETE, {"id": 1, "note": "a"}),
        (Op.INSERT, {"id": 1, "note": "b"}),
        (Op.UPDATE, row),
        (Op.DELETE, row),
    ]


def test_a_key_that_carries_other_columns_is_still_the_key(source, reader, write):
    run = source.connection.execute
    run("CREATE TABLE carries (id int, note text, PRIMARY KEY (id) INCLUDE (note))")
    run("INSERT INTO carries VALUES (1, 'a'), (2, 'b')")
    batches = following(reader(tables=["carries"]))
    run("DELETE FROM carries WHERE id = 1")
    assert changes(taken(batches, 1)) == [(Op.DELETE, {"id": 1})]
    run("ALTER TABLE carries REPLICA IDENTITY FULL")
    run("UPDATE carries SET note = 'x'")
    assert changes(taken(batches, 1)) == [(Op.UPDATE, {"id": 2, "note": "x"})]
    write((Op.INSERT, "carries", {"id": 2, "note": "c"}), (Op.INSERT, "carries", {"id": 3, "note": "d"}))
    assert run("SELECT * FROM carries ORDER BY id").fetchall() == [(2, "c"), (3, "d")]


def test_rows_of_tables_that_inherit_are_theirs_also_in_the_copy(source, reader):
    run = source.connection.execute
    run("CREATE TABLE child (PRIMARY KEY (id)) INHERITS (t)")
    run("INSERT INTO t VALUES (1, 'own'); INSERT INTO child VALUES (2, 'the other')")
    run("CREATE PUBLICATION two FOR TABLE t")  # tables that inherit are published, too
    batches = reader(publication="two", tables=[]).read({})
    found = taken(batches, 2)
    assert sorted((each.namespace, each.data["id"]) for each in found) == [("public.child", 2), ("public.t", 1)]


def test_tables_that_are_not_named_do_not_come_though_the_publication_has_them(source, reader):
    run = source.connection.execute
    run("CREATE TABLE s (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
    run("INSERT INTO s VALUES (1); INSERT INTO t VALUES (2, ''); INSERT INTO u VALUES (3)")
    run("CREATE PUBLICATION three FOR TABLE s, t, u")
    batches = reader(publication="three", tables=["t"]).read({})
    found = taken(batches, 1)
    run("INSERT INTO s VALUES (4); INSERT INTO u VALUES (5); INSERT INTO t VALUES (6, '')")
    assert [(each.namespace, each.data["id"]) for each in [*found, *taken(batches, 1)]] == [
        ("public.t", 2),
        ("public.t", 6),
    ]


def test_every_type_is_the_same_copied_or_followed_and_arrives_the_same(source, reader):
    run = source.connection.execute
    run(WIDE)
    run(FILL)
    made = reader(tables=["wide"])
    copied, _ = collect(made, until=lambda found, _: len(found) == 2)
    made.close()
    run("CREATE TABLE arrived (LIKE wide INCLUDING ALL)")
    source.slot += "2"
    batches = following(reader(tables=["public.wide"], publication="wide2"))
    run("DELETE FROM wide")
    run(FILL)
    followed = taken(batches, 4)[2:]
    assert [repr(each.data) for each in followed] == [repr(each.data) for each in copied]
    with closing(opened(writing("postgres"), data_source=source.dsn, table="arrived")) as writer:
        writer.write(followed)
    assert (
        run("SELECT w::text FROM wide AS w ORDER BY id").fetchall()
        == run("SELECT w::text FROM arrived AS w ORDER BY id").fetchall()
    )


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
    assert (Op.DELETE, {"id": 1}) in changes(found)
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


def test_a_large_value_is_found_by_a_key_whose_type_is_in_another_schema(source, reader):
    run = source.connection.execute
    run("CREATE SCHEMA other; CREATE TYPE other.word")
    try:
        _make_word(run)
        run("CREATE TABLE odd (word other.word PRIMARY KEY, note text, n int)")
        run("ALTER TABLE odd ALTER note SET STORAGE EXTERNAL")
        batches = following(reader(tables=["odd"]))
        run("INSERT INTO odd VALUES ('a', repeat('x', 20000), 1)")
        run("UPDATE odd SET n = 2")
        assert [(each.data["word"], len(each.data["note"])) for each in taken(batches, 2)] == [("a", 20_000)] * 2
    finally:
        run("DROP SCHEMA other CASCADE")


def _make_word(run):
    """Make `other.word`: text without a cast, with operators in its schema, as types of extensions are."""
    run("""
    CREATE FUNCTION other.word_in(cstring) RETURNS other.word LANGUAGE internal IMMUTABLE STRICT AS 'textin';
    CREATE FUNCTION other.word_out(other.word) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout';
    CREATE TYPE other.word (INPUT = other.word_in, OUTPUT = other.word_out, LIKE = text, COLLATABLE = true);
    CREATE FUNCTION other.compare(other.word, other.word) RETURNS int LANGUAGE internal IMMUTABLE STRICT AS 'bttextcmp'
    """)
    operators = {"<": "text_lt", "<=": "text_le", "=": "texteq", ">=": "text_ge", ">": "text_gt"}
    for operator, function in operators.items():
        run(
            f"CREATE FUNCTION other.{function}(other.word, other.word) RETURNS bool LANGUAGE internal IMMUTABLE STRICT "
            f"AS '{function}'"
        )
        sides = "LEFTARG = other.word, RIGHTARG = other.word"
        run(f"CREATE OPERATOR other.{operator} ({sides}, FUNCTION = other.{function})")
    listed = ", ".join(f"OPERATOR {number} other.{each}" for number, each in enumerate(operators, 1))
    run(
        f"CREATE OPERATOR CLASS other.words DEFAULT FOR TYPE other.word USING btree AS {listed}, "
        "FUNCTION 1 other.compare(other.word, other.word)"
    )


def confirmed(source):
    statement = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
    return source.connection.execute(statement, (source.slot,)).fetchone()[0]


def test_the_slot_is_confirmed_by_kept_and_never_before(source, reader):
    made = reader()
    batches = following(made)
    before = confirmed(source)
    source.put(1)
    last = {each.namespace: each for each in next(batch for batch in batches if batch)}
    source.connection.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active_pid > 0")
    source.put(2)
    later = {each.namespace: each for each in next(batch for batch in batches if batch)}
    made._stream._report()  # as when the server asks whether we live: it has come further by now than what was kept
    assert [next(batches) for _ in range(3)] == [[], [], []]
    assert confirmed(source) == before
    made.kept(last)
    eventually(lambda: confirmed(source) == last[f"postgres/{source.slot}"].data["lsn"], "the first is confirmed")
    made.close()
    again = reader()
    again.kept(later)  # before it reads: nobody listens yet
    batches = again.read(last | later)
    end = later[f"postgres/{source.slot}"].data["lsn"]
    eventually(lambda: next(batches) == [] and confirmed(source) == end, "the second is confirmed as it follows")


def test_a_confirmation_that_arrives_while_the_slot_is_waited_for_is_no_gap(source, reader):
    """The connection of the reader before us still has the slot, and a confirmation that the server has not read."""
    place, made = f"postgres/{source.slot}", reader()
    _, last = collect(made, until=lambda _, last: "public.t" in last and last["public.t"].mode is Mode.COMPLETE)
    made.close()
    source.put(1)
    made = reader()
    _, last = collect(made, last, until=lambda found, last: found and last[place].data["commit"])
    made.close()
    with closing(Replication(source.dsn, {})) as before:

        def taken_over():
            before.follow(source.slot, source.slot, "0/0")
            with suppress(psycopg.errors.ObjectInUse):
                return before.answer(10) is not None
            return False

        eventually(taken_over, "the server has noticed that the first is gone")
        batches = reader().read(last)
        assert next(batches) == []  # the slot is in use
        before.confirm(last[place].data["lsn"])
        eventually(lambda: confirmed(source) == last[place].data["lsn"], "it is confirmed")
    source.put(2)
    assert [each.data["id"] for each in taken(batches, 1)] == [2]


def test_while_nothing_changes_in_the_tables_the_slot_moves_on_nevertheless(source):
    with closing(quick(source)) as made:
        batches = following(made)
        source.connection.execute("CREATE TABLE elsewhere AS SELECT generate_series(1, 1000)")
        place = next(batch for batch in batches if batch)
        assert [each.op for each in place] == [Op.NOOP]


def test_a_partitioned_table_is_one_and_a_publication_may_leave_rows_and_columns_out(source, reader):
    run = source.connection.execute
    run("CREATE TABLE parted (id int PRIMARY KEY, a int, secret text) PARTITION BY RANGE (id)")
    run("CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (100)")
    run("CREATE PUBLICATION some_rows FOR TABLE parted (id, a) WHERE (id > 1) WITH (publish_via_partition_root)")
    run("INSERT INTO parted VALUES (1, 1, 'x'), (2, 2, 'x')")
    made = reader(publication="some_rows", tables=["parted"])
    batches = made.read({})
    copied = taken(batches, 1)
    assert next(batches) == []
    run("INSERT INTO parted VALUES (0, 0, 'x'), (3, 3, 'x')")
    assert [(each.namespace, each.data) for each in [*copied, *taken(batches, 1)]] == [
        ("public.parted", {"id": 2, "a": 2}),
        ("public.parted", {"id": 3, "a": 3}),
    ]


def test_a_large_transaction_comes_in_pieces_and_again_as_a_whole(source, reader):
    first = reader(batch_rows=10)
    batches, last = first.read({}), {}
    while not any(each.mode is Mode.COMPLETE for each in last.values()):
        last.update((each.namespace, each) for each in next(batches))
    assert next(batches) == []  # the copy's transaction is over
    source.put(*range(1, 51))
    piece = next(batch for batch in batches if batch)
    if piece[-1].op is Op.NOOP:  # the server had said that it lives, at a place before the transaction
        piece.pop()
    assert [each.op for each in piece] == [Op.INSERT] * 10
    for _ in range(4):
        assert [each.op for each in next(batches)] == [Op.INSERT] * 10
    assert [each.op for each in next(batches)] == [Op.NOOP]  # where to go on is said as soon as its end has come
    first.close()
    last["public.t"] = piece[-1]
    found, _ = collect(reader(), last, until=lambda found, _: len(found) >= 50)
    assert [each.data["id"] for each in found] == list(range(1, 51))


def test_the_server_does_not_give_up_a_reader_that_waits_for_its_writers(source):
    with closing(Replication(make_conninfo(source.dsn, options="-c wal_sender_timeout=1s"), {})) as replication:
        replication.ask("SHOW wal_sender_timeout")
        assert replication.answer(60) == [("0",)]


# -- writing


@pytest.fixture
def write(source):
    writers = []

    def written(*messages, **options):
        writers.append(opened(writing("postgres"), data_source=source.dsn, **options))
        writers[-1].write(
            [
                PipelineMessage(op, 1, namespace, data, offset=7 + place)
                for place, (op, namespace, data) in enumerate(messages)
            ]
        )

    yield written
    for each in writers:
        each.close()


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ((Op.INSERT, "t", {"id": 1, "nope": 1}), "no column nope"),
        ((Op.INSERT, "t", {"note": "x"}), "needs id"),
        ((Op.DELETE, "t", {"note": "x"}), "needs id"),
        ((Op.INSERT, "t", {"id": "secret"}), "InvalidTextRepresentation"),
        ((Op.INSERT, "t", {"id": 1, "note": "a\0"}), "DataError"),
        ((Op.INSERT, "t", {"id": 1, "note": "a\ud83d"}), "half of a surrogate pair"),
        ((Op.INSERT, "t", {"id": 1, "note": "too long"}), "StringDataRightTruncation"),
        ((Op.COMMAND, "t", {"command": "secret"}), "command"),
    ],
)
def test_what_the_table_does_not_take_names_the_message_and_no_value(source, write, message, says):
    source.connection.execute("ALTER TABLE t ALTER note TYPE varchar(3)")
    with pytest.raises(MessageRefused, match=r"\b7\b") as error:
        write(message)
    assert says in str(error.value)
    assert "secret" not in str(error.value)


def test_a_batch_that_fails_leaves_nothing_behind(source, write):
    source.connection.execute("CREATE TABLE other (id int PRIMARY KEY)")
    with pytest.raises(MessageRefused, match="take one of 2 messages, from 7 to 8"):
        write((Op.INSERT, "t", {"id": 1}), (Op.INSERT, "other", {"id": "x"}))
    assert source.connection.execute("SELECT count(*) FROM t").fetchone() == (0,)


def test_no_table_and_no_key(source, write):
    with pytest.raises(AdaptorError, match=r"no table public\.nowhere"):
        write((Op.INSERT, "nowhere", {"id": 1}))
    source.connection.execute("CREATE TABLE bare (id int)")
    with pytest.raises(AdaptorError, match=r"identifies a row of public\.bare"):
        write((Op.INSERT, "bare", {"id": 1}))
    with pytest.raises(AdaptorError, match="no column nope"):
        write((Op.INSERT, "bare", {"id": 1}), key={"public.bare": ["nope"]})
    source.connection.execute("CREATE UNIQUE INDEX ON bare (id)")
    write((Op.INSERT, "bare", {"id": 1}), (Op.UPDATE, "bare", {"id": 1}), key={"public.bare": ["id"]})


def test_columns_that_are_not_given_stay_and_emptying_comes_in_its_turn(source, write):
    run = source.connection.execute
    run(
        "CREATE TABLE p (id int PRIMARY KEY, a int NOT NULL, b int DEFAULT 5, c int GENERATED ALWAYS AS (a + 1) STORED)"
    )
    write(
        (Op.INSERT, "p", {"id": 1, "a": 1, "c": 99}),
        (Op.UPDATE, "p", {"id": 1, "b": None}),
        (Op.UPDATE, "p", {"id": 2, "b": 1}),
    )
    write((Op.UPDATE, "p", {"id": 1, "b": 7}))
    assert run("SELECT * FROM p").fetchall() == [(1, 1, 7, 2)]
    write((Op.COMMAND, "p", {"command": "truncate"}), (Op.INSERT, "p", {"id": 3, "a": 3}))
    assert run("SELECT id FROM p").fetchall() == [(3,)]


def test_a_writer_whose_sessions_are_ended_goes_on_with_new_ones(source, tmp_path, caplog):
    side = writing("postgres")
    options = side.options(data_source=source.dsn, key={"public.t": ["id"]})
    script = Script([PipelineMessage(Op.INSERT, 1, "public.t", {"n": 0})], ends=False)
    source.connection.execute("ALTER TABLE t ADD n int")
    declaration = declared(tmp_path, script, {"writer": None})
    declaration = replace(declaration, writers=[replace(declaration.writers[0], open=lambda: side.make(options))])
    ids = iter(range(1_000_000))

    def put(count):
        for number in islice(ids, count):
            script.given.append(PipelineMessage(Op.INSERT, 1, "public.t", {"id": number, "n": number}))

    def written():
        return source.connection.execute("SELECT count(*) FROM t").fetchone()[0]

    script.given.clear()
    put(3)
    running = Running(declaration)
    eventually(lambda: written() == 3, "the first are written")
    ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'harvest' AND datname = %s"
    for expected in (6, 9):
        source.connection.execute(ended, (source.connection.info.dbname,))
        put(3)
        eventually(lambda: written() == expected, "it goes on")  # noqa: B023
    running.stop()
    assert running.failure is None
    assert {each.getMessage() for each in caplog.records if each.levelname == "WARNING"} == {"writer_waits"}


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


def test_what_the_server_keeps_for_the_slot_is_known_while_the_reader_waits(source, reader):
    made = reader()
    batches = following(made)
    source.put(1)
    taken(batches, 1)
    source.connection.execute("SELECT pg_logical_emit_message(false, 'test', repeat('x', 1000000))")
    state = eventually(made.slot_state, "asked")
    assert (state.slot, state.status) == (source.slot, "reserved")
    assert state.retained_bytes > 1_000_000
    assert SlotWatch(source.dsn, "nowhere")._ask() is None, "there is no such slot"


# -- the snapshot of the copy


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
