"""The Postgres writer and the tables that it finds: rows of several namespaces, tables that are altered meanwhile,
errors that pass, and values that a session spells."""

import threading
from contextlib import closing, contextmanager
from dataclasses import replace
from decimal import Decimal

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from support.pipeline_ends import collect, opened, own_database
from support.pipelines import Running, Script, declared
from support.waiting import eventually

from harvest_lib.errors import AdaptorError, DatabaseUnavailable, MessageRefused
from harvest_lib.pipeline.adaptors import reading, writing
from harvest_lib.pipeline.message import Op, PipelineMessage

pytestmark = pytest.mark.gate

INSERT, UPDATE, DELETE = Op.INSERT, Op.UPDATE, Op.DELETE


@pytest.fixture(scope="module")
def dsn(stack):
    with own_database(stack) as made:
        yield made


@pytest.fixture
def run(dsn):
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA IF NOT EXISTS public")
        yield connection.execute
        connection.execute("DROP SCHEMA public CASCADE")


@pytest.fixture
def write(dsn):
    """Write messages, as (op, namespace, data), in one batch; options are of a writer of their own."""
    writers = {}

    def written(*messages, **options):
        known = writers.get(str(options))
        writer = writers[str(options)] = known or opened(writing("postgres"), **{"data_source": dsn, **options})
        writer.write([PipelineMessage(op, 1, of, data, offset=place) for place, (op, of, data) in enumerate(messages)])

    yield written
    for each in writers.values():
        each.close()


# -- one row, whatever it comes from


def test_rows_of_two_namespaces_in_one_table_come_in_their_order(run, write):
    run("CREATE TABLE t (id int PRIMARY KEY, note text)")
    write(*((INSERT, "public.a", {"id": id_, "note": "old"}) for id_ in range(6)), table="t")
    for id_ in range(6):
        one, other = ("public.a", "public.b") if id_ % 2 else ("public.b", "public.a")
        write(
            (UPDATE, one, {"id": id_, "note": "x"}),
            (DELETE, one, {"id": id_}),
            (INSERT, other, {"id": id_, "note": "new"}),
            table="t",
        )
    assert run("SELECT id, note FROM t ORDER BY id").fetchall() == [(id_, "new") for id_ in range(6)]


@pytest.mark.parametrize("name", ["excluded", "t", "v", "unnest"])
def test_a_table_may_have_a_name_that_statements_have_too(run, write, name):
    run(f"CREATE TABLE {name} (t int PRIMARY KEY, v text, excluded text)")
    for op, data in ((INSERT, {"t": 1, "v": "a", "excluded": "a"}), (UPDATE, {"t": 1, "v": "b"}), (DELETE, {"t": 2})):
        write((op, f"public.{name}", data))
    assert run(f"SELECT t, v, excluded FROM {name}").fetchall() == [(1, "b", "a")]  # noqa: S608 - as above


def test_two_names_of_one_table_are_one_table(run, write):
    run("CREATE TABLE t (id int PRIMARY KEY, note text)")
    write(
        (INSERT, "t", {"id": 1, "note": "a"}),
        (DELETE, "public.t", {"id": 1}),
        (INSERT, "t", {"id": 1, "note": "b"}),
    )
    assert run("SELECT id, note FROM t").fetchall() == [(1, "b")]


@pytest.mark.parametrize("kind", ["PARTITION OF t FOR VALUES FROM (0) TO (9)", "(PRIMARY KEY (id)) INHERITS (t)"])
def test_a_table_and_its_partition_have_the_same_rows(run, write, kind):
    partitioned = " PARTITION BY RANGE (id)" if "PARTITION" in kind else ""
    run(f"CREATE TABLE t (id int PRIMARY KEY, note text){partitioned}")
    run(f"CREATE TABLE part {kind}")
    write(
        (INSERT, "public.part", {"id": 1, "note": "a"}),
        (UPDATE, "public.t", {"id": 1, "note": "b"}) if partitioned else (DELETE, "public.t", {"id": 1}),
        (DELETE, "public.t", {"id": 1}),
        (INSERT, "public.part", {"id": 1, "note": "c"}),
        (UPDATE, "public.part", {"id": 1, "note": "d"}),
    )
    assert run("SELECT id, note FROM t").fetchall() == [(1, "d")]


ELSEWHERE = {
    "a foreign table": (
        "DO $$ BEGIN CREATE FOREIGN DATA WRAPPER w; EXCEPTION WHEN duplicate_object THEN NULL; END $$; "
        "CREATE SERVER IF NOT EXISTS here FOREIGN DATA WRAPPER w; "
        "CREATE FOREIGN TABLE {name} (id int NOT NULL, note text) SERVER here OPTIONS (table_name 't')"
    ),
    "a view": "CREATE VIEW {name} AS SELECT * FROM t",
    "a view with triggers": (
        "CREATE VIEW {name} AS SELECT * FROM t WHERE id > 0; "
        "CREATE OR REPLACE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; "
        "CREATE TRIGGER f INSTEAD OF INSERT OR UPDATE OR DELETE ON {name} FOR EACH ROW EXECUTE FUNCTION f()"
    ),
    "a table with rules": (
        "CREATE TABLE {name} (LIKE t INCLUDING ALL); "
        "CREATE RULE r AS ON DELETE TO {name} DO INSTEAD DELETE FROM t WHERE id = OLD.id"
    ),
    "a materialized view": "CREATE MATERIALIZED VIEW {name} AS SELECT * FROM t",
}


@pytest.mark.parametrize("kind", ELSEWHERE)
def test_what_has_its_rows_elsewhere_is_refused(run, write, kind):
    """Two names may lead to one row, and a batch would take effect by name: a delete of one, an insert of the other."""
    run("CREATE TABLE t (id int PRIMARY KEY, note text)")
    write((INSERT, "t", {"id": 1, "note": "a"}))
    for name in ("one", "other"):
        run(ELSEWHERE[kind].format(name=name))
    key = {"key": {"public.one": ["id"], "public.other": ["id"]}}
    for messages in (
        [(UPDATE, "one", {"id": 1}), (DELETE, "other", {"id": 1}), (UPDATE, "one", {"id": 1})],
        [(DELETE, "one", {"id": 1})],
        [(UPDATE, "t", {"id": 1, "note": "b"}), (DELETE, "other", {"id": 1})],
    ):
        with pytest.raises(AdaptorError, match="cannot be written in order") as found:
            write(*messages, **key)
        assert kind.removesuffix(" with triggers") in found.value.evidence
    assert run("SELECT id, note FROM t").fetchall() == [(1, "a")]


def test_a_partition_that_is_attached_meanwhile_is_of_the_family_from_the_next_batch_on(run, write):
    run("CREATE TABLE t (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)")
    run("CREATE TABLE part (id int PRIMARY KEY, note text)")
    write((INSERT, "part", {"id": 1, "note": "a"}))
    run("ALTER TABLE t ATTACH PARTITION part FOR VALUES FROM (0) TO (9)")
    write(
        (DELETE, "t", {"id": 1}),
        (INSERT, "part", {"id": 1, "note": "b"}),
        (UPDATE, "t", {"id": 1, "note": "c"}),
        (UPDATE, "part", {"id": 1, "note": "d"}),
        (DELETE, "t", {"id": 1}),
        (INSERT, "part", {"id": 1, "note": "e"}),
    )
    assert run("SELECT id, note FROM t").fetchall() == [(1, "e")]


@pytest.mark.parametrize(
    ("of_type", "spellings"),
    [
        ("numeric", [Decimal("1.0"), 1, "1.00", 1.0]),
        ("int", [7, "7", " 07"]),
        ("timestamptz", ["2020-01-01 00:00:00+00", "2020-01-01 02:00:00+02", "2020-01-01T00:00:00Z"]),
        ("interval", ["1 mon", "30 days"]),
        ("char(4)", ["a", "a  "]),
        ("uuid", ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"]),
        ("text COLLATE blind", ["a", "A"]),
        ("jsonb", ['{"a": 1, "b": 1.0}', '{"b":1.00,"a":1}']),
    ],
)
def test_a_key_is_what_postgres_takes_for_one_however_it_is_spelled(run, write, of_type, spellings):
    if "blind" in of_type:
        try:
            run("CREATE COLLATION blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
        except psycopg.errors.FeatureNotSupported:
            pytest.skip("this server is built without ICU")
    run(f"CREATE TABLE t (id {of_type} PRIMARY KEY, note text, more text)")
    for last in spellings:
        for first in spellings:
            write(
                (INSERT, "t", {"id": first, "note": "a", "more": "m"}),
                (DELETE, "t", {"id": last}),
                (INSERT, "t", {"id": first, "note": "b"}),
                (UPDATE, "t", {"id": last, "note": "c"}),
                (UPDATE, "t", {"id": first, "more": "n"}),
            )
            assert run("SELECT note, more FROM t").fetchall() == [("c", "n")], (first, last)
            write((INSERT, "t", {"id": first, "note": "d"}), (DELETE, "t", {"id": last}))
            assert run("SELECT note, more FROM t").fetchall() == []


# -- tables that are altered while it writes


def test_a_column_is_of_the_type_that_it_has_now(run, write):
    run("CREATE TABLE t (id int PRIMARY KEY, f real, d date, n numeric(10, 2), i int, s varchar(3), e varchar(9))")
    row = {"id": 1, "f": 0.5, "d": "2020-01-01", "n": Decimal("1.5"), "i": 1, "s": "abc", "e": "a"}
    write((INSERT, "t", row))
    run("CREATE TYPE mood AS ENUM ('fair', 'foul')")
    run(
        "ALTER TABLE t ALTER f TYPE double precision, ALTER d TYPE timestamp, ALTER n TYPE numeric, "
        "ALTER i TYPE numeric, ALTER s TYPE text, ALTER e TYPE mood USING 'fair'"
    )
    changed = {
        "f": 0.1234567890123456,
        "d": "2020-01-01 12:34:56.789",
        "n": Decimal("1.23456"),
        "i": Decimal("1.5"),
        "s": "abcdef",
        "e": "foul",
    }
    write((UPDATE, "t", {"id": 1, **changed}), (INSERT, "t", {"id": 2, **changed}))
    found = run("SELECT f, d::text, n, i, s, e FROM t ORDER BY id").fetchall()
    assert found == [tuple(changed.values())] * 2


def test_a_column_that_is_added_is_there_and_one_that_is_dropped_is_not(run, write):
    run("CREATE TABLE t (id int PRIMARY KEY)")
    write((INSERT, "t", {"id": 1}))
    run("ALTER TABLE t ADD note text")
    write((INSERT, "t", {"id": 2, "note": "b"}))
    run("ALTER TABLE t DROP note")
    with pytest.raises(MessageRefused, match="no column note"):
        write((INSERT, "t", {"id": 3, "note": "c"}))
    write((INSERT, "t", {"id": 3}))
    run(
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD other int UNIQUE, ADD PRIMARY KEY (id, other)".replace(
            "UNIQUE", "DEFAULT 0"
        )
    )
    write((INSERT, "t", {"id": 3, "other": 1}), (INSERT, "t", {"id": 3, "other": 2}))
    assert run("SELECT count(*) FROM t WHERE id = 3").fetchone() == (3,)


def test_a_table_that_is_altered_just_then_is_waited_for(dsn, run, write):
    run("CREATE TABLE t (id int PRIMARY KEY, f real)")
    write((INSERT, "t", {"id": 1, "f": 0.5}))
    with psycopg.connect(dsn) as other:
        other.execute("ALTER TABLE t ALTER f TYPE double precision")
        thread = threading.Thread(target=write, args=[(UPDATE, "t", {"id": 1, "f": 0.1234567890123456})])
        thread.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 't'::regclass"
        eventually(lambda: run(waiting).fetchone() == (1,), "it waits")
        other.commit()
        thread.join(60)
    assert run("SELECT f FROM t").fetchall() == [(0.1234567890123456,)]


def test_texts_go_as_they_are_and_none_is_looked_through_by_a_regular_expression(run, write, monkeypatch):
    """psycopg's array of 4 MB of JSON takes 1.7 s, during which no other thread runs: consumers lose their brokers."""

    def refuses(self, obj):
        raise AssertionError("psycopg makes the array")

    monkeypatch.setattr("psycopg.types.array.ListDumper.dump", refuses)
    run("CREATE TABLE t (id text PRIMARY KEY, note text, many text[])")
    texts = ["", " ", "null", '"', "\\", '\\"', "{}", "{a,b}", "a,b", "'", "\n\t\r\v\x01", "é€😀", '{"a": "\\\\"}']
    write(*[(INSERT, "t", {"id": each, "note": each, "many": [each, None]}) for each in texts])
    write((INSERT, "t", {"id": "none", "note": None, "many": [[each] for each in texts]}))
    found = run("SELECT id, note, many FROM t").fetchall()
    assert sorted(found[:-1]) == sorted((each, each, [each, None]) for each in texts)
    assert found[-1] == ("none", None, [[each] for each in texts])


# -- what Postgres answers


@contextmanager
def writing_on(tmp_path, dsn, **settings):
    """Have a pipeline write into `t`: the script of its reader, and what it runs."""
    side = writing("postgres")
    options = side.options(data_source=dsn)
    script = Script([PipelineMessage(INSERT, 1, "public.t", {"n": 0})], ends=False)
    declaration = declared(tmp_path, script, {"writer": None}, settings={"writer": settings})
    declaration = replace(declaration, writers=[replace(declaration.writers[0], open=lambda: side.make(options))])
    running = Running(declaration)
    try:
        yield script, running
    finally:
        running.stop()


def waits(caplog):
    return [each.reason for each in caplog.records if each.getMessage() == "writer_waits"]


def rows(*numbers):
    return [PipelineMessage(INSERT, 1, "public.t", {"n": number}) for number in numbers]


@pytest.mark.full
@pytest.mark.parametrize("setting", ["statement_timeout", "lock_timeout"])
def test_a_lock_and_a_timeout_of_the_role_pass_and_it_is_said_what_postgres_answered(
    tmp_path, caplog, dsn, run, setting
):
    run("CREATE TABLE t (n int PRIMARY KEY)")
    with writing_on(tmp_path, make_conninfo(dsn, options=f"-c {setting}=200ms")) as (script, running):
        eventually(lambda: run("SELECT count(*) FROM t").fetchone() == (1,), "the first is there")
        with psycopg.connect(dsn) as other:
            other.execute("LOCK TABLE t")
            script.given += rows(*range(1, 9))
            singly = "writer_goes_singly"
            eventually(lambda: any(each.getMessage() == singly for each in caplog.records), "it is refused repeatedly")
            other.rollback()
        eventually(lambda: run("SELECT count(*) FROM t").fetchone() == (9,), "it goes on")
    assert running.failure is None
    assert all("57014" in each or "55P03" in each for each in waits(caplog))
    assert waits(caplog)
    assert "does not answer" not in waits(caplog)[0]


def test_a_lock_passes_while_it_resumes_too(tmp_path, caplog, dsn, run):
    run("CREATE TABLE t (n int PRIMARY KEY)")
    with writing_on(tmp_path, dsn) as (script, running):
        eventually(lambda: run("SELECT count(*) FROM t").fetchone() == (1,), "the first is there")
        run("ALTER TABLE t ADD CONSTRAINT few CHECK (n < 2)")
        script.given += rows(1, 2)
        eventually(lambda: running.failure is not None, "it stops at the second")
    run("ALTER TABLE t DROP CONSTRAINT few")
    with psycopg.connect(dsn) as other:
        other.execute("LOCK TABLE t")
        with writing_on(tmp_path, make_conninfo(dsn, options="-c lock_timeout=100ms")) as (script, running):
            eventually(lambda: waits(caplog), "it is refused")
            other.rollback()
            eventually(lambda: run("SELECT max(n) FROM t").fetchone() == (2,), "it goes on")
    assert running.failure is None


def test_an_answer_that_passes_is_no_refusal_of_a_message(dsn, run, write):
    run("CREATE TABLE t (id int PRIMARY KEY)")
    run("CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN END'")
    run("CREATE TRIGGER refuse BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION refuse()")
    for state in ("40001", "40P01", "53100", "53200", "55P03", "57014", "58030"):
        run(
            "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION SQLSTATE '{state}'; END $$"
        )
        with pytest.raises(DatabaseUnavailable, match=state) as found:
            write((INSERT, "t", {"id": 1}))
        assert "does not answer" not in found.value.cause
    read_only = make_conninfo(dsn, options="-c default_transaction_read_only=on")
    with pytest.raises(DatabaseUnavailable, match="read-only"):
        write((INSERT, "t", {"id": 1}), data_source=read_only)


def test_a_bulk_that_is_too_much_at_once_goes_one_by_one(tmp_path, caplog, dsn, run):
    """The server is there each time, and answers: a statement of many rows takes longer than it may."""
    run("CREATE TABLE t (n int PRIMARY KEY)")
    with writing_on(tmp_path, make_conninfo(dsn, options="-c statement_timeout=2s")) as (script, running):
        eventually(lambda: run("SELECT count(*) FROM t").fetchone() == (1,), "the first is there")
        run(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "IF (SELECT count(*) FROM new) > 2 THEN RAISE EXCEPTION SQLSTATE '57014'; END IF; RETURN NULL; END $$"
        )
        run(
            "CREATE TRIGGER slow AFTER INSERT ON t REFERENCING NEW TABLE AS new "
            "FOR EACH STATEMENT EXECUTE FUNCTION slow()"
        )
        script.batch = 50
        script.given += rows(*range(1, 51))
        eventually(lambda: run("SELECT count(*) FROM t").fetchone() == (51,), "all are there")
    assert running.failure is None
    assert [each.at for each in caplog.records if each.getMessage() == "writer_goes_singly"] == [1]


def test_a_message_that_ends_each_connection_stops_it_in_the_end(tmp_path, caplog, dsn, run, monkeypatch):
    monkeypatch.setattr("harvest_lib.pipeline.writer_thread._LONGEST_PAUSE_SECONDS", 0.01)
    run("CREATE TABLE t (n int PRIMARY KEY)")
    with writing_on(tmp_path, dsn) as (script, running):
        eventually(lambda: run("SELECT count(*) FROM t").fetchone() == (1,), "the first is there")
        run(
            "CREATE FUNCTION crash() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "IF NEW.n = 3 THEN RAISE EXCEPTION SQLSTATE '08006'; END IF; RETURN NEW; END $$"
        )
        run("CREATE TRIGGER crash BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION crash()")
        script.given += rows(1, 2, 3, 4)
        eventually(lambda: running.failure is not None, "it stops")
    assert "did not take offset 3" in str(running.failure)
    assert run("SELECT array_agg(n ORDER BY n) FROM t").fetchone() == ([0, 1, 2],)


# -- values that a session spells

HOSTILE = {
    "datestyle": "SQL, DMY",
    "intervalstyle": "iso_8601",
    "extra_float_digits": "-15",
    "bytea_output": "escape",
    "timezone": "Asia/Kathmandu",
    "xmloption": "document",
    "quote_all_identifiers": "on",
    "search_path": "other, public",
    "standard_conforming_strings": "off",
    "default_transaction_isolation": "serializable",
}

SPELLED = {
    "d date": "'2020-02-01'",
    "ts timestamp": "'2020-02-01 03:04:05.123456'",
    "tz timestamptz": "'2020-02-01 03:04:05.123456+02'",
    "ttz timetz": "'03:04:05+02'",
    "span interval": "'1 year 2 mons -3 days 04:05:06.7'",
    "spans interval[]": "array['-1 mon'::interval, '2 days']",
    "f4 real": "0.1",
    "f8 float8": "0.1::float8 + 0.2::float8",
    "bin bytea": "decode('005c27ff', 'hex')",
    "bins bytea[]": "array[decode('005c27ff', 'hex')]",
    "m money": "1234.5::numeric::money",
    "ms money[]": "array[1234.5::numeric::money, (-0.01)::numeric::money]",
    "c regclass": "'other.named'",
    "t regtype": "'other.mood'",
    "p regprocedure": "'other.f(other.mood)'",
    "mood other.mood": "'foul'",
    "moods other.mood[]": "array['fair'::other.mood, 'foul']",
    "r tstzrange": "tstzrange('2020-02-01 00:00:00+02', NULL)",
    "days daterange": "daterange('2020-02-01', '2020-03-04')",
    "h date[]": "array['2020-02-03'::date]",
    "j jsonb": "jsonb_build_object('a', 0.1)",
    "place point": "point(0.1::float8 + 0.2::float8, 1e300)",
    "n numeric": "12.50",
}
"""Columns, and an expression for each, which no setting changes."""


def test_values_are_spelled_by_us_whatever_role_and_database_say(dsn, run, unique):
    run("CREATE SCHEMA other")
    run("CREATE TABLE other.named (id int)")
    run("CREATE TYPE other.mood AS ENUM ('fair', 'foul')")
    run("CREATE FUNCTION other.f(other.mood) RETURNS int LANGUAGE sql AS 'SELECT 1'")
    run(f"CREATE TABLE spelled (id int PRIMARY KEY, {', '.join(SPELLED)})")
    run("CREATE TABLE arrived (LIKE spelled INCLUDING ALL)")
    name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    for setting, value in HOSTILE.items():
        values = ", ".join(value.split(", ")) if setting == "search_path" else f"'{value}'"
        run(f'ALTER DATABASE "{name}" SET {setting} = {values}')
    try:
        run(f"INSERT INTO spelled SELECT 1, {', '.join(SPELLED.values())}")
        options = {"data_source": dsn, "slot": unique("slot")[:63], "tables": ["spelled"]}
        with closing(opened(reading("postgres"), **options)) as reader:
            copied, last = collect(reader, until=lambda found, _: found)
            run(f"INSERT INTO spelled SELECT 2, {', '.join(SPELLED.values())}")
        with closing(opened(reading("postgres"), **options)) as reader:
            followed, _ = collect(reader, last, until=lambda found, _: found)
        assert {**copied[0].data, "id": 2} == dict(followed[0].data), "copied as followed"
        assert followed[0].data["c"] == "other.named"
        assert followed[0].data["m"] == "$1,234.50"
        with closing(opened(writing("postgres"), data_source=dsn, table="arrived")) as writer:
            writer.write([each._replace(offset=place) for place, each in enumerate([*copied, *followed])])
        same = "SELECT count(*) FROM spelled AS a JOIN arrived AS b USING (id) WHERE a::text = b::text"
        assert run(same).fetchone() == (2,)
        run(f"SELECT pg_drop_replication_slot('{options['slot']}')")
        run(f'DROP PUBLICATION "{options["slot"]}"')
    finally:
        run(f'ALTER DATABASE "{name}" RESET ALL')
        run("DROP SCHEMA other CASCADE")


@pytest.mark.parametrize(
    ("value", "cents"),
    [("$1,234.50", 123450), ("-$12.50", -1250), (Decimal("12.5"), 1250), (12, 1200), (12.5, 1250), ("12.50", 1250)],
)
def test_money_is_the_amount_that_it_was(run, write, value, cents):
    run("CREATE TABLE t (id int PRIMARY KEY, m money)")
    write((INSERT, "t", {"id": 1, "m": value}))
    assert run("SELECT (m / '0.01'::money)::int FROM t").fetchone() == (cents,)


@pytest.mark.parametrize("value", ["12,50", "12,50 €", "1.234,50", "12.505", Decimal("12.505"), 1e300, True])
def test_money_that_would_become_another_amount_is_refused(run, write, value):
    run("CREATE TABLE t (id int PRIMARY KEY, m money)")
    with pytest.raises(MessageRefused, match="money"):
        write((INSERT, "t", {"id": 1, "m": value}))
    run("CREATE DOMAIN price AS money; ALTER TABLE t ALTER m TYPE price")
    with pytest.raises(MessageRefused, match="money"):
        write((INSERT, "t", {"id": 1, "m": value}))
