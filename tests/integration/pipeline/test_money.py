"""`money` between databases whose `lc_monetary` really differ: euros (`1.234,50`), francs, yen without decimals, dinars
with three. The locales are made for a server of the test's own."""

import shutil
import subprocess
from contextlib import closing

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from support.pipeline_ends import collect, opened, refused

from harvest_lib.errors import AdaptorError
from harvest_lib.local_stack.postgres import PostgresServer
from harvest_lib.pipeline.adaptors import reading, writing
from harvest_lib.pipeline.message import Op, PipelineMessage

pytestmark = pytest.mark.full

LOCALES = ("de_DE", "de_CH", "en_US", "ja_JP", "ar_KW")
TWO_DIGITS = ("de_DE", "de_CH", "en_US", "C")
AMOUNTS = ("1234567.89", "-0.01", "-1234.5", "0", "92233720368547758.07")
CENTS = "SELECT array_agg(encode(cash_send(m), 'hex') ORDER BY id), max(encode(cash_send(ms[2]), 'hex')) FROM t"
DIGITS = "SELECT '1'::money::text, encode(cash_send('1'::money), 'hex')"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    localedef = shutil.which("localedef")
    folder = tmp_path_factory.mktemp("money")
    (folder / "locales").mkdir()
    for name in LOCALES:
        command = [localedef or "false", "-i", name, "-f", "UTF-8", folder / "locales" / f"{name}.UTF-8"]
        if subprocess.run(command, check=False, capture_output=True).returncode:
            pytest.skip("no locales can be made here: `localedef` and its sources are missing")
    for each in (folder, *folder.parents[:1], folder / "locales"):
        each.chmod(0o755)
    made = PostgresServer(folder / "server", durable=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCPATH", str(folder / "locales"))
        made.start()
        with psycopg.connect(made.dsn, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET wal_level = logical")
            for name in (*LOCALES, "C"):
                connection.execute(f'CREATE DATABASE "{name}"')
                locale = name if name == "C" else f"{name}.UTF-8"
                connection.execute(f"ALTER DATABASE \"{name}\" SET lc_monetary = '{locale}'")
        made.stop()
        made.start()
        yield made
        made.stop()


@pytest.fixture
def database(server):
    """Return the connection string of a database, with an empty table."""

    def made(name):
        dsn = make_conninfo(server.dsn, dbname=name)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS t; CREATE TABLE t (id int PRIMARY KEY, m money, ms money[])")
        return dsn

    yield made
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


def run(dsn, statement):
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(statement).fetchone()


def test_the_locales_differ(database):
    found = {name: run(database(name), DIGITS) for name in (*LOCALES, "C")}
    assert len({text for text, _ in found.values()}) >= 5, found
    assert {name: int(stored, 16) for name, (_, stored) in found.items()} == {
        **dict.fromkeys(TWO_DIGITS, 100),
        "ja_JP": 1,
        "ar_KW": 1000,
    }


@pytest.mark.parametrize("target", TWO_DIGITS)
@pytest.mark.parametrize("source", ["de_DE", "C"])
def test_an_amount_is_the_same_copied_and_followed(database, unique, source, target):
    if source == target:
        target = "de_CH"
    dsn, to = database(source), database(target)
    values = "INSERT INTO t SELECT {0} + row_number() OVER (), m::numeric::money, array[NULL, m::numeric::money] FROM "
    values += f"unnest(array[{', '.join(repr(each) for each in AMOUNTS)}]) AS m"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(values.format(0))
        options = {"data_source": dsn, "slot": unique("slot")[:63], "tables": ["t"]}
        with closing(opened(reading("postgres"), **options)) as reader:
            copied, last = collect(reader, until=lambda found, _: len(found) == len(AMOUNTS))
            connection.execute(values.format(100))
        with closing(opened(reading("postgres"), **options)) as reader:
            followed, _ = collect(reader, last, until=lambda found, _: len(found) == len(AMOUNTS))
    with closing(opened(writing("postgres"), data_source=to)) as writer:
        writer.write([each._replace(offset=place) for place, each in enumerate([*copied, *followed])])
    assert run(to, CENTS) == run(dsn, CENTS)


@pytest.mark.parametrize("name", ["ja_JP", "ar_KW"])
def test_other_digits_are_refused_at_both_ends(database, unique, name):
    dsn = database(name)
    error = refused(opened(reading("postgres"), data_source=dsn, slot=unique("slot")[:63], tables=["t"]))
    assert f"lc_monetary is {name}.UTF-8" in error.evidence
    message = PipelineMessage(Op.INSERT, 1, "public.t", {"id": 1, "m": "$12.50"}, offset=0)
    with closing(opened(writing("postgres"), data_source=dsn)) as writer, pytest.raises(AdaptorError) as found:
        writer.write([message])
    assert f"lc_monetary is {name}.UTF-8" in found.value.evidence
    assert run(dsn, "SELECT count(*) FROM t") == (0,)


HOLDING = {
    "price": ("CREATE DOMAIN price AS money", "$12.50"),
    "price[]": ("CREATE DOMAIN price AS money", "{$12.50}"),
    "prices": ("CREATE DOMAIN prices AS money[]", "{$12.50}"),
    "item": ("CREATE TYPE item AS (name text, m money)", "(a,$12.50)"),
    "span": ("CREATE TYPE span AS RANGE (subtype = money)", "[$12.50,$13.00)"),
    "spans": ("CREATE TYPE span AS RANGE (subtype = money, multirange_type_name = spans)", "{[$12.50,$13.00)}"),
}


@pytest.mark.parametrize("of_type", HOLDING)
def test_money_inside_of_other_types_is_refused_as_well(database, unique, of_type):
    made, value = HOLDING[of_type]
    dsn = database("ja_JP")
    name = made.split()[2]
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"{made}; ALTER TABLE t ADD held {of_type}, DROP m, DROP ms")
        try:
            error = refused(opened(reading("postgres"), data_source=dsn, slot=unique("slot")[:63], tables=["t"]))
            assert "lc_monetary is ja_JP.UTF-8" in error.evidence
            message = PipelineMessage(Op.INSERT, 1, "public.t", {"id": 1, "held": value}, offset=0)
            with closing(opened(writing("postgres"), data_source=dsn)) as writer, pytest.raises(AdaptorError) as found:
                writer.write([message])
            assert "lc_monetary is ja_JP.UTF-8" in found.value.evidence
        finally:
            connection.execute(f"DROP {made.split()[1]} {name} CASCADE")
