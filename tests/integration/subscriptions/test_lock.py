"""Leading, adding, moving and dividing a subscription wait for each other, and for nobody who may only connect."""

import threading
from uuid import uuid4

import psycopg
import pytest
from support.native_outbox import NativeOutbox
from support.waiting import eventually

from harvest_lib.checkpoints.table import CheckpointTable
from harvest_lib.errors import CheckpointError, DatabaseError
from harvest_lib.outbox import NativeTable, create_beside, ddl_lock
from harvest_lib.outbox.parking import ParkedRecords
from harvest_lib.source import Selection
from harvest_lib.source.filters import Subscription
from harvest_lib.subscriptions.admin import Subscriptions
from harvest_lib.subscriptions.resharding import Resharding

pytestmark = pytest.mark.gate

SQUAT = """
SELECT pg_advisory_lock(hashtextextended('harvest subscription ' || name, 0)),
       pg_advisory_lock(hashtextextended('harvest subscription ' || name, 'outbox_subscriptions'::regclass::bigint))
FROM unnest(ARRAY['default', 'new']) AS name
"""
SQUAT_DDL = """
SELECT pg_advisory_lock(hashtextextended(format('harvest %%s %%s', what, name), 0))
FROM unnest(ARRAY['ddl', 'changes']) AS what, unnest(ARRAY[%(outbox)s, %(placed)s]) AS name
"""
WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.fixture
def outbox(dsn):
    made = NativeOutbox(dsn, "t")
    yield made
    made.close()


@pytest.fixture
def subscriptions(outbox):
    return Subscriptions(outbox.connection, outbox.name, Selection(table=outbox.name.identifier))


@pytest.fixture
def checkpoints(outbox):
    made = []

    def make(**subscription):
        made.append(CheckpointTable(outbox.dsn, outbox.name.subscriptions.identifier, Subscription(**subscription)))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_who_may_only_connect_keeps_nobody_from_leading_or_moving(outbox, subscriptions, checkpoints):
    """Advisory locks may be taken by everybody."""
    with psycopg.connect(outbox.dsn, autocommit=True) as squatter:
        squatter.execute(SQUAT)
        subscriptions.connection.execute("SET statement_timeout = '60s'")
        checkpoints().lead(uuid4())
        subscriptions.add("new")
        subscriptions.rewind("new", to="now")
        assert Resharding(subscriptions, "new", 2).run(60).after == 2
        assert len(subscriptions.remove("new")) == 2


def test_who_may_only_connect_keeps_nobody_from_starting(outbox):
    """Existing tables are found without a lock, by a process that starts and by `harvest init`."""
    connection, name = outbox.connection, outbox.name
    ParkedRecords(name).create(connection)
    with psycopg.connect(outbox.dsn, autocommit=True) as squatter:
        squatter.execute(SQUAT_DDL, {"outbox": str(name), "placed": str(name.placed(connection))})
        connection.execute("SET statement_timeout = '60s'")
        assert not create_beside(connection, name)
        assert not ParkedRecords(name).create(connection)
        assert not NativeTable(outbox=name).create(connection)
        assert not name.create(connection)


def test_who_has_to_create_tables_is_told_who_keeps_it_from_that(outbox, monkeypatch):
    monkeypatch.setattr(ddl_lock, "PATIENCE_SECONDS", 0.5)
    connection, name = outbox.connection, outbox.name
    connection.execute("DROP TABLE outbox_parked_ids")
    with psycopg.connect(outbox.dsn, autocommit=True) as squatter:
        squatter.execute(SQUAT_DDL, {"outbox": str(name), "placed": str(name.placed(connection))})
        (pid,) = squatter.execute("SELECT pg_backend_pid()").fetchone()
        with pytest.raises(DatabaseError, match=rf"(?s)another command is creating tables.*pid {pid}"):
            create_beside(connection, name)
    assert create_beside(connection, name)


def test_the_first_leaders_of_a_subscription_wait_for_each_other_whatever_their_shards(outbox, checkpoints):
    """Else two could begin it with different numbers of shards, and each key have two leaders."""
    errors = []

    def lead():
        try:
            checkpoints(shard=1, shards=2).lead(uuid4())
        except CheckpointError as error:
            errors.append(error)

    with psycopg.connect(outbox.dsn) as first:
        first.execute(
            "INSERT INTO outbox_subscriptions (subscription, shard, shards, source) "
            "VALUES ('default', 0, 1, 'snapshot')"
        )
        second = threading.Thread(target=lead)
        second.start()
        eventually(lambda: outbox.connection.execute(WAITS).fetchone() == (1,), "the second waits")
        first.commit()
    second.join(60)
    assert [error.cause for error in errors] == ["the subscription 'default' is divided into 1, not 2"]
    assert outbox.subscription(shard=1) is None


def test_a_leader_waits_for_who_divides_and_sees_what_came_of_it(outbox, subscriptions, checkpoints):
    subscriptions.add("default")
    errors = []

    def lead():
        try:
            checkpoints().lead(uuid4())
        except CheckpointError as error:
            errors.append(error)

    leader = threading.Thread(target=lead)
    with outbox.connection.transaction():
        assert Resharding(subscriptions, "default", 2).run(60).after == 2
        leader.start()
        with psycopg.connect(outbox.dsn, autocommit=True) as other:
            eventually(lambda: other.execute(WAITS).fetchone() == (1,), "the leader waits")
    leader.join(60)
    assert [error.cause for error in errors] == ["the subscription 'default' is divided into 2, not 1"]


def test_a_shard_that_leads_before_the_first_one_leaves_its_place_at_the_beginning(outbox, checkpoints):
    checkpoints(shard=1, shards=2).lead(uuid4())
    begun = outbox.subscription(shard=0)
    assert (begun["epoch"], begun["leader_id"], begun["checkpoint"], begun["low_watermark"]) == (0, None, None, "1:1:")
    first = checkpoints(shard=0, shards=2)
    assert first.lead(uuid4()).position is None
    assert outbox.subscription(shard=0)["epoch"] == 1
