"""The promises of every source that reads by pages, checked on the fake that the loop's tests use and the real ones."""

import uuid
from concurrent.futures import wait
from functools import partial

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from psycopg import sql
from psycopg.conninfo import make_conninfo
from support.paged import FakePagedTable, RealPagedTable, assert_nothing, read_pages, read_rows, through_json
from support.waiting import eventually

from harvest_lib.errors import CheckpointError, DatabaseUnavailable, OutboxTableError, ServerRegressed
from harvest_lib.record import PAGE_BYTES
from harvest_lib.source import server_identity
from harvest_lib.source.pg_snapshot import NOTHING, Snapshot

pytestmark = pytest.mark.gate

REAL = ["snapshot", "transaction_id"]


@pytest.fixture(params=["fake", *REAL])
def table(request):
    if request.param == "fake":
        yield FakePagedTable()
        return
    real = RealPagedTable(request.getfixturevalue("database"), request.param, value_type="text")
    yield real
    real.drop()


@pytest.fixture(scope="module")
def database(stack):
    """One for all tests of this file: a hundred would take longer than the tests."""
    name = f"paged_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(stack.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield make_conninfo(stack.dsn, dbname=name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def source(table):
    made = table.source()
    made.open(None)
    yield made
    made.close()


def reopened(table, position, **settings):
    """A source opened at a position that was kept, as another process would."""
    source = table.source(**settings)
    source.open(through_json(position))
    return source


def read_now(source):
    """Everything there is, waiting for nothing."""
    return [row for page in iter(lambda: source.read(100), None) for row in page.rows]


def values(rows):
    return [row[3] for row in rows]


only_snapshots = pytest.mark.parametrize("table", ["fake", "snapshot"], indirect=True)
only_real = pytest.mark.parametrize("table", REAL, indirect=True)


# -- order and completeness


@pytest.mark.quick
def test_what_was_committed_comes_once_in_order(table, source):
    written = [row for number in range(10) for row in table.write(f"key-{number % 3}", "a", "b", "c")]
    assert read_rows(source, 30, limit=7) == written
    assert_nothing(source)
    written = table.write("key-0", "d")
    assert read_rows(source, 1) == written
    assert_nothing(source)


def test_a_row_comes_whole(table, source):
    (row,) = table.write("kéy", None, topic="töpic")
    assert read_rows(source, 1) == [(row[0], "töpic", "kéy", None, [], [])]


def test_an_empty_table_has_nothing(source):
    assert source.read(10) is None
    assert source.read(10) is None


@pytest.mark.parametrize("records", [1, 4, 5, 6, 10, 11])
def test_a_page_is_no_longer_than_asked_whatever_was_asked_before(table, source, records):
    """A page that is on its way already may be longer than the next one may be."""
    written = table.write("k", *map(str, range(records)))
    found, limits = [], [5, 1, 3, 2, 5, 1, 1, 1, 1, 1, 1]
    while len(found) < records and limits:
        page = source.read(limits[0])
        assert len(page.rows) <= limits.pop(0)
        found += page.rows
    assert found == written


@only_snapshots
def test_a_page_of_several_transactions_is_no_longer_than_asked(table, source):
    """Late ones are read one beside the other."""
    late, later = table.begin(), table.begin()
    table.write("k")
    assert len(read_rows(source, 1)) == 1
    written = [row for _ in range(10) for one in (late, later) for row in one.write("k")]
    late.commit()
    later.commit()
    written += table.write("k", *map(str, range(5)))
    pages = read_pages(source, 25, limit=4)
    assert [row for page in pages for row in page.rows] == written
    assert max(len(page.rows) for page in pages) <= 4


@pytest.mark.quick
def test_it_goes_on_from_every_position(table, source):
    """Also from within a window, by another process, while newer records are written."""
    late = table.begin()
    late.write("late", "1", "2")
    written = table.write("k", *map(str, range(11)))
    late.write("late", "3")
    late.commit()
    pages = read_pages(source, 14, limit=3)
    rows = [row for page in pages for row in page.rows]
    assert [row for row in rows if row in written] == written
    new = table.write("k", "new")
    passed = 0
    for page in pages:
        passed += len(page.rows)
        resumed = reopened(table, page.position)
        assert read_rows(resumed, 15 - passed, limit=4) == rows[passed:] + new
        assert_nothing(resumed)
        resumed.close()


def test_it_goes_on_from_a_position_with_another_limit_each_time(table, source):
    written = table.write("k", *map(str, range(20)))
    position, found = source.open(None), []
    for limit in (1, 3, 2, 7, 4, 3):
        source.open(through_json(position))
        page = source.read(limit)
        found += page.rows
        position = page.position
    assert found == written
    source.open(through_json(position))
    assert_nothing(source)


def test_where_it_was_opened_is_a_position_too(table, source):
    written = table.write("k", "a", "b")
    start = table.source()
    position = through_json(start.open(None))
    start.close()
    for _ in range(2):
        resumed = reopened(table, position)
        assert read_rows(resumed, 2) == written
        resumed.close()


# -- deferred records


def test_records_that_were_deferred_come_first(table, source):
    """In the order in which they were deferred, also within a window, and they do not move the position."""
    written = table.write("k", *map(str, range(6)))
    page = source.read(4)
    deferred = [written[2][0], written[0][0]]
    position = {**page.position, "deferred": deferred}
    resumed = table.source()
    assert through_json(resumed.open(through_json(position)))["deferred"] == deferred, "else they are lost"
    first = resumed.read(10)
    assert first.rows == [written[2], written[0]]
    assert first.more
    after = through_json(first.position)
    assert "deferred" not in after
    assert read_rows(resumed, 2) == written[4:]
    assert_nothing(resumed)
    resumed.close()
    again = reopened(table, after)
    assert read_rows(again, 2) == written[4:]
    again.close()


def test_records_that_were_deferred_come_when_there_is_nothing_else(table, source):
    (row,) = table.write("k")
    (page,) = read_pages(source, 1)
    source.open(through_json({**page.position, "deferred": [row[0]]}))
    assert read_rows(source, 1) == [row]
    assert_nothing(source)
    source.open(through_json(page.position))
    assert_nothing(source)


# -- where to start


def test_a_subscription_starts_at_the_beginning_now_or_at_a_snapshot(table):
    before = table.write("k", "before")
    then = table.snapshot()
    between = table.write("k", "between")
    sources = [table.source(), table.source(start=None), table.source(start=then)]
    for source in sources:
        source.open(None)
    after = table.write("k", "after")
    beginning, now, at_snapshot = sources
    assert read_rows(beginning, 3) == before + between + after
    assert read_rows(now, 1) == after
    assert read_rows(at_snapshot, 2) == between + after
    for source in sources:
        assert_nothing(source)
        source.close()


def test_what_was_open_when_a_subscription_started_comes(table):
    """It starts now or at a snapshot; the transaction commits afterwards."""
    late = table.begin()
    written = late.write("k", "late")
    then = table.snapshot()
    now, at_snapshot = table.source(start=None), table.source(start=then)
    now.open(None)
    at_snapshot.open(None)
    late.commit()
    for source in (now, at_snapshot):
        assert read_rows(source, 1) == written
        source.close()


def test_a_position_before_the_first_record_is_kept(table):
    """The position of a subscription that starts now must not move while nothing comes."""
    table.write("k", "before")
    source = table.source(start=None)
    position = through_json(source.open(None))
    written = table.write("k", "meanwhile")
    source.close()
    resumed = reopened(table, position, start=None)
    assert read_rows(resumed, 1) == written
    resumed.close()


# -- filters


def test_a_filter_lets_through_what_it_names_only(table):
    source = table.source(keys=["a", "c"])
    source.open(None)
    expected = []
    for number in range(20):
        key = "abcd"[number % 4]
        rows = table.write(key, str(number), "x")
        expected += rows if key in "ac" else []
    pages = read_pages(source, 20, limit=3)
    assert [row for page in pages for row in page.rows] == expected
    assert_nothing(source)
    resumed = reopened(table, pages[2].position, keys=["a", "c"])
    assert read_rows(resumed, 20 - sum(len(page.rows) for page in pages[:3])) == [
        row for page in pages[3:] for row in page.rows
    ]
    resumed.close()
    source.close()


# -- transactions


def test_what_is_written_while_a_batch_is_read_comes_with_the_next(table, source):
    written = table.write("k", *map(str, range(5)))
    (page,) = read_pages(source, 2, limit=2)
    meanwhile = table.begin()
    newer = meanwhile.write("k", "meanwhile") + table.write("k", "new")
    resumed = reopened(table, page.position)
    for one in (source, resumed):
        assert read_rows(one, 3, limit=3) == written[2:], "the window"
    meanwhile.commit()
    for one in (source, resumed):
        assert sorted(read_rows(one, 2)) == newer
        assert_nothing(one)
    resumed.close()


@pytest.mark.quick
def test_a_transaction_that_was_open_comes_when_it_commits(table, source):
    late = table.begin()
    rows = late.write("late", "1")
    others = table.write("k", "a")
    found = read_now(source)
    rows += late.write("late", "2")
    others += table.write("k", "b")
    found += read_now(source)
    rows += late.write("late", "3")
    assert read_now(source) == []
    late.commit()
    found += read_rows(source, 5 - len(found), limit=2)
    assert [row for row in found if row[2] == "late"] == rows
    assert [row for row in found if row[2] == "k"] == others
    assert_nothing(source)


@only_snapshots
def test_a_late_transaction_comes_in_order_of_id_among_the_others(table, source):
    late, later = table.begin(), table.begin()
    first = late.write("late", "1") + later.write("later", "1")
    assert source.read(10) is None
    rows = table.write("k", "a")
    assert read_rows(source, 1) == rows
    second = late.write("late", "2") + table.write("k", "b") + later.write("later", "2") + table.write("k", "c")
    late.commit()
    expected = sorted([first[0], *(row for row in second if row[2] != "later")])
    assert read_rows(source, 4, limit=2) == expected
    later.commit()
    assert read_rows(source, 2, limit=1) == [first[1], second[2]]
    assert_nothing(source)


@only_snapshots
def test_an_idle_transaction_delays_nobody_else(table, source):
    idle = table.begin()
    idle_rows = idle.write("idle")
    for number in range(3):
        written = table.write("k", str(number), "x")
        assert read_rows(source, 2) == written
        assert_nothing(source)
    idle.commit()
    assert read_rows(source, 1) == idle_rows


@pytest.mark.parametrize("table", ["transaction_id"], indirect=True)
def test_an_idle_transaction_delays_everybody(table, source):
    """A limit of this source: `snapshot` would read past the idle transaction."""
    idle = table.begin()
    idle_rows = idle.write("idle")
    written = table.write("k")
    assert source.read(10) is None
    idle.commit()
    assert read_rows(source, 2) == idle_rows + written


@pytest.mark.parametrize("table", ["transaction_id"], indirect=True)
def test_records_come_by_transaction_and_then_by_id(table, source):
    first, second = table.begin(), table.begin()
    rows = [*second.write("k", "1"), *first.write("k", "2")]
    second.commit()
    rows += first.write("k", "3")
    first.commit()
    assert values(read_rows(source, 3, limit=2)) == ["2", "3", "1"]
    assert_nothing(source)


@pytest.mark.quick
def test_what_rolled_back_never_comes(table, source):
    written = table.write("k", "a")
    late, undone = table.begin(), table.begin()
    late.write("k", "never")
    undone.write("k", "never")
    undone.abort()
    found = read_now(source)
    late.abort()
    written += table.write("k", "b")
    found += read_rows(source, 2 - len(found))
    assert found == written
    assert_nothing(source)


@pytest.mark.parametrize("prepared", [False, True])
def test_savepoints_and_prepared_transactions(table, source, prepared):
    kept, dropped = table.begin(), table.begin()
    rows = kept.write("k", "1")
    with kept.undone():
        kept.write("k", "never")
    with kept.kept():
        rows += kept.write("k", "2")
    with kept.undone(), kept.kept():
        kept.write("k", "never")
    rows += kept.write("k", "3")
    dropped.write("k", "never")
    if prepared:
        kept.prepare()
        dropped.prepare()
    assert source.read(10) is None
    dropped.abort()
    assert_nothing(source)
    kept.commit()
    assert read_rows(source, 3) == rows
    assert_nothing(source)


def test_a_large_transaction_that_is_late_comes_by_pages(table, source):
    """A promotion of a Spark job: all of it was open when the last snapshot was taken, and others write meanwhile."""
    late = table.begin()
    rows = late.write("late", *map(str, range(2_500)))
    first = table.write("k", "first")
    found = read_now(source)
    rows += late.write("late", *map(str, range(2_500, 5_000)))
    last = table.write("k", "last")
    late.commit()
    pages = read_pages(source, 5_002 - len(found), limit=700)
    assert max(len(page.rows) for page in pages) <= 700
    passed = len(found)
    found += [row for page in pages for row in page.rows]
    assert sorted(found) == sorted(first + rows + last)
    assert [row for row in found if row[2] == "late"] == rows
    for page in pages:
        passed += len(page.rows)
        resumed = reopened(table, page.position)
        assert read_rows(resumed, 5_002 - passed, limit=3_000) == found[passed:]
        resumed.close()


# -- bounds for retention


def test_what_a_position_has_seen_has_been_read(table, source):
    """Every record visible in it came before; deferred ones are held."""
    late = table.begin()
    late.write("late")
    table.write("k", *map(str, range(6)))
    late.commit()
    assert source.retention_bounds(source.open(None)) == (str(NOTHING), None)
    pages = read_pages(source, 7, limit=2)
    for number, page in enumerate(pages):
        low_watermark, retention_hold = source.retention_bounds(through_json(page.position))
        assert retention_hold is None
        seen_by = Snapshot.parse(low_watermark)
        for row in (row for later in pages[number + 1 :] for row in later.rows):
            assert not seen_by.sees(transaction_of(table, row)), "retention could drop what was not read"
    last, _ = source.retention_bounds(pages[-1].position)
    assert Snapshot.parse(last).sees(transaction_of(table, pages[0].rows[0])), "or nothing is ever dropped"
    assert source.retention_bounds({**pages[-1].position, "deferred": [7, 3, 5]}) == (last, 3)


def transaction_of(table, row):
    if isinstance(table, FakePagedTable):
        return table.rows[row[0]][1]
    found = table.connection.execute("SELECT transaction_id::text::bigint FROM outbox WHERE id = %s", (row[0],))
    return found.fetchone()[0]


# -- calls out of order, and connections that end


def test_it_answers_nothing_unless_it_is_open(table):
    table.write("k")
    source = table.source()
    source.close()
    with pytest.raises(DatabaseUnavailable):
        source.read(1)
    position = source.open(None)
    source.close()
    source.close()
    with pytest.raises(DatabaseUnavailable):
        source.read(1)
    source.open(position)
    assert len(read_rows(source, 1)) == 1
    source.committed()
    source.close()


def test_closing_within_a_batch_is_no_harm(table, source):
    written = table.write("k", *map(str, range(9)))
    (page,) = read_pages(source, 3, limit=3)
    source.close()
    source.open(through_json(page.position))
    assert read_rows(source, 6, limit=3) == written[3:]


@pytest.mark.parametrize("within_a_batch", [False, True])
def test_a_lost_connection_is_said_and_nothing_is_lost_with_it(table, source, within_a_batch):
    written, passed = table.write("k", *map(str, range(9))), 3 if within_a_batch else 9
    page = read_pages(source, passed, limit=3)[-1]
    table.lose(source)
    written += table.write("k", "new")

    with pytest.raises(DatabaseUnavailable):
        while source.read(2) is not None:  # a page may be here already
            pass

    def opens():
        try:
            source.open(through_json(page.position))
        except DatabaseUnavailable:
            return False
        return True

    eventually(opens)
    assert read_rows(source, 10 - passed, limit=4) == written[passed:]
    assert_nothing(source)


@pytest.mark.parametrize("table", ["snapshot"], indirect=True)
def test_a_page_that_is_on_its_way_does_not_hold_up_the_end(table, source):
    """A lock, or a filter that lets little through, may keep it for minutes."""
    written = table.write("k", *map(str, range(29)))
    page = source.read(2)
    assert not wait([piece for stream in source._streams for piece in stream._pending], 60).not_done
    with psycopg.connect(table.dsn) as other:
        other.execute("LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE")
        page = source.read(2)
        assert wait([piece for stream in source._streams for piece in stream._pending], 0).not_done
        source.close()  # and does not wait for the lock
    source.open(through_json(page.position))
    assert read_rows(source, 25, limit=2) == written[4:]


def test_a_position_ahead_of_the_database_is_refused(table, source):
    """Going on would skip everything until the database has come as far."""
    table.write("k", "a", "b", "c")
    (within,) = read_pages(source, 1, limit=1)
    (after,) = read_pages(source, 2, limit=5)[-1:]
    ahead = [{**page.position} for page in (within, after)]
    for position in ahead:
        for name in ("prev", "cur"):
            if name in position:
                position[name] = f"{10**12}:{10**12}:"
        if "transaction_id" in position:
            position["transaction_id"] = str(10**12)
        other = table.source()
        with pytest.raises(CheckpointError) as refused:
            other.open(through_json(position))
        assert refused.value.next_step
        other.close()


# -- the real ones only


@pytest.mark.parametrize("kind", REAL)
def test_values_of_bytes_come_as_they_are(database, kind):
    table = RealPagedTable(database, kind, value_type="bytea")
    given = [b"", bytes(range(256)), None, "ü".encode(), b"\\x00"]
    source = table.source()
    source.open(None)
    table.write("k", *given)
    found = read_rows(source, 5, limit=2)
    assert [value if value is None else bytes(value) for value in values(found)] == given
    assert {type(value) for value in values(found)} == {bytes, type(None)}
    source.close()
    table.drop()


@pytest.mark.parametrize("kind", REAL)
def test_records_over_several_segments_come_in_order(database, kind):
    small = RealPagedTable(database, kind, segment_size=10)
    source = small.source()
    source.open(None)
    late = small.begin()
    rows = late.write("late", *map(str, range(15)))
    late.commit()
    rows += small.write("k", *map(str, range(60)))
    assert read_rows(source, 75, limit=7) == rows
    source.close()
    small.drop()


@only_real
def test_transactions_of_another_cluster_are_refused(table):
    """Restored or replicated: their records would be skipped until the server's own numbers have come as far."""
    table.write("k")
    table.connection.execute("UPDATE outbox SET transaction_id = '1000000000000'")
    source = table.source()
    for _ in range(2):
        with pytest.raises(OutboxTableError) as refused:
            source.open(None)
        assert refused.value.next_step == (
            "harvest subscriptions move; or, to begin its subscriptions again, harvest migrate --restamp"
        )
    source.close()


@pytest.fixture
def ordinary(table):
    """A role that may read the outbox and nothing else."""
    role = f"ordinary_{uuid.uuid4().hex[:8]}"
    name = sql.Identifier(role)
    table.connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'canary'").format(name))
    table.connection.execute(sql.SQL("GRANT SELECT ON outbox TO {}").format(name))
    yield make_conninfo(table.dsn, user=role, password="canary")
    table.connection.execute(sql.SQL("DROP OWNED BY {}").format(name))
    table.connection.execute(sql.SQL("DROP ROLE {}").format(name))


@only_real
def test_an_ordinary_role_can_read_and_go_on(table, ordinary):
    written = table.write("k", "a", "b", "c")
    source = table.source(dsn=ordinary)
    source.open(None)
    (page,) = read_pages(source, 2, limit=2)
    source.close()
    again = table.source(dsn=ordinary)
    again.open(through_json(page.position))
    assert read_rows(again, 1) == written[2:]
    again.close()


REGRESSED = {
    "another cluster": ({"system": "1"}, "not the server"),
    "an earlier time": ({"lsn": "FFFFFFFF/0"}, "earlier time"),
    "another timeline": ({"timeline": "0000000A"}, "promoted"),
}


@only_real
@pytest.mark.parametrize("case", REGRESSED)
@pytest.mark.parametrize("as_ordinary", [False, True])
def test_a_server_that_may_lack_what_was_read_is_refused(table, ordinary, case, as_ordinary):
    table.write("k")
    dsn = ordinary if as_ordinary else table.dsn
    source = table.source(dsn=dsn)
    source.open(None)
    (page,) = read_pages(source, 1)
    source.close()
    change, cause = REGRESSED[case]
    position = {**page.position, "server": {**page.position["server"], **change}}
    other = table.source(dsn=dsn)
    for _ in range(2):
        with pytest.raises(ServerRegressed, match=cause) as refused:
            other.open(through_json(position))
        assert "harvest subscriptions rewind tested" in refused.value.next_step
    other.close()


@only_real
def test_who_may_not_read_where_a_timeline_forked_is_told_the_grant(table, ordinary, monkeypatch):
    monkeypatch.setattr(server_identity, "_FIRST_TIMELINE", "")  # the server's has one before it, as it were
    table.write("k")
    source = table.source(dsn=ordinary)
    position = source.open(None)
    source.close()
    position = {**position, "server": {**position["server"], "timeline": "0000000A"}}
    other = table.source(dsn=ordinary)
    with pytest.raises(ServerRegressed, match=r"GRANT EXECUTE ON FUNCTION pg_read_file\(text\) TO"):
        other.open(position)
    other.close()


@only_real
def test_that_grant_is_enough(table, ordinary):
    """It is what the message asks for; pg_read_server_files would open the whole machine."""
    role = psycopg.conninfo.conninfo_to_dict(ordinary)["user"]
    table.connection.execute(sql.SQL("GRANT EXECUTE ON FUNCTION pg_read_file(text) TO {}").format(sql.Identifier(role)))
    with psycopg.connect(ordinary, autocommit=True) as connection, pytest.raises(psycopg.errors.UndefinedFile):
        connection.execute("SELECT pg_read_file('pg_wal/0000FFFF.history')")


def test_ids_below_one_come_too_when_there_are_more_than_a_page(database):
    table = RealPagedTable(database)
    table.write("k", "a", "b", "c")
    with psycopg.connect(table.dsn, autocommit=True) as connection:
        connection.execute("INSERT INTO outbox (id, kafka_topic, kafka_key) VALUES (0, 't', 'k'), (-5, 't', 'k')")
    source = table.source()
    source.open(None)
    assert [row[0] for row in read_rows(source, 5, 2)] == [-5, 0, 1, 2, 3]
    source.close()
    table.drop()


# -- bytes


def octets(row):
    _, _, key, value, names, contents = row
    return sum(len(text.encode()) for text in (key, value, *names, *contents) if text)


_SIZES = st.one_of(
    st.integers(0, 2_000),
    st.sampled_from([PAGE_BYTES // 3, PAGE_BYTES // 2, PAGE_BYTES - 100, PAGE_BYTES, PAGE_BYTES + 1, 2 * PAGE_BYTES]),
)


@pytest.mark.full
@only_real
@given(
    sizes=st.lists(st.tuples(_SIZES, st.sampled_from("xé")), min_size=1, max_size=12),
    late=st.lists(_SIZES, max_size=4),
    limits=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    resumed=st.booleans(),
)
@example(sizes=[(2 * PAGE_BYTES, "x")] * 3, late=[], limits=[20], resumed=False)
@example(sizes=[(PAGE_BYTES // 2, "x")] * 5, late=[2 * PAGE_BYTES, 10], limits=[20], resumed=True)
@settings(
    max_examples=25,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_a_page_has_no_more_bytes_than_there_is_room_for_whatever_the_rows_have(table, sizes, late, limits, resumed):
    """Unless it is a single record. All come once and in order, also if each page is read by another process."""
    table.connection.execute("TRUNCATE outbox")
    source = table.source(start=None)
    position = through_json(source.open(None))
    written = []
    transaction = table.begin()
    for size in late:
        written += transaction.write("late", "x" * size)
    transaction.commit()
    for size, letter in sizes:
        written += table.write("k", letter * size)
    source.open(position)
    found, number = [], 0
    while len(found) < len(written):
        limit = limits[number % len(limits)]
        page = eventually(partial(source.read, limit))
        assert len(page.rows) <= limit
        assert len(page.rows) == 1 or sum(map(octets, page.rows)) <= PAGE_BYTES
        found += page.rows
        number += 1
        if resumed:
            source.close()
            source = reopened(table, page.position)
    assert [row[0] for row in found] == [row[0] for row in sorted(written)]
    assert found == sorted(written)
    assert_nothing(source)
    source.close()


@only_real
def test_what_was_deferred_comes_by_bytes_and_the_position_names_what_is_left(table, source):
    written = table.write("k", *("x" * (PAGE_BYTES // 2 - 1_000) for _ in range(5)))
    pages = read_pages(source, 5)
    deferred = [row[0] for row in (written[3], written[0], written[4])]
    resumed = reopened(table, {**pages[-1].position, "deferred": deferred})
    first = resumed.read(10)
    assert first.rows == [written[3], written[0]]
    assert through_json(first.position)["deferred"] == [written[4][0]]
    again = reopened(table, first.position)
    for one in (resumed, again):
        assert one.read(10).rows == [written[4]]
        assert_nothing(one)
        one.close()


@only_real
def test_records_are_loaded_by_id_as_far_as_there_is_room(table, source):
    written = table.write("k", *("x" * PAGE_BYTES for _ in range(2)))
    ids = [row[0] for row in written]
    assert source.load(ids) == written[:1]
    assert source.load([0, *ids[1:]]) == written[1:]
