"""What a look and a page cost: rows and buffers, which do not depend on the machine, whatever is kept in the table.

Statements are taken from the source as it fills them, and explained as it runs them. Each table has 20,000 records
that were read and are kept, in several segments; one was never analyzed, as after a bulk load.
"""

import pytest
from psycopg import sql
from support.paged import RealPagedTable, read_rows

from harvest_lib.source.visibility import Snapshot

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

    def __init__(self, connection, statement, values):
        (plan,) = connection.execute(sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ") + statement, values).fetchone()
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


def look(source, limit=501):
    values = {
        "before": str(source._prev.xmax - 1),
        "open": [str(each) for each in source._prev.in_progress],
        "limit": limit,
    }
    return Cost(source._connection, source._look, values)


def batch(source, cur):
    """The values of EXTENT and FRESH for what became visible up to a snapshot."""
    return {"from": str(source._prev.xmax), "to": str(cur.xmax), "now": str(cur)}


def test_a_look_that_finds_nothing_or_little_does_not_read_what_is_kept(table):
    source = opened(table, table.snapshot())
    empty = look(source)
    assert empty.rows == 0, empty
    assert empty.buffers < FEW_BUFFERS, empty
    fill(table.connection, 10)
    found = look(source)
    assert found.rows == 10, found
    assert found.buffers < FEW_BUFFERS, found


def test_a_writer_that_idles_since_long_costs_a_look_nothing(dsn):
    """From its xmin on, every look would read what was written since."""
    table = RealPagedTable(dsn, segment_size=4_000, ahead=SEGMENTS - 1)
    idle = table.begin()
    idle.write("idle")
    for _ in range(20):
        fill(table.connection, KEPT // 20)
    source = opened(table, table.snapshot())
    assert source._prev.in_progress == (idle.id,)
    empty = look(source)
    assert empty.rows <= 1, empty
    assert empty.buffers < FEW_BUFFERS, empty
    fill(table.connection, 10)
    found = look(source)
    assert found.rows <= 11, found
    idle.commit()
    late = look(source)
    assert late.rows == 11, late
    assert late.buffers < FEW_BUFFERS, late
    table.close()


def test_what_an_open_transaction_has_written_is_stepped_over(table):
    """A job that inserts for minutes must not be read by each look until it commits; nor what it leaves behind."""
    source = opened(table, table.snapshot())
    bulk = table.begin()
    bulk._connection.execute(_FILL.format(records=KEPT))
    fill(table.connection, 10)
    meanwhile = look(source)
    assert meanwhile.rows == 10, meanwhile
    assert meanwhile.buffers < FEW_BUFFERS, meanwhile
    assert len(read_rows(source, 10)) == 10
    assert bulk.id in source._prev.in_progress
    again = look(source)
    assert again.rows == 0, again
    assert again.buffers < FEW_BUFFERS, again
    bulk.commit()
    first = look(source)
    assert first.rows <= 502 + SEGMENTS, first
    assert first.buffers < FEW_BUFFERS, first


def test_a_page_of_fresh_records_is_read_by_the_primary_key(table):
    source = opened(table, table.snapshot())
    fill(table.connection, KEPT)
    cur = table.snapshot()
    values = batch(source, cur)
    extent = Cost(source._connection, source._extent, values)
    assert extent.rows <= KEPT, extent
    low, high = source._connection.execute(source._extent, values).fetchone()
    assert (low, high) == (KEPT + 1, 2 * KEPT)
    for after in (low - 1, low + 7_000, high - 1_000):
        page = Cost(source._connection, source._fresh, {**values, "after": after, "high": high, "limit": 500})
        assert page.rows == 500, page
        assert page.buffers < FEW_BUFFERS, page


def test_the_first_pages_of_a_new_subscription_are_read_by_the_primary_key(table):
    source = opened(table, Snapshot(1, 1))
    first = look(source)
    assert first.rows <= 502 + SEGMENTS, first
    values = batch(source, table.snapshot())
    page = Cost(source._connection, source._fresh, {**values, "after": 9_900, "high": 2**63 - 1, "limit": 500})
    assert page.rows == 500, page
    assert page.buffers < FEW_BUFFERS, page


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
        page = Cost(source._connection, source._late, {"ended": ended, "after": after, "limit": 500})
        assert 500 <= page.rows <= 504 + SEGMENTS, page
        assert page.buffers < FEW_BUFFERS, page


def test_a_connection_looks_for_foreign_transactions_by_the_index(table):
    source = opened(table, table.snapshot())
    cost = Cost(source._connection, source._foreign, {})
    assert cost.rows == 0, cost
    assert cost.buffers < FEW_BUFFERS, cost


def test_transaction_id_reads_a_page_by_the_index(table):
    source = table.source(kind="transaction_id")
    source.open(None)
    of_last = "SELECT transaction_id::text, id FROM outbox WHERE id = %s"
    for after in (1, KEPT // 2, KEPT - 500):
        transaction, number = table.connection.execute(of_last, (after,)).fetchone()
        page = Cost(
            source._connection, source._read, {"transaction": transaction, "id": number, "until": None, "limit": 500}
        )
        assert page.rows <= 500 + SEGMENTS, page
        assert page.buffers < FEW_BUFFERS, page
    source.close()
