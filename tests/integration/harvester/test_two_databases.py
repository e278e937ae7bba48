"""Two pools of one name on two databases: named at once where they meet, and nothing of either is lost.

They meet in Kafka by the consumer group (`neli`), or by the checkpoint topic (`transactional`). By the lock in Postgres
with another delivery they share nothing, and each delivers its own outbox: on one server that is named.
"""

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from support.outbox import harvest_config
from support.subscribed import Subscribed
from support.waiting import eventually

from harvest_lib.errors import CheckpointError, PoolConflict
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.local_stack.postgres import PostgresServer
from harvest_lib.outbox.identity import database_of

pytestmark = pytest.mark.full

DELIVERIES = ("transactional", "sequenced", "barrier", "pipelined")
REFUSED = {
    **{("neli", delivery): PoolConflict for delivery in DELIVERIES},
    **{("auto", delivery): PoolConflict for delivery in ("barrier", "pipelined")},
    **{(leadership, "transactional"): CheckpointError for leadership in ("neli", "postgres", "auto")},
}
"""Errors that end the second pool; others go on."""


@pytest.fixture(scope="module")
def other_server(tmp_path_factory):
    server = PostgresServer(tmp_path_factory.mktemp("other"), durable=False)
    server.start()
    yield server.dsn
    server.kill()


@pytest.fixture
def outbox(dsn, make_topic, bootstrap_servers, group_id):
    made = Subscribed(dsn, make_topic(), bootstrap_servers, group_id)
    yield made
    made.close()


@pytest.fixture(params=["database", "server"])
def other(request, outbox, unique, make_topic):
    """An outbox of the same name in another database of the server, or of another server."""
    server = outbox.dsn if request.param == "database" else request.getfixturevalue("other_server")
    name = unique("other")
    with psycopg.connect(server, autocommit=True) as asking:
        asking.execute(f"CREATE DATABASE {name}")
        made = Subscribed(make_conninfo(server, dbname=name), make_topic(), outbox.servers, outbox.group)
        yield made
        made.close()
        asking.execute(f"DROP DATABASE {name} WITH (FORCE)")


def member(outbox, **settings):
    return Harvest(harvest_config(outbox.dsn, outbox.servers, settings.pop("group", outbox.group), **settings))


def events(caplog, name):
    return [record for record in caplog.records if record.getMessage() == name]


def delivers(outbox, harvest, records):
    eventually(lambda: harvest.delivered_records == records, "delivered")
    assert sorted(outbox.arrived(isolation="read_committed")) == [*range(1, outbox.count() + 1)], "each once"


def is_one_server(outbox, other):
    return outbox.connection.info.port == other.connection.info.port


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("leadership", ["neli", "postgres", "auto"])
def test_a_second_database_is_named_wherever_the_two_meet(outbox, other, caplog, leadership, delivery):
    settings = {"leadership": leadership, "delivery": delivery}
    outbox.fill(5)
    other.fill(7)
    with member(outbox, name="first-process", **settings) as first:
        delivers(outbox, first, 5)
        leader = first.leader_id
        second = member(other, name="second-process", **settings)
        if error := REFUSED.get((leadership, delivery)):
            with pytest.raises(error) as raised:
                second.start()
            both = [database_of(each.connection) for each in (outbox, other)]
            names = [each.connection.info.dbname for each in (outbox, other)]
            said = str(raised.value)
            assert all(each in said for each in (both if error is CheckpointError else names))
            assert "`leaderGroupID`" in raised.value.next_step
            assert ("was moved" in raised.value.next_step) == (error is PoolConflict)
            if error is PoolConflict:
                (reported,) = eventually(lambda: events(caplog, "pool_conflict"), "the first one is told")
                assert reported.their_process == "second-process"
            with member(other, group=f"{other.group}.own", **settings) as alone:
                delivers(other, alone, 7)
        else:
            with second:
                delivers(other, second, 7)
                if is_one_server(outbox, other):
                    eventually(lambda: len(events(caplog, "group_leads_elsewhere")) == 2, "both say it")
            named = {each.databases for each in events(caplog, "group_leads_elsewhere")}
            databases = {each.connection.info.dbname for each in (outbox, other)}
            assert named == (databases if is_one_server(outbox, other) else set())
        outbox.fill(2)
        delivers(outbox, first, 7)
        assert first.leader_id == leader, "it was not fenced"


@pytest.mark.parametrize("other", ["database"], indirect=True)
@pytest.mark.parametrize("leadership", ["neli", "postgres"])
def test_another_database_may_follow_one_that_is_left(outbox, other, leadership, caplog):
    """As after a move: the pool of the former one was stopped."""
    settings = {"leadership": leadership, "delivery": "barrier"}
    for each, records in ((outbox, 5), (other, 7)):
        each.fill(records)
        with member(each, **settings) as harvest:
            delivers(each, harvest, records)
    assert not events(caplog, "pool_conflict")
    assert not events(caplog, "group_leads_elsewhere")


@pytest.mark.parametrize("other", ["database"], indirect=True)
def test_two_groups_may_share_a_leader_topic(outbox, other, caplog):
    """Also while a third pool is told there that it stands in the wrong election."""
    settings = {"leadership": "neli", "delivery": "barrier", "leader_topic": f"{outbox.group}.shared"}
    outbox.fill(5)
    other.fill(7)
    b = {**settings, "group": f"{outbox.group}.b"}
    with member(outbox, name="one", **settings) as one, member(other, name="two", **b) as two:
        delivers(outbox, one, 5)
        delivers(other, two, 7)
        assert not events(caplog, "pool_conflict")
        for _ in range(2):
            with pytest.raises(PoolConflict, match="'two'"):
                member(outbox, name="three", subscription="third", **b).start()
            eventually(lambda: events(caplog, "pool_conflict"), "the one that it concerns is told")
        assert len(events(caplog, "pool_conflict")) == 1, "and no other"


@pytest.mark.parametrize("other", ["database"], indirect=True)
def test_two_groups_may_not_share_a_checkpoint_topic(outbox, other):
    """Its name is that of the transactional ids, by which they would fence each other without end."""
    settings = {"leadership": "postgres", "delivery": "transactional"}
    shared = {**settings, "checkpoint_topic": f"{outbox.group}.shared"}
    outbox.fill(5)
    other.fill(7)
    theirs = {"group": f"{outbox.group}.b", "subscription": "theirs"}
    with member(outbox, **shared) as first:
        delivers(outbox, first, 5)
        leader = first.leader_id
        with pytest.raises(CheckpointError, match="two configurations share the checkpoint topic") as raised:
            member(other, **theirs, **shared).start()
        assert all(database_of(each.connection) in raised.value.evidence for each in (outbox, other))
        assert "`checkpointTopic`" in raised.value.next_step
        with member(other, **theirs, **settings) as second:
            delivers(other, second, 7)
        outbox.fill(1)
        delivers(outbox, first, 6)
        assert first.leader_id == leader, "it was not fenced"
