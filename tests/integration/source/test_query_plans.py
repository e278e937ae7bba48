"""Cost of a poll and of a page: rows and buffers, which do not depend on the machine, whatever is kept in the table.

Statements are taken from the source as it fills them, and explained as it runs them: a poll by a plan that is kept,
made for no values in particular, a page by one for its values. Each table has 20,000 records that were read and are
kept, in several segments; one was never analyzed, as after a bulk load.
"""

import pytest
from psycopg import adapt, sql
from psycopg._queries import PostgresQuery
from support.paged import RealPagedTable, read_rows

from harvest_lib.record import PAGE_BYTES
from harvest_lib.source.batch_source import Plans
from harvest_lib.source.pg_snapshot import Snapshot

pytestmark = pytest.mark.gate

KEPT = 20_000
SEGMENTS = 13
"""A merge looks one row ahead in each."""
FEW_BUFFERS = 200
"""A few per segment and a page's own; the kept records are in 800."""

_FILL = """
INSERT INTO outbox (kafka_topic, kafka_key, kafka_value)
SELECT 't', 'k' || g % 100, repeat('x', 200) FROM generate_series(1, {records}) g
"""


@pytest.fixture(params=["never analyzed", "analyzed"])
def table(request, dsn):
    made = RealPagedTable(dsn, segment_size=4_000, ahead=SEGMENTS - 1)
    segments = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'outbox'::regclass"
    for (segment,) in made.connection.execute(segments).fetchall():
        made.connection.execute(f"ALTER TABLE {segment} SET (autovacuum_enabled = off)")
    for _ in range(100):
        fill(made.connection, KEPT // 100)
    if request.param == "analyzed":
        made.connection.execute("VACUUM ANALYZE outbox")
    yield made
    made.close()


def fill(connection, records):
    connection.execute(_FILL.format(records=records))


class Cost:
    """Rows that scans of the outbox produced or threw away, and buffers that the statement touched."""

    def __init__(self, connection, statement, values, *, kept=False):
        if kept:
            query = PostgresQuery(adapt.Transformer(connection))
            query.convert(statement, values)
            connection.execute(b"PREPARE explained AS " + query.query)
            in_order = sql.SQL(", ").join(sql.Literal(values[name]) for name in query._order)
            statement, values = sql.SQL("EXECUTE explained ({})").format(in_order), None
        (plan,) = connection.execute(sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ") + statement, values).fetchone()
        if kept:
            connection.execute("DEALLOCATE explained")
        root = plan[0]["Plan"]
        self.buffers = root["Shared Hit Blocks"] + root["Shared Read Blocks"]
        self.rows = 0
        self.nodes = []
        self._add(root)

    def _add(self, node):
        if "Relation Name" in node:
            removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
            self.rows += (node["Actual Rows"] + removed) * node["Actual Loops"]
            if node["Actual Loops"]:
                self.nodes.append((node["Node Type"], node.get("Index Name"), node["Actual Rows"], removed))
        for each in node.get("Plans", ()):
            self._add(each)

    def __repr__(self):
        return f"{self.rows} rows, {self.buffers} buffers: {self.nodes}"


def opened(table, start):
    """A source that has read up to a snapshot."""
    source = table.source(start=start)
    source.open(None)
    return source


def poll(source, limit=501):
    values = {
        "before": str(source._prev.xmax - 1),
        "open": [str(each) for each in source._prev.in_progress],
        "limit": limit,
        "bytes": PAGE_BYTES,
    }
    source._plan(Plans.KEPT)
    return Cost(source._connection, source._poll, values, kept=True)


def page(source, statement, values):
    source._plan(Plans.FRESH)
    return Cost(source._connection, statement, values)


def window(source, cur):
    """The values of EXTENT and FRESH for what became visible up to a snapshot."""
    return {"from": str(source._prev.xmax), "to": str(cur.xmax), "now": str(cur)}


def test_a_poll_that_finds_nothing_or_little_does_not_read_what_is_kept(table):
    source = opened(table, table.snapshot())
    empty = poll(source)
    assert empty.rows == 0, empty
    assert empty.buffers < FEW_BUFFERS, empty
    fill(table.connection, 10)
    found = poll(source)
    assert found.rows == 10, found
    assert found.buffers < FEW_BUFFERS, found


def test_a_writer_that_idles_since_long_costs_a_poll_nothing(dsn):
    """From its xmin on, every poll would read what was written since."""
    table = RealPagedTable(dsn, segment_size=4_000, ahead=SEGMENTS - 1)
    idle = table.begin()
    idle.write("idle")
    for _ in range(20):
        fill(table.connection, KEPT // 20)
    source = opened(table, table.snapshot())
    assert source._prev.in_progress == (idle.id,)
    empty = poll(source)
    assert empty.rows <= 1, empty
    assert empty.buffers < FEW_BUFFERS, empty
    fill(table.connection, 10)
    found = poll(source)
    assert found.rows <= 11, found
    idle.commit()
    late = poll(source)
    assert late.rows == 11, late
    assert late.buffers < FEW_BUFFERS, late
    table.close()


def test_what_an_open_transaction_has_written_is_stepped_over(table):
    """A job that inserts for minutes must not be read by each poll until it commits; nor what it leaves behind."""
    source = opened(table, table.snapshot())
    bulk = table.begin()
    bulk._connection.execute(_FILL.format(records=KEPT))
    fill(table.connection, 10)
    meanwhile = poll(source)
    assert meanwhile.rows == 10, meanwhile
    assert meanwhile.buffers < FEW_BUFFERS, meanwhile
    assert len(read_rows(source, 10)) == 10
    assert bulk.id in source._prev.in_progress
    again = poll(source)
    assert again.rows == 0, again
    assert again.buffers < FEW_BUFFERS, again
    bulk.commit()
    first = poll(source)
    assert first.rows <= 502 + SEGMENTS, first
    assert first.buffers < FEW_BUFFERS, first


def test_a_page_of_fresh_records_is_read_by_the_primary_key(table):
    source = opened(table, table.snapshot())
    fill(table.connection, KEPT)
    cur = table.snapshot()
    values = window(source, cur)
    extent = page(source, source._extent, values)
    assert extent.rows <= KEPT, extent
    low, high = source._connection.execute(source._extent, values).fetchone()
    assert (low, high) == (KEPT + 1, 2 * KEPT)
    for after in (low - 1, low + 7_000, high - 1_000):
        read = page(source, source._fresh, {**values, "after": after, "high": high, "limit": 500, "bytes": PAGE_BYTES})
        assert read.rows == 500, read
        assert read.buffers < FEW_BUFFERS, read
        whole = page(
            source, source._fresh_all, {**values, "after": after, "high": high, "limit": 500, "bytes": PAGE_BYTES}
        )
        assert whole.rows == 2 * 500, "once for the sum of their bytes"
        assert whole.buffers < 2 * FEW_BUFFERS, whole


def test_the_first_pages_of_a_new_subscription_are_read_by_the_primary_key(table):
    source = opened(table, Snapshot(1, 1))
    first = poll(source)
    assert first.rows <= 502 + SEGMENTS, first
    values = window(source, table.snapshot())
    read = page(source, source._fresh, {**values, "after": 9_900, "high": 2**63 - 1, "limit": 500, "bytes": PAGE_BYTES})
    assert read.rows == 500, read
    assert read.buffers < FEW_BUFFERS, read


def test_a_page_of_late_records_is_read_by_the_index(table):
    """Among them one that wrote as much as all others, and whose statistics say so."""
    late, small = table.begin(), table.begin()
    late._connection.execute(_FILL.format(records=KEPT))
    small.write("k", "1", "2", "3")
    source = opened(table, table.snapshot())
    late.commit()
    small.commit()
    if table.connection.execute("SELECT count(*) FROM pg_stats WHERE tablename = 'outbox'").fetchone()[0]:
        table.connection.execute("ANALYZE outbox")
    ended = [str(late.id), str(small.id)]
    for after in (0, KEPT + 7_000, 2 * KEPT - 700):
        read = page(source, source._late, {"ended": ended, "after": after, "limit": 500, "bytes": PAGE_BYTES})
        assert 500 <= read.rows <= 504 + SEGMENTS, read
        assert read.buffers < FEW_BUFFERS, read


def test_a_connection_looks_for_foreign_transactions_by_the_index(table):
    source = opened(table, table.snapshot())
    cost = Cost(source._connection, source._foreign, {})
    assert cost.rows == 0, cost
    assert cost.buffers < FEW_BUFFERS, cost


def test_transaction_id_reads_a_page_by_the_index(table):
    source = table.source(kind="transaction_id")
    source.open(None)
    source._plan(Plans.KEPT)
    of_last = "SELECT transaction_id::text, id FROM outbox WHERE id = %s"
    for after in (1, KEPT // 2, KEPT - 500):
        transaction, number = table.connection.execute(of_last, (after,)).fetchone()
        values = {"transaction": transaction, "id": number, "until": None, "limit": 500, "bytes": PAGE_BYTES}
        read = Cost(source._connection, source._read, values, kept=True)
        assert read.rows <= 500 + SEGMENTS, read
        assert read.buffers < FEW_BUFFERS, read
    source.close()


@pytest.mark.parametrize("kind", ["snapshot", "transaction_id"])
def test_the_plan_of_a_poll_is_made_once(dsn, kind):
    """To plan it again takes three times as long as to run it; so a page needs a plan for its values, a poll none."""
    table = RealPagedTable(dsn, segment_size=4_000)
    source = table.source(kind=kind)
    source.open(None)
    for _ in range(20):
        fill(table.connection, 10)
        assert len(read_rows(source, 10)) == 10
    made = (
        "SELECT max(custom_plans), max(generic_plans) FROM pg_prepared_statements WHERE statement ~ 'harvest|LATERAL'"
    )
    custom, generic = source._connection.execute(made).fetchone()
    assert custom == 0
    assert generic >= 20
    fill(table.connection, 3_000)
    assert len(read_rows(source, 3_000)) == 3_000
    pages = "SELECT sum(custom_plans) FROM pg_prepared_statements WHERE statement ~ 'THEN pg_visible_in_snapshot'"
    (custom,) = source._connection.execute(pages).fetchone()
    assert custom is None if kind == "transaction_id" else custom > 0
    source.close()
    table.close()
