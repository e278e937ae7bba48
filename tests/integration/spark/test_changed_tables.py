"""Tables that are rewritten, emptied or lose a segment after a snapshot was taken, and before they are read."""

import psycopg
import pytest
from support.native_outbox import NativeOutbox
from support.outbox_source import without_password

from harvest_lib.errors import DatabaseError, PositionLost
from harvest_lib.outbox import OutboxTable, append
from harvest_lib.record import OutboxRecord
from harvest_lib.spark.audit.committed import Business, taken_from_ledger, taken_from_outbox
from harvest_lib.spark.audit.run import _snapshot
from harvest_lib.spark.data_source.read_options import read_schema
from harvest_lib.spark.data_source.reader import SparkOutboxReader
from harvest_lib.spark.sink.database import connect

pytestmark = pytest.mark.gate

OUTBOX = OutboxTable.parse("outbox")
CHANGES = [
    "ALTER TABLE outbox ALTER COLUMN create_time TYPE timestamptz(3)",
    "TRUNCATE outbox",
    "ALTER TABLE outbox DETACH PARTITION outbox_from_0",
]
BUSINESS = """
CREATE TABLE flights (flight_id bigint PRIMARY KEY, batch text);
CREATE TABLE flights_batches (batch text PRIMARY KEY, promoted_at timestamptz DEFAULT now());
INSERT INTO flights VALUES (1, 'b');
INSERT INTO flights_batches VALUES ('b');
"""


@pytest.fixture
def outbox(dsn):
    made = NativeOutbox(dsn, "t")
    append(made.connection, [OutboxRecord(topic="t", key="k", value="v") for _ in range(5)])
    yield made
    made.close()


def taken(outbox, change, take):
    """Change a table once an audit has its snapshot, and have it read the tables."""
    with connect(outbox.dsn) as connection, _snapshot(connection):
        with psycopg.connect(outbox.dsn) as other:
            other.execute(change)
        return take(connection)


@pytest.mark.parametrize("change", CHANGES)
def test_an_audit_whose_snapshot_is_older_than_the_outbox_is_refused(outbox, change):
    with pytest.raises(DatabaseError, match="while the audit began") as caught:
        taken(outbox, change, lambda connection: taken_from_outbox(connection, OUTBOX, (), topics=["t"], target=None))
    assert "outbox_from_0" in caught.value.evidence
    assert "run the audit again" in caught.value.next_step


@pytest.mark.parametrize("change", ["INSERT INTO flights VALUES (2, 'b')", "ALTER TABLE outbox ADD COLUMN more int"])
def test_an_audit_goes_on_where_rows_stay_where_they_are(outbox, change):
    outbox.connection.execute(BUSINESS)
    found = taken(
        outbox, change, lambda connection: taken_from_outbox(connection, OUTBOX, (), topics=["t"], target=None)
    )
    assert (found.committed.lowest, found.committed.highest) == (1, 5)


def test_tables_that_inherit_are_no_segments(outbox):
    outbox.connection.execute(BUSINESS + "CREATE TABLE flights_2026 () INHERITS (flights)")
    with connect(outbox.dsn) as connection, _snapshot(connection):
        assert taken_from_ledger(connection, OUTBOX, Business(), topics=["t"], target=None)


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE flights ADD COLUMN drawn float DEFAULT random()",
        "TRUNCATE flights_batches",
        "ALTER TABLE outbox_parked ADD COLUMN drawn float DEFAULT random()",
        *CHANGES[:2],
    ],
)
def test_an_audit_by_the_ledger_is_refused_likewise(outbox, change):
    outbox.connection.execute(BUSINESS)
    with pytest.raises(DatabaseError, match="while the audit began"):
        taken(
            outbox,
            change,
            lambda connection: taken_from_ledger(connection, OUTBOX, Business(), topics=["t"], target=None),
        )


@pytest.mark.parametrize("change", CHANGES)
def test_a_batch_whose_segments_changed_after_it_was_planned_fails(outbox, tmp_path, change):
    options = {"dsn": without_password(outbox.dsn, tmp_path)}
    reader = SparkOutboxReader(options, read_schema(options))
    parts = reader.partitions()
    assert sum(batch.num_rows for part in parts for batch in reader.read(part)) == 5
    with psycopg.connect(outbox.dsn) as other:
        other.execute(change)
    with pytest.raises(PositionLost, match="read a batch again"):
        for part in parts:
            list(reader.read(part))
