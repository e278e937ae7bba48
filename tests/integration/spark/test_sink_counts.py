"""Cost of a batch in Postgres, in counts: tuples, scans of the staging table, WAL and statements; never in seconds."""

from contextlib import suppress

import psycopg
import pytest
from pyspark.sql import functions as F
from support import outbox_format
from support.sink import Database
from support.waiting import eventually

from harvest_lib.outbox import NativeTable, OutboxTable
from harvest_lib.spark.data_source import register
from harvest_lib.spark.outbox_sink import Records, sink

pytestmark = [pytest.mark.full, pytest.mark.spark]

ROWS, FEW = 20_000, 100
SCANS = 3
"""One finds the attempts, one promotes them, one sees before the table is truncated that nothing else is staged."""
MORE_WAL = 1.15
COUNTS = """
SELECT coalesce(sum(n_tup_ins), 0)::int, coalesce(sum(n_tup_upd + n_tup_del), 0)::int,
       coalesce(sum(seq_tup_read), 0)::int
FROM pg_stat_user_tables WHERE relname ~ %s
"""
PLAIN = """
INSERT INTO plain (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
SELECT clock_timestamp(), 'orders', 'c' || id %% 7, repeat('x', 200), '{}', '{}' FROM generate_series(1, %s) AS id
"""
STAGING, OUTBOX, BUSINESS = "_staging", "^outbox_(from|tail)", "^bought$"


class Bought:
    """A native outbox and a business table, and frames that are written into both."""

    def __init__(self, spark, dsn):
        self.spark, self.database = spark, Database(dsn, "native")
        self.database.connection.execute("CREATE TABLE bought (id bigint, customer text, payload text)")
        NativeTable(outbox=OutboxTable.parse("plain"), segment_size=100).create(self.database.connection)
        register(spark)

    def write(self, way, rows, table):
        frame = self.spark.range(0, rows, 1, 4).select(
            "id", F.expr("concat('c', id % 7)").alias("customer"), F.repeat(F.lit("x"), 200).alias("payload")
        )
        records = Records(topic="orders", key="customer", value="payload", order_by=["id"])
        if way != "format":
            through = "driver" if way == "driver" else "jdbc"
            sink(frame, dsn=self.database.dsn, batch_id=f"{rows}", records=records, table=table, through=through)
        else:
            options = outbox_format.options_of(records) | ({"table": table} if table else {})
            outbox_format.write(frame, self.database.dsn, f"{rows}", **options)

    def counts(self, pattern):
        """Return how many rows were inserted, how many changed or deleted, and how many were read by scans."""
        return self.database.ask(COUNTS, pattern)[0]

    def wal(self, work):
        """Return how many bytes of WAL the work writes."""
        self.database.connection.execute("CHECKPOINT")
        ((before,),) = self.database.ask("SELECT pg_current_wal_insert_lsn()")
        work()
        ((written,),) = self.database.ask("SELECT (pg_current_wal_insert_lsn() - %s::pg_lsn)::bigint", before)
        return written


@pytest.fixture
def bought(spark, dsn):
    made = Bought(spark, dsn)
    yield made
    made.database.connection.close()


@pytest.mark.parametrize("table", [None, "bought"])
@pytest.mark.parametrize("way", ["sink", "format"])
def test_each_row_is_inserted_once_per_table_and_staged_rows_are_read_three_times(bought, way, table):
    bought.write(way, ROWS, table)
    written = (ROWS, 0)
    for pattern, expected in {OUTBOX: written, BUSINESS: written if table else (0, 0), STAGING: written}.items():
        with suppress(AssertionError):  # which would not show the counts
            eventually(lambda p=pattern, e=expected: bought.counts(p)[:2] == e)
        assert bought.counts(pattern)[:2] == expected, pattern
    eventually(lambda: bought.counts(STAGING)[2] >= SCANS * ROWS)  # sessions tell what they have done as they end
    assert bought.counts(STAGING) == (ROWS, 0, SCANS * ROWS)


def test_through_the_driver_each_row_is_inserted_once_and_nothing_else(bought):
    bought.write("driver", ROWS, None)
    eventually(lambda: bought.counts(OUTBOX)[:2] == (ROWS, 0))
    assert bought.database.counts() == {"outbox": ROWS, "outbox_batches": 1}


@pytest.mark.parametrize("way", ["sink", "driver", "format"])
def test_staging_adds_next_to_nothing_to_the_wal(bought, way):
    bought.write(way, FEW, None)
    ours = bought.wal(lambda: bought.write(way, ROWS, None))
    plain = bought.wal(lambda: bought.database.ask(PLAIN, ROWS))
    assert ours < MORE_WAL * plain


@pytest.mark.parametrize(("way", "table"), [("sink", "bought"), ("driver", None)])
def test_the_driver_asks_as_much_for_many_rows_as_for_few(bought, monkeypatch, way, table):
    asked = []
    execute = psycopg.Cursor.execute

    def counted(self, query, *arguments, **options):
        asked.append(query)
        return execute(self, query, *arguments, **options)

    bought.write(way, FEW // 2, table)  # makes the tables
    monkeypatch.setattr(psycopg.Cursor, "execute", counted)
    bought.write(way, FEW, table)
    few = len(asked)
    bought.write(way, ROWS, table)
    assert few > 0
    assert len(asked) == 2 * few
