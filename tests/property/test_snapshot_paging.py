"""Paging over random histories of transactions and snapshots, against a naive model: the committed rows."""

from concurrent.futures import Future
from types import SimpleNamespace

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from support.histories import History, histories
from support.hypothesis_profiles import examples
from support.paged import FakePagedTable, RealPagedTable
from support.rows import row

from harvest_lib.outbox import row_security
from harvest_lib.record import PAGE_BYTES
from harvest_lib.source import Selection, SnapshotSource, batch_source, server_identity
from harvest_lib.source.pg_snapshot import NOTHING, Snapshot
from harvest_lib.source.prefetch import Stream, merged

pytestmark = pytest.mark.gate

# -- snapshots


@st.composite
def snapshots(draw):
    """Two snapshots, one after the other."""
    ended = draw(st.sets(st.integers(1, 20)))
    ended_later = ended | draw(st.sets(st.integers(1, 30)))
    return _taken(ended, draw(st.integers(21, 25))), _taken(ended_later, draw(st.integers(31, 35)))


def _taken(ended, xmax):
    in_progress = tuple(each for each in range(1, xmax) if each not in ended)
    return Snapshot(min(in_progress, default=xmax), xmax, in_progress)


@given(snapshots())
@settings(max_examples=examples(gate=100, random=1_000))
def test_a_snapshot_is_what_postgres_spells(pair):
    for snapshot in pair:
        assert Snapshot.parse(str(snapshot)) == snapshot


@given(snapshots())
@settings(max_examples=examples(gate=100, random=1_000))
def test_what_became_visible_is_what_is_fresh_and_what_was_late(pair):
    """And each in one of them only."""
    prev, cur = pair
    fresh = [each for each in range(prev.xmax, cur.xmax) if cur.sees(each)]
    late = list(prev.late(cur))
    assert sorted(fresh + late) == [each for each in range(1, 40) if cur.sees(each) and not prev.sees(each)]
    assert list(NOTHING.late(cur)) == []
    assert not any(NOTHING.sees(each) for each in range(1, 40))


@pytest.mark.parametrize("text", ["", "1", "1:2", "1:2:3:4", "a:b:", "1:2:x"])
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match=r".*"):
        Snapshot.parse(text)


# -- streams


class Found(list):
    """Rows that a statement found, read from where it was left."""

    pgresult = None  # there is none of libpq's
    _next = 0

    def fetchall(self):
        rows, self._next = list(self[self._next :]), len(self)
        return rows

    def fetchone(self):
        rows = self[self._next : self._next + 1]
        self._next += len(rows)
        return rows[0] if rows else None

    def scroll(self, value, mode):
        assert mode == "absolute"
        self._next = value

    @property
    def rowcount(self):
        return len(self)


class Answers:
    """In place of `Prefetcher` and its connection: a statement is the list of the rows it would find."""

    def submit(self, call):
        answer = Future()
        answer.set_result(call(self))
        return answer

    def cursor(self, **_options):
        return self

    def execute(self, rows, values, **_options):
        return Found([each for each in rows if each[0] > values["after"]][: values["limit"]])


@given(
    st.lists(st.integers(0, 3), max_size=40),
    st.lists(st.integers(1, 9), min_size=1, max_size=50),
    st.sets(st.integers(0, 50)),
)
@settings(max_examples=examples(gate=100, random=1_000))
@example(owners=[0, 1] * 5, limits=[3], restarts=set())
def test_streams_together_come_by_id_and_by_pages(owners, limits, restarts):
    """The limit of each page does not matter, nor if all streams are begun again after any of them."""
    rows = [row(number, "k") for number in range(1, len(owners) + 1)]
    of_stream = [[each for each, owner in zip(rows, owners, strict=True) if owner == number] for number in range(4)]
    found, after, number = [], 0, 0
    streams = [Stream(each, {}, after) for each in of_stream]
    while True:
        limit = limits[number % len(limits)]
        page = merged(streams, Answers(), limit)
        assert len(page) <= limit
        if not page:
            assert all(stream.is_empty for stream in streams)
            break
        found += page
        after = page[-1][0]
        if number in restarts:
            streams = [Stream(each, {}, after) for each in of_stream]
        number += 1
    assert found == rows


@pytest.mark.parametrize("names", [["n"], [["n", "m"]], [[None]], [[["n"]]], [None]])
@pytest.mark.parametrize("contents", [["c"], [["c"], ["d"]], [[b"c"]], [None]])
def test_streams_together_bring_headers_of_any_form(names, contents):
    """The type of their columns allows arrays of arrays: a writer of these stops nobody."""
    odd = [(number, "t", "k", "v", names, contents) for number in (1, 2, 3)]
    streams = [Stream(odd[::2], {}, 0), Stream(odd[1::2], {}, 0)]
    assert merged(streams, Answers(), 10) == odd


def test_the_bytes_of_arrays_of_arrays_count():
    large = [[["x" * (PAGE_BYTES // 2)], ["y" * (PAGE_BYTES // 4)]]]
    odd = [(number, "t", "k", "v", ["n"], large) for number in (1, 2, 3)]
    streams = [Stream(odd[::2], {}, 0), Stream(odd[1::2], {}, 0)]
    assert merged(streams, Answers(), 10) == odd[:1]


# -- the source, on a server in memory


class MemoryConnection:
    """Answers the source's statements by what they say they find, from a FakePagedTable."""

    closed = False
    info = SimpleNamespace(parameter_status=lambda _name: "UTF8")

    def __init__(self, table, source):
        answers = [
            (row_security._LOOK, lambda _: []),
            (batch_source._NOW, lambda _: [(str(table.snapshot()), False)]),
            (server_identity._NEXT_TRANSACTION, lambda _: [(str(table.snapshot().xmax), False)]),
            (server_identity._IN_RECOVERY, lambda _: [(False,)]),
            (server_identity._WHERE, lambda _: [("1", "00000001", "0/1")]),
            (server_identity._BARRIER, lambda _: [("0/1",)]),
            (source._foreign, lambda _: []),
            (source._poll, self.look),
            (source._extent, self.extent),
            (source._fresh, self.fresh),
            (source._fresh_all, self.fresh),
            (source._late, self.late),
        ]
        self.answers = {id(statement): answer for statement, answer in answers}
        self.table = table

    def cursor(self, **_options):
        return self

    def execute(self, statement, values=(), **_options):
        if isinstance(statement, str) and statement.startswith(("SET plan_cache_mode", "SET row_security")):
            return None  # there is no planner, and there are no policies
        return Found(self.answers[id(statement)](values))

    def close(self):
        self.closed = True

    def look(self, values):
        now, waited_for = self.table.snapshot(), set(map(int, values["open"]))
        found = [
            (transaction, each)
            for each, transaction in self.table.visible(now)
            if transaction > int(values["before"]) or transaction in waited_for
        ]
        rows = [each for _, each in sorted(found)][: values["limit"]]
        not_flushed = None  # so the source asks for the barrier
        return [(str(now), False, not_flushed, *each) for each in rows] or [(str(now), False, not_flushed, None)]

    def extent(self, values):
        ids = [each[0] for each in self._between(values)]
        return [(min(ids, default=None), max(ids, default=None))]

    def fresh(self, values):
        return [each for each in self._between(values) if values["after"] < each[0] <= values["high"]][
            : values["limit"]
        ]

    def late(self, values):
        ended = set(map(int, values["ended"]))
        rows = [each for each, transaction in self.table.visible(self.table.snapshot()) if transaction in ended]
        return [each for each in rows if each[0] > values["after"]][: values["limit"]]

    def _between(self, values):
        now = Snapshot.parse(values["now"])
        return [each for each, transaction in self.table.visible(now) if transaction >= int(values["from"])]


class InMemory(FakePagedTable):
    """A table whose source is the real one, over a connection that is not."""

    def source(self):
        table = self

        class Source(SnapshotSource):
            def _connect(self):
                return MemoryConnection(table, self)

        return Source("", Selection(table=psycopg.sql.Identifier("outbox")))


@pytest.mark.parametrize("make", [InMemory, FakePagedTable])
@given(steps=histories(40), chosen=st.lists(st.integers(0, 40), max_size=3), limit=st.integers(1, 7))
@settings(max_examples=examples(gate=100, random=1_000))
def test_every_record_comes_once_and_every_key_in_order(make, steps, chosen, limit):
    history = History(make())
    history.play(steps)
    history.check_complete()
    history.check_keys()
    history.check_batches()
    history.check_resumed(chosen, limit)


# -- the sources, on Postgres


@pytest.fixture(params=["snapshot", "transaction_id"])
def real(request, dsn):
    table = RealPagedTable(dsn, request.param, segment_size=20)
    yield table
    table.close()


@given(steps=histories(25), chosen=st.lists(st.integers(0, 25), max_size=1), limit=st.integers(1, 7))
@settings(
    max_examples=examples(gate=20, random=50),
    phases=[Phase.generate],  # to shrink takes long where waiting is part of it
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_so_it_is_on_postgres(real, steps, chosen, limit):
    real.connection.execute("TRUNCATE outbox RESTART IDENTITY")
    history = History(real)
    history.play(steps)
    history.check_complete()
    if real.kind == "transaction_id":
        order = [(history.committed[each[0]], each[0]) for each in history.delivered]
        assert order == sorted(order)
    else:
        history.check_keys()
        history.check_batches()
    history.check_resumed(chosen, limit)
