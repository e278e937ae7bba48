"""The mark source on a real table: its plans, and the rows that a repeated purge may not touch."""

import uuid

import pytest

from harvest_lib.source import MarkSource

pytestmark = pytest.mark.gate

_ROWS_READ = "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'outbox'"


def test_a_source_opened_on_an_empty_table_does_not_scan_the_full_one(outbox):
    """A plan kept from when the outbox was empty read all of it at every mark: 1.5 s, not 20 ms, at 168,000 rows."""
    outbox.connection.execute("ALTER TABLE outbox SET (autovacuum_enabled = false)")
    source = MarkSource(outbox.dsn, outbox.name.identifier, outbox.name.parked.identifier)
    source.open(uuid.uuid4())
    for _ in range(10):  # psycopg prepares at the first, Postgres may settle on one plan after the fifth
        assert source.fetch(100).rows == []
    outbox.fill(20_000)
    for _ in range(5):
        source.fetch(0, [row[0] for row in source.fetch(100).rows])
    source._connection.execute("SELECT pg_stat_force_next_flush()")
    source._connection.execute("SELECT 1")
    (rows_read,) = outbox.connection.execute(_ROWS_READ).fetchone()
    assert rows_read < 20_000
    source.close()


def test_a_purge_repeated_after_an_outage_spares_rows_nobody_has_marked(outbox):
    """After a failover that lost our rows, their ids belong to records that were never sent."""
    outbox.fill(2)
    source = MarkSource(outbox.dsn, outbox.name.identifier, outbox.name.parked.identifier)
    source.open(uuid.uuid4())
    delivered = [row[0] for row in source.fetch(10).rows]
    source.close()
    outbox.connection.execute("TRUNCATE outbox RESTART IDENTITY")
    outbox.fill(3)
    source.open(uuid.uuid4())
    source.fetch(0, delivered)
    assert [row[0] for row in source.fetch(10).rows] == [1, 2, 3]
    source.fetch(0, [1, 2, 3])
    assert outbox.count() == 0
    source.close()


def test_a_purge_repeated_after_an_outage_spares_rows_that_another_member_has_marked(outbox):
    """The lost rows' ids came again, and a member of the pool led in between: its records are not in Kafka yet."""
    ours, member = (MarkSource(outbox.dsn, outbox.name.identifier, outbox.name.parked.identifier) for _ in "12")
    outbox.fill(3)
    ours.open(uuid.uuid4())
    delivered = [row[0] for row in ours.fetch(10).rows]
    ours.close()
    outbox.connection.execute("TRUNCATE outbox RESTART IDENTITY")
    outbox.fill(4)
    member.open(uuid.uuid4())
    member.fetch(10)
    ours.open(uuid.uuid4())
    ours.fetch(0, delivered)
    assert [row[0] for row in ours.fetch(10).rows] == [1, 2, 3, 4]
    ours.close()
    member.close()


def test_a_purge_repeated_after_an_outage_takes_rows_that_are_marked_by_an_id_before(outbox):
    source = MarkSource(outbox.dsn, outbox.name.identifier, outbox.name.parked.identifier)
    outbox.fill(3)
    source.open(uuid.uuid4())
    delivered = [row[0] for row in source.fetch(10).rows]
    for _ in range(3):
        source.close()
        source.open(uuid.uuid4())
    source.fetch(0, delivered)
    assert outbox.count() == 0
    source.close()


def test_a_leader_exactly_once_purges_what_another_one_has_marked_and_committed(outbox):
    """The ids are those of a position, which is compared with the server before."""
    first, second = (
        MarkSource(outbox.dsn, outbox.name.identifier, outbox.name.parked.identifier, names_places=True) for _ in "12"
    )
    outbox.fill(3)
    first.open(uuid.uuid4())
    delivered = [row[0] for row in first.fetch(10).rows]
    first.close()
    second.open(uuid.uuid4())
    second.fetch(0, delivered)
    assert outbox.count() == 0
    second.close()
