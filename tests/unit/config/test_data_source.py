"""Data sources by lib/pq's rules, and the one rule that is ours."""

import pickle
import traceback

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from harvest_lib.config import DataSource, HarvestConfig
from harvest_lib.config.data_source import _CHOICES
from harvest_lib.errors import ConfigError, DatabaseError, DatabaseUnavailable
from harvest_lib.postgres.database import connect

pytestmark = pytest.mark.quick

ALWAYS = {"target_session_attrs": "read-write", "fallback_application_name": "harvest"}


def parsed(text: str) -> dict[str, object]:
    """Return libpq's settings, less those that are always there."""
    reported = conninfo_to_dict(DataSource.parse(text).conninfo())
    return {name: value for name, value in reported.items() if ALWAYS.get(name) != value and value != ""}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("   ", {}),
        ("user=bob", {"user": "bob"}),
        ("user = bob", {"user": "bob"}),
        ("user =\t bob  port= 5433", {"user": "bob", "port": "5433"}),
        ("user=bob user=eve", {"user": "eve"}),
        ("user='bob smith'", {"user": "bob smith"}),
        ("user='bob'dbname=shop", {"user": "bob", "dbname": "shop"}),
        (r"password='it\'s \\ here'", {"password": r"it's \ here"}),
        (r"password=a\ b", {"password": "a b"}),
        (r"password=a\\b", {"password": r"a\b"}),
        ("password=a'b", {"password": "a'b"}),
        ("password=a=b", {"password": "a=b"}),
        ("password=''", {}),
        ("password=", {}),
        ("user=bob password= ", {"user": "bob"}),
        ("dbname=été", {"dbname": "été"}),
        # Ours: after spaces, a keyword with `=` begins the next pair.
        ("password= dbname=postgres", {"dbname": "postgres"}),
        ("password= dbname = postgres", {"dbname": "postgres"}),
        ("password = \n dbname='post gres'", {"dbname": "post gres"}),
        ("password= binary_parameters=yes user=bob", {"user": "bob"}),
        ("password= hunter2=dbname", {"password": "hunter2=dbname"}),
        ("password='dbname=postgres'", {"password": "dbname=postgres"}),
        ("password=dbname=postgres", {"password": "dbname=postgres"}),
        ("user = dbname", {"user": "dbname"}),
        (
            "host=localhost port=5432 user=postgres password= dbname=postgres sslmode=disable",
            {"host": "localhost", "port": "5432", "user": "postgres", "dbname": "postgres", "sslmode": "disable"},
        ),
        # Settings of lib/pq alone are dropped, those of libpq alone are kept, the rest are run-time parameters.
        ("binary_parameters=yes disable_prepared_binary_result=no user=bob", {"user": "bob"}),
        ("keepalives_idle=5 sslcrldir=/x", {"keepalives_idle": "5", "sslcrldir": "/x"}),
        ("search_path=billing", {"options": "-c search_path=billing"}),
        (
            r"options='-c work_mem=1MB' app.tag='a b\\c'",
            {"options": r"-c work_mem=1MB -c app.tag=a\ b\\c"},
        ),
        ("postgres://", {}),
        (
            "postgres://bob:s%20e%2Fc@db:5433/shop?sslmode=disable",
            {"user": "bob", "password": "s e/c", "host": "db", "port": "5433", "dbname": "shop", "sslmode": "disable"},
        ),
        ("postgres://bob:s@c@db/shop", {"user": "bob", "password": "s@c", "host": "db", "dbname": "shop"}),
        ("postgresql://db/shop", {"host": "db", "dbname": "shop"}),
        ("postgresql://[::1]:5433/", {"host": "::1", "port": "5433"}),
        ("postgres://a:1,b:2/shop", {"host": "a,b", "port": "1,2", "dbname": "shop"}),
        (
            "postgres://db/shop?binary_parameters=yes&search_path=a%2Cb&sslmode=",
            {"host": "db", "dbname": "shop", "options": "-c search_path=a,b"},
        ),
    ],
)
def test_it_is_read(text: str, expected: dict[str, str]) -> None:
    assert parsed(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("user", "without `=`"),
        ("user=bob hunter2", "without `=` after it, at character 10"),
        ("user bob=x", "without `=`"),
        ("=bob", "without a name"),
        ("user=bob =hunter2", "without a name before it, at character 10"),
        ("password='hunter2", "a quote that does not end, at character 10"),
        (r"password='hunter2\'", "a quote that does not end"),
        ("password=hunter2\\", "ends with a backslash"),
        ("pasword=hunter2", "did you mean `password`"),
        ("hunter2!=x", "neither a connection keyword nor"),
        ("sslinline=true sslkey=hunter2", "sslinline"),
        ("krbspn=x", "krbspn"),
        ("user=bob password=hunter2\0", "NUL"),
        ("port=hunter2", "a port that is not a number"),
        ("postgres://bob:hunter2@db:port/shop", "a port that is not a number"),
        ("postgres://bob:hunter2/x@db/shop", "not a URL"),
        ("postgres://bob:12/hunter2@db/shop", "not a URL"),
        ("postgres://bob:12?user=hunter2@db/shop", "not a URL"),
        ("postgres://bob:s@hunter2/x@db/shop", "not a URL"),
        ("postgres://bob:hunter2@[db/shop", "not a URL"),
        ("postgres://bob:%zzhunter2@db/shop", "not a URL"),
        ("postgres://db/shop?password=hunter2&hunter2", "not a URL"),
        ("password=hunter2\ud800", "lone surrogate"),
        ("postgres://db/shop?password=hunter2%00", "NUL"),
    ],
)
def test_what_cannot_be_read_is_refused_without_repeating_it(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        DataSource.parse(text)
    assert words in str(refused.value)
    assert refused.value.field == "dataSource"
    assert "hunter2" not in "".join(traceback.format_exception(refused.value)) + repr(vars(refused.value))
    assert refused.value.__context__ is None


def test_goharvests_defaults_only_where_goharvest_is_spoken() -> None:
    assert conninfo_to_dict(DataSource.parse("user=bob").conninfo()) == {"user": "bob", **ALWAYS}
    assert conninfo_to_dict(DataSource.parse("user=bob", lib_pq_defaults=True).conninfo()) == {
        "user": "bob",
        "host": "localhost",
        "port": "5432",
        "sslmode": "require",
        **ALWAYS,
    }


def test_goharvests_defaults_yield_to_what_is_given() -> None:
    text = "host=/run/pg port=1 sslmode=prefer"
    assert "host=/run/pg port=1 sslmode=prefer" in DataSource.parse(text, lib_pq_defaults=True).conninfo()
    assert "host=localhost" in DataSource.parse("host= user=bob", lib_pq_defaults=True).conninfo()
    assert "host=" not in DataSource.parse("hostaddr=127.0.0.1", lib_pq_defaults=True).conninfo()
    assert "sslmode" not in DataSource.parse("service=shop", lib_pq_defaults=True).conninfo()


@pytest.mark.parametrize("name", ["host", "port", "sslmode"])
def test_goharvests_defaults_yield_to_libpqs_environment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"PG{name.upper()}", "1")
    assert name not in conninfo_to_dict(DataSource.parse("user=bob", lib_pq_defaults=True).conninfo())


def test_the_user_may_choose_the_server_and_the_name() -> None:
    text = "target_session_attrs=any application_name=mine"
    assert parsed(text) == {"target_session_attrs": "any", "application_name": "mine"}


def test_the_environment_may_choose_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "any")
    assert "target_session_attrs" not in DataSource.parse("user=bob").conninfo()


@pytest.mark.parametrize(
    "text",
    [
        "user=bob password=hunter2 sslpassword=hunter2 options='-c a.b=hunter2' scram_client_key=hunter2",
        "user=bob passwd.x=hunter2",
        "postgres://bob:hunter2@db/shop?sslpassword=hunter2&app.secret=hunter2",
    ],
)
def test_its_text_shows_where_but_no_secret(text: str) -> None:
    source = DataSource.parse(text)
    for shown in (str(source), repr(source), f"{source}", repr([source])):
        assert "bob" in shown
        assert "hunter2" not in shown
        assert "***" in shown
    assert "hunter2" in source.conninfo()


def test_equal_texts_make_equal_sources() -> None:
    one, other = DataSource.parse("user=bob port=1"), DataSource.parse("port = 1 user = 'bob'")
    assert one == other
    assert hash(one) == hash(other)
    assert one != DataSource.parse("user=eve port=1")
    assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301 - our own bytes


def test_the_default_is_goharvests() -> None:
    source = HarvestConfig(leader_group_id="g").data_source
    assert source == DataSource.parse(
        "host=localhost port=5432 user=postgres password= dbname=postgres sslmode=disable"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sslmode=requird", "did you mean `require`?"),
        ("sslmode=Require", "did you mean `require`?"),
        ("postgres://h/d?sslmode=verify_full", "did you mean `verify-full`?"),
        ("sslmode=yes", "disable, allow, prefer"),
        ("target_session_attrs=readwrite", "did you mean `read-write`?"),
        ("channel_binding=on", "disable, prefer, require"),
        ("gssencmode=no", "disable, prefer, require"),
        ("sslcertmode=never", "disable, allow, require"),
        ("sslnegotiation=tls", "postgres, direct"),
        ("load_balance_hosts=yes", "disable, random"),
    ],
)
def test_a_value_that_libpq_would_refuse_as_it_connects_is_refused_at_load(text, words):
    with pytest.raises(ConfigError, match="that libpq does not know") as caught:
        DataSource.parse(text)
    assert words in caught.value.next_step


@pytest.mark.parametrize(("name", "value"), [(name, each) for name, known in _CHOICES.items() for each in known])
def test_libpq_knows_each_value_that_is_let_through(name, value):
    """It complains of what else is missing: nothing listens there."""
    own = {"sslmode": "require"} if (name, value) == ("sslnegotiation", "direct") else {}
    with pytest.raises(psycopg.OperationalError) as caught:
        psycopg.connect(host="127.0.0.1", port=1, connect_timeout=2, **{**own, name: value})
    assert "invalid" not in str(caught.value)


def test_a_variable_of_libpq_with_another_value_is_no_server_that_is_away(monkeypatch):
    monkeypatch.setenv("PGSSLMODE", "requird")
    with pytest.raises(DatabaseError, match="a value that libpq does not know") as caught:
        connect("host=127.0.0.1 port=1")
    assert not isinstance(caught.value, DatabaseUnavailable)
