"""The sink's staging table: rows that others have left in it, and rows that go missing on the way through it."""

import psycopg
import pytest
from pyspark.sql import functions as F
from support.sink import RECORDS, left_behind, swallow

from harvest_lib.errors import OutboxTableError
from harvest_lib.spark.errors import PromotionRefused
from harvest_lib.spark.outbox_sink import sink
from harvest_lib.spark.sink import queries
from harvest_lib.spark.sink.database import connect
from harvest_lib.spark.sink.staging_tables import writer_name

pytestmark = [pytest.mark.full, pytest.mark.spark]


def test_what_the_dead_have_staged_is_swept_and_what_the_living_stage_is_not(database, frame):
    sink(frame, dsn=database.dsn, batch_id="1", records=RECORDS)
    with psycopg.connect(database.dsn, autocommit=True) as living:
        living.execute(queries.TRY_LOCK_BATCH, {"batch": "living", "ledger": "outbox_batches"})
        for batch in ("1", "living", "dead"):
            left_behind(database, batch)
        sink(frame, dsn=database.dsn, batch_id="2", records=RECORDS)
        assert database.ask("SELECT batch FROM outbox_staging") == [("living",)]
        with pytest.raises(OutboxTableError, match="holds rows of a batch with other columns"):
            sink(frame.drop("text"), dsn=database.dsn, batch_id="3", records=RECORDS)
        living.execute("SELECT pg_advisory_unlock_all()")  # its session would end a moment after it is closed
    sink(frame.drop("text"), dsn=database.dsn, batch_id="3", records=RECORDS)
    assert database.counts() == {"outbox": 300, "outbox_staging": 0, "outbox_batches": 3}


def test_a_batch_that_was_alone_leaves_no_dead_rows(database, frame):
    size = "SELECT pg_relation_size('outbox_staging')"
    sink(frame, dsn=database.dsn, batch_id="1", records=RECORDS)
    assert database.ask(size) == [(0,)]
    with psycopg.connect(database.dsn) as task:
        left_behind(database, "2", connection=task)
        sink(frame, dsn=database.dsn, batch_id="3", records=RECORDS)  # does not wait for it
    assert database.ask("SELECT batch FROM outbox_staging") == [("2",)]
    assert database.counts()["outbox"] == 200


def test_what_is_seen_under_a_lock_is_as_new_as_the_lock(database):
    """Else rows that another batch has staged meanwhile would be taken for none, and the table be emptied."""
    ((name,),) = database.ask("SELECT quote_ident(current_database())")
    database.connection.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'")
    with connect(database.dsn) as connection, connection.transaction():
        assert connection.execute("SHOW transaction_isolation").fetchone() == ("read committed",)


def test_a_task_that_commits_after_the_others_is_ended_before(database, frame):
    sink(frame, dsn=database.dsn, batch_id="1", records=RECORDS)
    ((oid,),) = database.ask("SELECT 'outbox_staging'::regclass::oid::bigint")
    late = psycopg.connect(database.dsn, application_name=writer_name("2", staging_oid=oid))
    left_behind(database, "2", connection=late)
    sink(frame, dsn=database.dsn, batch_id="2", records=RECORDS)
    with pytest.raises(psycopg.OperationalError):
        late.commit()
    late.close()
    assert database.counts() == {"outbox": 200, "outbox_staging": 0, "outbox_batches": 2}


def test_a_task_that_has_not_committed_yet_keeps_its_staging_table(database, frame):
    sink(frame, dsn=database.dsn, batch_id="1", records=RECORDS)
    with psycopg.connect(database.dsn) as task:
        left_behind(database, "2", connection=task)
        with pytest.raises(OutboxTableError, match="holds rows of a batch with other columns"):
            sink(frame.drop("text"), dsn=database.dsn, batch_id="3", records=RECORDS)
    assert database.ask("SELECT batch FROM outbox_staging") == [("2",)]


def test_rows_that_vanish_from_the_staging_table_are_missed(database, frame, monkeypatch):
    sink(frame, dsn=database.dsn, batch_id="1", records=RECORDS)
    swallow(database.connection, "outbox_staging", "new.row = 3")
    with pytest.raises(PromotionRefused, match="of partition 0, only 24 rows are staged"):
        sink(frame, dsn=database.dsn, batch_id="2", records=RECORDS)
    assert database.counts()["outbox"] == 100


def test_a_batch_that_vanishes_altogether_is_not_taken_for_an_empty_one(database, frame):
    sink(frame, dsn=database.dsn, batch_id="1", records=RECORDS)
    swallow(database.connection, "outbox_staging")
    with pytest.raises(PromotionRefused, match=r"Spark computed 100 rows, .*; nothing is staged"):
        sink(frame, dsn=database.dsn, batch_id="2", records=RECORDS, allow_empty=True)


def test_a_business_row_that_vanishes_keeps_the_batch_back(orders, frame):
    swallow(orders.connection, "orders", "new.customer = 'c3'")
    rows = frame.select("customer", F.lit("f47ac10b-58cc-4372-a567-0e02b2c3d479").alias("id"))
    with pytest.raises(PromotionRefused, match="86 rows reached the business table"):
        sink(rows, dsn=orders.dsn, batch_id="b", records=RECORDS, table="orders", batch_column="batch")
    counts = orders.counts("orders")
    assert (counts["orders"], counts["outbox"], counts["orders_batches"]) == (0, 0, 0)
