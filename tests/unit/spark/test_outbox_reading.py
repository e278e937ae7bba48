"""Decisions of the reading half of the format `outbox` without a database."""

import subprocess
import sys

import pytest

from harvest_lib.errors import CheckpointError, ConfigError, PositionLost
from harvest_lib.spark.data_source.read_options import ReadOptions
from harvest_lib.spark.data_source.windows import HIGHEST_ID, LOWEST_ID, beginning, required_from, windows_between

pytestmark = pytest.mark.quick


def offset(prev, *, cur=None, after=None, floor=1, closed=1):
    within = {} if cur is None else {"cur": cur, "after": after, "closes": closed}
    return {"source": "snapshot", "prev": prev, "server": {}, "floor": floor, "closed": closed, **within}


def spans(start, end):
    return [(each.prev, each.cur, each.first, each.last) for each in windows_between(start, end)]


@pytest.mark.parametrize(
    ("start", "end", "wanted"),
    [
        (beginning(), offset("9:9:"), [("1:1:", "9:9:", LOWEST_ID, HIGHEST_ID)]),
        (offset("5:7:5"), offset("9:9:"), [("5:7:5", "9:9:", LOWEST_ID, HIGHEST_ID)]),
        (offset("5:7:5"), offset("5:7:5"), []),
        (offset("7:7:"), offset("7:7:", cur="9:9:", after=40), [("7:7:", "9:9:", LOWEST_ID, 40)]),
        (
            offset("7:7:", cur="9:9:", after=40),
            offset("7:7:", cur="9:9:", after=60),
            [("7:7:", "9:9:", 41, 60)],
        ),
        (offset("7:7:", cur="9:9:", after=40), offset("9:9:"), [("7:7:", "9:9:", 41, HIGHEST_ID)]),
        (
            offset("7:7:", cur="9:9:", after=40),
            offset("12:12:"),
            [("7:7:", "9:9:", 41, HIGHEST_ID), ("9:9:", "12:12:", LOWEST_ID, HIGHEST_ID)],
        ),
    ],
)
def test_windows_between_two_offsets(start, end, wanted):
    assert spans(start, end) == wanted


@pytest.mark.parametrize(
    ("start", "end"),
    [(offset("9:9:"), offset("7:7:")), (offset("5:9:"), offset("5:9:5")), (offset("9:9:"), beginning())],
)
def test_an_end_before_its_start_is_refused(start, end):
    with pytest.raises(CheckpointError, match="is before its predecessor"):
        windows_between(start, {**end, "server": {}})


def test_what_was_gone_when_the_end_was_taken_is_lost_unless_it_was_read():
    assert required_from(offset("5:5:", closed=20), offset("9:9:", floor=20)) == 20
    assert required_from(beginning(), offset("9:9:", floor=30)) == 30
    with pytest.raises(PositionLost, match="the outbox begins at 30"):
        required_from(offset("5:5:", closed=20), offset("9:9:", floor=30))


def test_options_are_taken_in_any_case_and_the_dsn_from_the_environment(monkeypatch):
    monkeypatch.setenv("HARVEST_DSN", "dbname=shop")
    given = ReadOptions.parse({"MAXRECORDSPERBATCH": "5", "Shards": "2"}, streaming=True)
    assert (given.dsn, given.max_records, given.shards, given.starting) == ("dbname=shop", 5, 2, "beginning")
    assert "shop" not in repr(given)
    monkeypatch.delenv("HARVEST_DSN")
    with pytest.raises(ConfigError, match="no database was named"):
        ReadOptions.parse({}, streaming=False)


def test_a_password_has_an_option_and_is_not_shown(monkeypatch):
    monkeypatch.setenv("PGPASSWORD", "of-the-driver")
    given = {"dsn": "dbname=shop"}
    assert "password=of-the-driver" in ReadOptions.parse(given, streaming=False).conninfo
    own = ReadOptions.parse({**given, "password": "own"}, streaming=False)
    assert "password=own" in own.conninfo
    assert "own" not in repr(own)


def test_to_know_the_format_takes_no_client_of_postgres():
    program = "import sys, harvest_lib.spark.data_source; sys.exit('psycopg' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("given", "streaming", "match"),
    [
        ({"url": "jdbc:postgresql://h/d"}, False, "(?s)no option 'url' for reading.*write dsn"),
        ({"dbtable": "outbox"}, False, "write outbox"),
        ({"shard": "2"}, False, "write shards"),
        ({"subscribe": "orders"}, True, "write topics"),
        ({"maxOffsetsPerTrigger": "5"}, True, "write maxRecordsPerBatch"),
        ({"nonsense": "5"}, True, "use dsn, password, outbox"),
        ({"startingOffsets": "earliest"}, True, "(?s)cannot start at 'earliest'.*write beginning"),
        ({"startingOffsets": "latest"}, True, "write now"),
        ({"startingOffsets": "7"}, True, "use beginning or now"),
    ],
)
def test_names_of_other_sources_are_refused_with_the_name_here(given, streaming, match):
    with pytest.raises(ConfigError, match=match):
        ReadOptions.parse({"dsn": "host=h", **given}, streaming=streaming)
