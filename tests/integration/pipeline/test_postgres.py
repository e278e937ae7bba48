"""The Postgres adaptor beyond the contract: every kind of change, restarts, the slot, what writing refuses."""

import time
from contextlib import closing, suppress
from decimal import Decimal

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from support.pipeline_ends import collect, following, opened, quick, taken
from support.waiting import eventually

from harvest_lib.pipeline.adaptors import writing
from harvest_lib.pipeline.adaptors.postgres.replication import Change, Replication
from harvest_lib.pipeline.adaptors.postgres.slot_watch import SlotWatch
from harvest_lib.pipeline.message import Mode, Op

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


@pytest.mark.full
def test_a_change_stream_that_is_not_read_for_long_goes_on(source):
    """The server's side of a session has a `tcp_user_timeout` of 10 s by default; the sent data stays unread longer."""
    run, slot = source.connection.execute, source.slot
    run("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    run("CREATE PUBLICATION unread FOR TABLE t")
    run("INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 40000) AS g")
    with closing(Replication(source.dsn, {})) as replication:
        replication.follow(slot, "unread", "0/0")
        assert replication.answer(60) == []
        time.sleep(25)
        received = 0
        while received < 40_000:
            received += isinstance(message := replication.receive(60), Change) and message.payload[:1] == b"I"


@pytest.mark.full
def test_a_copy_that_is_not_read_for_long_goes_on(source, reader):
    source.connection.execute("INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 40000) AS g")
    batches = reader(batch_rows=100).read({})
    next(batch for batch in batches if any(each.op is Op.INSERT for each in batch))
    time.sleep(25)
    copied = 100
    while copied < 40_000:
        copied += sum(each.op is Op.INSERT for each in next(batches))
    assert copied == 40_000


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
