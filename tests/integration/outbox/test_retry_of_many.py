"""Operators' commands on tables that were just filled: their plans do not depend on statistics."""

import uuid
from contextlib import closing

import pytest
from psycopg import sql
from support.native import Native

from harvest_lib.checkpoints.table import CheckpointTable
from harvest_lib.outbox.parking import ParkedIdTable, ParkedRecords, ParkedSelection
from harvest_lib.outbox.parking.leader_ids import ParkedIds
from harvest_lib.outbox.relocation import Restamping
from harvest_lib.outbox.relocation.moved_rows import MovedRows, Origin
from harvest_lib.outbox.segments import drop_passed, rotate_segment
from harvest_lib.source import Selection
from harvest_lib.source.filters import Subscription
from harvest_lib.source.selection import COLUMNS
from harvest_lib.subscriptions.admin import Subscriptions
from harvest_lib.subscriptions.resharding import Resharding

pytestmark = pytest.mark.full

KEYS = 100_000
STUCK = "SET statement_timeout = '60s'"
"""Ends a plan that compares each with each, 10,000,000,000 times; others take a second."""


@pytest.fixture
def native(dsn):
    made = Native(dsn, size=1_000_000)
    made.connection.execute(STUCK)
    for table in ("outbox_parked", "outbox_parked_ids"):
        made.connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off); ANALYZE {table}")
    yield made
    made.connection.close()


def fill_listed(native, held=0):
    native.connection.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key) SELECT 't', repeat('k', 90) || n FROM generate_series(1, %s) AS n",
        (KEYS,),
    )
    native.connection.execute(
        "INSERT INTO outbox_parked_ids (subscription, shard, id, kafka_topic, kafka_key, reason, held, transaction_id) "
        "SELECT 'default', 0, id, kafka_topic, kafka_key, 'r', false, transaction_id FROM outbox"
    )


def fill_parked(native):
    native.connection.execute(
        "INSERT INTO outbox_parked (id, kafka_topic, kafka_key, reason, held, record) "
        "SELECT n, 't', repeat('k', 90) || n, 'r', false, jsonb_build_object('id', n, 'kafka_topic', 't', "
        "'kafka_key', repeat('k', 90) || n, 'kafka_header_keys', "
        "'{}'::text[], 'kafka_header_values', '{}'::text[], 'create_time', now()) "
        "FROM generate_series(1, %s) AS n",
        (KEYS,),
    )


@pytest.mark.parametrize("analyzed", [False, True])
@pytest.mark.parametrize("do", ["retry", "drop"])
def test_all_of_many_keys_that_a_subscription_has_parked(native, do, analyzed):
    fill_listed(native)
    if analyzed:
        native.connection.execute("ANALYZE outbox_parked_ids")
    table = ParkedIdTable(native.table)
    done = getattr(table, do)(native.connection, ParkedSelection())
    assert (done.parked if do == "retry" else done.dropped) == KEYS


@pytest.mark.parametrize("analyzed", [False, True])
def test_all_of_many_keys_that_were_parked_whole(native, analyzed):
    fill_parked(native)
    if analyzed:
        native.connection.execute("ANALYZE outbox_parked")
    done = ParkedRecords(native.table).retry(native.connection, ParkedSelection())
    assert done.parked == KEYS
    assert native.count() == KEYS


@pytest.fixture
def emptied(native):
    """Tables of which statistics say that their pages are empty: they were filled and emptied before, and again filled
    since."""
    native.connection.execute("ALTER TABLE outbox_from_0 SET (autovacuum_enabled = off)")
    fill_listed(native)
    native.connection.execute("DELETE FROM outbox; DELETE FROM outbox_parked_ids")
    native.connection.execute("ANALYZE outbox; ANALYZE outbox_parked_ids")
    native.push(1)
    fill_listed(native)
    return native


def test_the_origin_of_many_rows(emptied):
    found = MovedRows(emptied.table.placed(emptied.connection)).origin(emptied.connection)
    assert found == Origin()
    emptied.connection.execute("UPDATE outbox SET transaction_id = '900000000000' WHERE id <= 10")
    found = MovedRows(emptied.table.placed(emptied.connection)).origin(emptied.connection)
    assert (found.rows, found.last_id) == (10, 10)


def test_many_rows_that_are_ranked_and_stamped(emptied):
    rows = MovedRows(emptied.table.placed(emptied.connection))
    with emptied.connection.transaction():
        assert rows.rank(emptied.connection, KEYS, [sql.SQL("true")]) == {"1": KEYS}
        assert rows.stamp(emptied.connection, {"1": 3}) == KEYS


def test_many_rows_that_are_restamped(emptied):
    emptied.connection.execute("UPDATE outbox SET transaction_id = '900000000000'")
    assert Restamping(outbox=emptied.table).run(emptied.connection, force=True) == KEYS


def test_many_parked_records_whose_rows_are_others_by_now_keep_no_segment(emptied):
    emptied.connection.execute("UPDATE outbox SET transaction_id = pg_current_xact_id()")
    emptied.subscribe(emptied.snapshot(), name="default")
    emptied.push(1_000_001)
    assert drop_passed(emptied.connection, emptied.table, keep_seconds=0).dropped == ["outbox_from_0"]


@pytest.mark.parametrize("analyzed", [False, True])
@pytest.mark.parametrize("keep_order", [True, False])
def test_a_leader_finds_what_many_keys_wait_for(native, dsn, analyzed, keep_order):
    fill_listed(native)
    native.connection.execute("UPDATE outbox_parked_ids SET retry = true")
    if analyzed:
        native.connection.execute("ANALYZE outbox_parked_ids")
    checkpoints = CheckpointTable(
        f"{dsn} options='-c statement_timeout=60s'",
        native.table.subscriptions.identifier,
        Subscription(),
        outbox=native.table.identifier,
    )
    names = native.table.parked_ids.identifier, native.table.subscriptions.identifier, native.table.identifier
    with closing(checkpoints):
        checkpoints.lead(uuid.uuid4())
        places = ParkedIds(checkpoints, *names, COLUMNS)
        known = places.load(each=False)
        assert len(known) == KEYS
        keys = places.moved(known)
        assert len(keys) == KEYS
        assert len(places.due(keys, 1_000, keep_order=keep_order)) == 1_000
        assert len(places.matching([each for _, each in known])) == KEYS
        assert places.release([each for _, each in known])


@pytest.mark.parametrize("analyzed", [False, True])
def test_many_parked_ids_are_given_to_new_shards(native, analyzed):
    fill_listed(native)
    if analyzed:
        native.connection.execute("ANALYZE outbox_parked_ids")
    subscriptions = Subscriptions(native.connection, native.table, Selection(table=native.table.identifier))
    subscriptions.add("default")
    assert Resharding(subscriptions, "default", 3).run(60).after == 3
    shards = "SELECT shard, count(*) FROM outbox_parked_ids GROUP BY shard ORDER BY shard"
    found = dict(native.connection.execute(shards).fetchall())
    assert set(found) == {0, 1, 2}
    assert sum(found.values()) == KEYS


def test_a_segment_of_many_rows_is_rotated(emptied):
    assert rotate_segment(emptied.connection, emptied.table, older_than_seconds=0).next_id == 1_000_000
    emptied.write(1)
    assert emptied.count() == KEYS + 1
