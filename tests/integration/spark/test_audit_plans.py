"""The audit's statements on tables that were just filled: rows are counted, whatever the statistics say."""

import psycopg
import pytest
from psycopg import sql

from harvest_lib.audit.outbox_query import IS_PARKED, OUTBOX
from harvest_lib.outbox import NativeTable, OutboxTable
from harvest_lib.spark.audit import queries

pytestmark = pytest.mark.gate

ROWS, BATCHES = 6_000, 600

TABLES = """
CREATE TABLE flights (flight_id bigint PRIMARY KEY, batch text NOT NULL) WITH (autovacuum_enabled = off);
CREATE TABLE flights_batches (batch text PRIMARY KEY, promoted_at timestamptz) WITH (autovacuum_enabled = off);
ALTER TABLE outbox_from_0 SET (autovacuum_enabled = off)
"""
FILL = """
INSERT INTO flights SELECT n, 'b' || n % 600 FROM generate_series(1, 6000) AS n;
INSERT INTO flights_batches SELECT 'b' || n, now() FROM generate_series(0, 599) AS n;
INSERT INTO outbox (id, kafka_topic, kafka_key) SELECT n, 't', n FROM generate_series(1, 6000) AS n;
INSERT INTO outbox_parked_ids (subscription, shard, id, kafka_topic, kafka_key, reason, held, transaction_id)
SELECT 'default', 0, id, kafka_topic, kafka_key, 'r', false, transaction_id FROM outbox
"""
EMPTY = "DELETE FROM flights; DELETE FROM flights_batches; DELETE FROM outbox; DELETE FROM outbox_parked_ids; ANALYZE"


@pytest.fixture
def connection(dsn):
    """A session of Spark's on tables of which statistics say that their pages are empty."""
    with psycopg.connect(dsn, autocommit=True) as owner:
        NativeTable(outbox=OutboxTable.parse("outbox"), segment_size=1_000_000, ahead=1).create(owner)
        owner.execute(TABLES)
        owner.execute("ALTER TABLE outbox_parked_ids SET (autovacuum_enabled = off)")
        for statement in (FILL, EMPTY, FILL):
            owner.execute(statement)
    with psycopg.connect(dsn) as driver, psycopg.connect(dsn) as session:
        (snapshot,) = driver.execute("SELECT pg_export_snapshot()").fetchone()
        session.execute(queries.in_snapshot(snapshot, policies_apply=False))
        yield session


def rows_of(plan):
    """Count the rows that all nodes of a plan have produced or thrown away."""
    removed = sum(number for name, number in plan.items() if name.startswith("Rows Removed"))
    own = (plan["Actual Rows"] + removed) * plan["Actual Loops"]
    return own + sum(rows_of(each) for each in plan.get("Plans", ()))


def cost(connection, statement):
    explain = f"EXPLAIN (ANALYZE, TIMING off, FORMAT JSON) {statement}"
    ((plan,),) = connection.execute(explain).fetchone()
    return plan["Plan"]["Actual Rows"], rows_of(plan["Plan"])


def test_business_rows_and_their_batches(connection):
    names = {"business": "flights", "ledger": "flights_batches"}
    statement = sql.SQL(queries.BUSINESS).format(
        id=sql.SQL("b.flight_id"), **{name: sql.Identifier(table) for name, table in names.items()}
    )
    found, rows = cost(connection, statement.as_string(None))
    assert found == ROWS
    assert rows <= 4 * (ROWS + BATCHES)


@pytest.fixture
def outbox_rows():
    is_parked = sql.SQL(IS_PARKED).format(
        parked_ids=sql.Identifier("outbox_parked_ids"), subscription=sql.Literal("default")
    )
    parts = {"encoding": "'UTF8'", "content": "0", "passed": "true", "filters": "", "topics": "ARRAY['t']"}
    parts |= {"must_come": "1", "waits": "2", "parked_": "3", "outbox": "outbox"}
    named = {name: sql.SQL(text) for name, text in parts.items()}
    return sql.SQL(OUTBOX).format(is_parked=is_parked, **named).as_string(None)


def test_each_row_is_looked_up_once_among_the_parked_ones(connection, outbox_rows):
    found, rows = cost(connection, outbox_rows)
    assert found == ROWS
    assert rows <= 4 * ROWS


def test_few_ranges_are_read_without_the_rest(connection, outbox_rows):
    ranges = [(first, first + 2) for first in range(1, ROWS, 300)]
    found, rows = cost(connection, queries.within(outbox_rows, ranges))
    assert found == 3 * len(ranges)
    assert rows <= 10 * found
