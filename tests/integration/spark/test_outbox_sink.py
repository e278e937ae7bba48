"""The sink on real Spark and real Postgres: the fate of rows, in both outbox layouts, and of a batch again."""

import json

import pytest
from psycopg.conninfo import make_conninfo
from support.sink import RECORDS

from harvest_lib.errors import DatabaseError
from harvest_lib.spark.outbox_sink import Records, sink
from harvest_lib.spark.sink.database import connect, takes_options

pytestmark = [pytest.mark.full, pytest.mark.spark]

BATCH = 'b%s\'1 \\ of\t"2"; -c ü'


def test_without_an_order_records_stand_as_the_frame_does(database, frame):
    sink(frame, dsn=database.dsn, batch_id="b", records=Records(topic="orders", key="customer", value="text"))
    assert [value for _, value, _, _ in database.records()] == [row.text for row in frame.collect()]


def test_names_are_sent_with_each_row_behind_a_pooler_alone(database, frame, pooled):
    for dsn, expected in ((database.dsn, True), (pooled("session", "options"), False), (pooled("session", ""), False)):
        with connect(dsn) as connection:
            assert takes_options(connection) is expected


@pytest.mark.parametrize("ignored", ["", "options"])
def test_rows_go_through_a_pooler_by_the_session(database, frame, pooled, ignored):
    """It refuses settings of a session as that begins, or ignores them."""
    report = sink(frame, dsn=pooled("session", ignored), batch_id=BATCH, records=RECORDS)
    assert (report.rows, report.status) == (100, "promoted")
    assert database.counts() == {"outbox": 100, "outbox_staging": 0, "outbox_batches": 1}


@pytest.fixture
def new_york(spark):
    """The zone of Spark's Java process."""
    zones = spark.sparkContext._jvm.java.util.TimeZone
    before = zones.getDefault()
    zones.setDefault(zones.getTimeZone("America/New_York"))
    yield
    zones.setDefault(before)


@pytest.mark.usefixtures("new_york")
def test_days_and_times_are_not_moved_by_the_zone_or_the_calendar_of_java(spark, database):
    row = spark.sql("""
        SELECT 'k' AS key, DATE '1582-10-10' AS day, DATE '0001-01-01' AS first, TIMESTAMP_NTZ '1582-10-10' AS left_out,
               TIMESTAMP_NTZ '2026-03-08 02:30:00' AS gap, TIMESTAMP '1500-02-28 00:00:00.000001Z' AS old,
               TIMESTAMP '2026-11-01 01:30:00-05:00' AS fold, timestamp_micros(253402300800000000) AS far,
               array(DATE '1582-10-10', NULL) AS days, array(TIMESTAMP_NTZ '2026-03-08 02:30:00') AS gaps,
               array(TIMESTAMP '1500-02-28 00:00:00Z') AS olds, CAST(array() AS ARRAY<DATE>) AS no_days,
               CAST(NULL AS ARRAY<TIMESTAMP>) AS none, CAST(NULL AS TIMESTAMP) AS never""")
    sink(row, dsn=database.dsn, batch_id="b", records=Records(topic="t", key="key"))
    ((_, value, _, _),) = database.records()
    assert json.loads(value) == {
        "key": "k",
        "day": "1582-10-10",
        "first": "0001-01-01",
        "left_out": "1582-10-10T00:00:00",
        "gap": "2026-03-08T02:30:00",
        "old": "1500-02-28T00:00:00.000001+00:00",
        "fold": "2026-11-01T06:30:00+00:00",
        "far": "10000-01-01T00:00:00+00:00",
        "days": ["1582-10-10", None],
        "gaps": ["2026-03-08T02:30:00"],
        "olds": ["1500-02-28T00:00:00+00:00"],
        "no_days": [],
        "none": None,
        "never": None,
    }


def test_settings_of_the_role_do_not_change_how_records_are_spelled(spark, database):
    dsn = make_conninfo(database.dsn, options="-c datestyle=SQL,DMY -c extra_float_digits=-10")
    row = spark.sql("SELECT DATE '2026-02-01' AS day, 0.123456789012345D AS number")
    for _ in range(2):  # the second finds the ledger's entry
        sink(row, dsn=dsn, batch_id="b", records=Records(topic="t", key="day", value="number"))
    assert [(key, value) for key, value, *_ in database.records()] == [("2026-02-01", "0.123456789012345")]


def test_a_time_before_the_year_1_is_refused(spark, database):
    row = spark.sql("SELECT 'k' AS key, timestamp_micros(-62135596800000001) AS at")
    with pytest.raises(DatabaseError, match="out of range"):
        sink(row, dsn=database.dsn, batch_id="b", records=Records(topic="t", key="key"))
    assert database.counts() == {"outbox": 0, "outbox_staging": 0, "outbox_batches": 0}
