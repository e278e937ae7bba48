"""Operators' commands on tables that were just filled: their plans do not depend on statistics."""

import uuid
from contextlib import closing

import pytest
from support.native import Native

from harvest_lib.batching.parked_ids import ParkedIds
from harvest_lib.checkpoints.table import CheckpointTable
from harvest_lib.outbox import ParkedIdTable, ParkedRecords, ParkedSelection
from harvest_lib.source import Selection
from harvest_lib.source.filters import Subscription

pytestmark = pytest.mark.full

KEYS = 100_000
STUCK = "SET statement_timeout = '60s'"
"""Ends a plan that compares each with each, 10,000,000,000 times; others take a second."""


@pytest.fixture
def native(dsn):
    made = Native(dsn, size=1_000_000)
    made.connection.execute(STUCK)
    for table in ("outbox_parked", "outbox_set_aside"):
        made.connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off); ANALYZE {table}")
    yield made
    made.connection.close()


def fill_listed(native, held=0):
    native.connection.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key) SELECT 't', repeat('k', 90) || n FROM generate_series(1, %s) AS n",
        (KEYS,),
    )
    native.connection.execute(
        "INSERT INTO outbox_set_aside (subscription, shard, id, kafka_topic, kafka_key, reason, held, transaction_id) "
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
        native.connection.execute("ANALYZE outbox_set_aside")
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


@pytest.mark.parametrize("analyzed", [False, True])
@pytest.mark.parametrize("keep_order", [True, False])
def test_a_leader_finds_what_many_keys_wait_for(native, dsn, analyzed, keep_order):
    fill_listed(native)
    native.connection.execute("UPDATE outbox_set_aside SET retry = true")
    if analyzed:
        native.connection.execute("ANALYZE outbox_set_aside")
    checkpoints = CheckpointTable(
        f"{dsn} options='-c statement_timeout=60s'",
        native.table.subscriptions.identifier,
        Subscription(),
        outbox=native.table.identifier,
    )
    names = native.table.parked_ids.identifier, native.table.subscriptions.identifier
    with closing(checkpoints):
        checkpoints.lead(uuid.uuid4())
        places = ParkedIds(checkpoints, *names, Selection(table=native.table.identifier))
        known = places.load(each=False)
        assert len(known) == KEYS
        keys = places.moved(known)
        assert len(keys) == KEYS
        assert len(places.due(keys, 1_000, keep_order=keep_order)) == 1_000
        assert len(places.matching([each for _, each in known])) == KEYS
        assert places.release([each for _, each in known])
