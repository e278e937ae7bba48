"""Outboxes that are moved from server to server, over random histories: committed records are delivered once.

The servers are real, and so are dump and restore; rows that the sources return count as delivered. A history has late
transactions, records that were deferred, several subscriptions, and writers that are there before the move.
"""

import itertools
import uuid
from collections import Counter

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support import clusters

from harvest_lib.checkpoints.table import CheckpointTable
from harvest_lib.errors import OutboxTableError
from harvest_lib.outbox import NativeTable, OutboxTable
from harvest_lib.record.checkpoint import OutboxCheckpoint
from harvest_lib.source import Selection, SnapshotSource, TransactionIdSource
from harvest_lib.source.filters import Subscription
from harvest_lib.subscriptions.admin import Subscriptions
from harvest_lib.subscriptions.moving import Moving

pytestmark = pytest.mark.full

OUTBOX = OutboxTable(("public", "outbox"))
NAMES = ("one", "two")
_WRITE = "INSERT INTO outbox (kafka_topic, kafka_key) SELECT 't', 'k' FROM generate_series(1, %s) RETURNING id"
_NUMBERS = itertools.count()
TALLY: Counter = Counter()


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    with clusters.clusters(tmp_path_factory.mktemp("moves"), "18", "18") as made:
        yield made


class Moved:
    """One outbox on its way, and what is known of it."""

    def __init__(self, servers, sources):
        self.servers, self.sources = servers, sources
        self.here = 0
        self.dsn = clusters.create(servers[0], f"moves_{next(_NUMBERS)}")
        self.connection = psycopg.connect(self.dsn, autocommit=True)
        NativeTable(outbox=OUTBOX).create(self.connection)
        self.committed: set[int] = set()
        self.delivered = {name: Counter() for name in NAMES}
        self.late: list = []
        self.last_id = 0
        self.asked = 0

    def write(self, rows, *, savepoint=False):
        with self.connection.transaction():
            if savepoint:
                self.connection.execute("SELECT pg_current_xact_id()")
                with self.connection.transaction():
                    found = self.connection.execute(_WRITE, (rows,)).fetchall()
            else:
                found = self.connection.execute(_WRITE, (rows,)).fetchall()
        self.committed |= {each for (each,) in found}

    def begin_late(self, rows):
        connection = psycopg.connect(self.dsn)
        self.late.append((connection, [each for (each,) in connection.execute(_WRITE, (rows,))]))

    def end_late(self):
        if self.late:
            connection, ids = self.late.pop(0)
            connection.commit()
            connection.close()
            self.committed |= set(ids)

    def drop_late(self):
        while self.late:
            self.late.pop()[0].close()

    def deliver(self, name, *, pages, limit, defer_every):
        """Read some pages and keep the checkpoint after each; every `defer_every`-th record is deferred."""
        kind = self.sources[name]
        make = SnapshotSource if kind == "snapshot" else TransactionIdSource
        source = make(self.dsn, Selection(table=OUTBOX.identifier), subscription=name)
        checkpoints = CheckpointTable(
            self.dsn,
            OUTBOX.subscriptions.identifier,
            Subscription(name=name, source=kind),
            outbox=OUTBOX.identifier,
        )
        last = checkpoints.lead(uuid.uuid4())
        position = source.open(last.position)
        counter, waiting = last.number, []
        if last.position is None and pages > 1:  # else it has led, and come nowhere
            counter += 1
            assert checkpoints.save(OutboxCheckpoint(generation=last.generation, number=counter, position=position))
        for _ in range(pages):
            page = source.read(limit)
            if page is None:
                break
            ids = [row[0] for row in page.rows]
            waiting = [each for number, each in enumerate(ids, 1) if defer_every and number % defer_every == 0]
            self.delivered[name].update(each for each in ids if each not in waiting)
            position = {**page.position, **({"deferred": waiting} if waiting else {})}
            counter += 1
            low_watermark, hold = source.retention_bounds(position)
            saved = OutboxCheckpoint(
                generation=last.generation,
                number=counter,
                position=position,
                low_watermark=low_watermark,
                retention_hold=hold,
            )
            assert checkpoints.save(saved)
            if waiting:
                break  # the process that goes on begins with them
        source.close()
        checkpoints.close()

    def copy(self, how, early, burned):
        """Copy it to the other server, write there, and move it."""
        self.last_id = self.connection.execute("SELECT coalesce(max(id), 0) FROM outbox").fetchone()[0]
        self.here = 1 - self.here
        server = self.servers[self.here]
        clusters.burn(server.dsn, burned)
        target = clusters.create(server, f"moves_{next(_NUMBERS)}")
        clusters.dump_and_restore(self.dsn, target, "18", how=how)
        self.drop_late()
        self.connection.close()
        self.dsn, self.connection = target, psycopg.connect(target, autocommit=True)
        for rows, savepoint in early:
            self.write(rows, savepoint=savepoint)
        subscriptions = Subscriptions(self.connection, OUTBOX, Selection(table=OUTBOX.identifier))
        moving = Moving(subscriptions, lambda _shard: None)
        try:
            moved = moving.run()
        except OutboxTableError as error:
            assert "--last-id" in error.next_step  # noqa: PT017 - it is the operator's next step
            self.asked += 1
            moved = moving.run(last_id=self.last_id)
        TALLY["moves"] += moved is not None
        for name, waiting in moved.waiting.items() if moved is not None else ():
            TALLY["waiting"] += waiting > 0
            TALLY["delivered"] += any(each <= self.last_id for each in self.delivered[name])
            came = {each for each in self.committed if each <= self.last_id}
            assert waiting == len(came - set(self.delivered[name]))

    def close(self):
        self.drop_late()
        self.connection.close()


written = st.tuples(st.just("write"), st.integers(1, 6), st.booleans())
begun = st.tuples(st.just("begin_late"), st.integers(1, 4))
ended = st.tuples(st.just("end_late"))
delivered = st.tuples(
    st.just("deliver"), st.sampled_from(NAMES), st.integers(1, 4), st.integers(1, 5), st.sampled_from([0, 0, 2, 3])
)
copied = st.tuples(
    st.just("copy"),
    st.sampled_from(["custom", "inserts"]),
    st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=3),
    st.sampled_from([0, 30, 700]),
)
some = st.lists(st.one_of(written, begun, ended, delivered, delivered), min_size=2, max_size=9)
histories = st.tuples(
    st.fixed_dictionaries({name: st.sampled_from(["snapshot", "transaction_id"]) for name in NAMES}),
    st.lists(st.tuples(some, copied), min_size=1, max_size=2),
    some,
)


def run(servers, history):
    sources, hops, rest = history
    outbox = Moved(servers, sources)
    try:
        for name in NAMES:
            outbox.deliver(name, pages=2, limit=1, defer_every=0)
        for steps, hop in hops:
            for step in [("write", 3, False), *steps, hop]:
                apply(outbox, step)
        for step in rest:
            apply(outbox, step)
        while outbox.late:
            outbox.end_late()
        for name in NAMES:
            outbox.deliver(name, pages=1_000, limit=50, defer_every=0)
            outbox.deliver(name, pages=1_000, limit=50, defer_every=0)
            assert set(outbox.delivered[name]) == outbox.committed, "lost, or never written"
            assert outbox.delivered[name].most_common(1)[0][1] == 1, "repeated"
    finally:
        outbox.close()


def apply(outbox, step):
    match step:
        case ("write", rows, savepoint):
            outbox.write(rows, savepoint=savepoint)
        case ("begin_late", rows):
            outbox.begin_late(rows)
        case ("end_late",):
            outbox.end_late()
        case ("deliver", name, pages, limit, defer_every):
            outbox.deliver(name, pages=pages, limit=limit, defer_every=defer_every)
        case ("copy", how, early, burned):
            outbox.copy(how, early, burned)


def test_what_was_committed_is_delivered_once_wherever_the_outbox_goes(servers):
    TALLY.clear()

    @settings(
        max_examples=25,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[*HealthCheck],
        derandomize=True,  # it counts what was drawn
    )
    @given(histories)
    def moves(history):
        run(servers, history)

    moves()
    assert min(TALLY[each] for each in ("moves", "waiting", "delivered")) > 15, TALLY
