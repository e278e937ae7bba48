"""Two pools where there should be one: named at once, on both sides, and never taken for two processes of one pool."""

from contextlib import suppress

import pytest
from psycopg.conninfo import make_conninfo
from support.outbox import harvest_config
from support.subscribed import Subscribed
from support.waiting import eventually

from harvest_lib.checkpoints.kafka_store import KafkaStore
from harvest_lib.errors import CheckpointError, PoolConflict
from harvest_lib.harvester.harvest import Harvest, State
from harvest_lib.harvester.status import StatusReader
from harvest_lib.leadership import Solo
from harvest_lib.leadership.group_members import members
from harvest_lib.leadership.rivals import Rivals
from harvest_lib.outbox import NativeTable, OutboxTable

pytestmark = pytest.mark.full


@pytest.fixture
def outbox(dsn, make_topic, bootstrap_servers, group_id):
    made = Subscribed(dsn, make_topic(), bootstrap_servers, group_id)
    yield made
    made.close()


def member(outbox, group=None, dsn=None, **settings):
    """A process of a pool; with another group, of another pool."""
    settings = {"leadership": "neli", **settings}
    return Harvest(harvest_config(dsn or outbox.dsn, outbox.servers, group or outbox.group, **settings))


def conflicts(caplog):
    return [record for record in caplog.records if record.getMessage() == "pool_conflict"]


def refused(harvest):
    with pytest.raises(PoolConflict) as raised:
        harvest.start()
    assert harvest.state is State.STOPPED
    assert raised.value.next_step
    return str(raised.value)


def test_a_second_pool_on_one_outbox_is_refused_and_the_first_one_told(outbox, caplog):
    with member(outbox, name="first-process") as first:
        eventually(lambda: outbox.subscriptions.shards() and outbox.shard().is_led, "leads")
        leader = first.leader_id
        said = refused(
            member(outbox, group=f"{outbox.group}.other", name="second-process", leader_topic=f"{outbox.group}.neli")
        )
        for word in (repr(outbox.group), "first-process", "public.outbox", outbox.connection.info.dbname, ".neli"):
            assert word in said
        (reported,) = eventually(lambda: conflicts(caplog), "reported")
        assert reported.levelname == "ERROR"
        assert (reported.their_group, reported.their_process) == (f"{outbox.group}.other", "second-process")
        assert reported.their_table == "public.outbox"
        refused(member(outbox, group=f"{outbox.group}.other", name="second-process"))
        outbox.fill(5)
        eventually(lambda: first.delivered_records == 5, "delivered")
        assert first.leader_id == leader, "it was not fenced"
        assert len(conflicts(caplog)) == 1, "said once"


@pytest.mark.parametrize("leadership", ["neli", "postgres"])
def test_a_second_subscription_in_one_election_is_refused_and_the_first_one_told(outbox, caplog, leadership):
    """One of the two would never be harvested."""
    with member(outbox, leadership=leadership, name="first-process") as first:
        outbox.fill(3)
        eventually(lambda: first.delivered_records == 3, "delivered")
        second = {"leadership": leadership, "name": "second-process", "subscription": "second"}
        said = refused(member(outbox, **second))
        assert "first-process" in said
        assert "`leaderGroupID`" in said
        (reported,) = eventually(lambda: conflicts(caplog), "reported")
        assert reported.their_process == "second-process"
        notes = StatusReader(outbox.connection, first.config).leaders().notes
        assert any("tried to harvest 'second' in this election, and was refused" in note for note in notes)
        with member(outbox, group=f"{outbox.group}.second", **second) as other:
            eventually(lambda: other.delivered_records == 3, "with a group of its own it delivers all again")


@pytest.mark.gate
def test_two_pools_that_start_at_once_do_not_depose_each_other(outbox, caplog, monkeypatch):
    """Neither was there when the other looked: the second one to come to the row ends."""
    outbox.fill(5)
    pools = [member(outbox, leadership="solo", name="one"), member(outbox, leadership="neli", name="other")]
    with monkeypatch.context() as patched:
        patched.setattr(Rivals, "refuse", lambda *_, **__: None)
        patched.setattr(Solo, "terms", lambda *_, **__: ())  # it does not begin before both have started
        for each in pools:
            each.start()
    try:
        ended = eventually(lambda: [each for each in pools if each.state is State.STOPPED], "one of them ends")
        assert len(ended) == 1
        (other,) = (each for each in pools if each not in ended)
        eventually(lambda: other.delivered_records == 5, "the other delivers")
        eventually(lambda: conflicts(caplog), "reported")
    finally:
        for each in pools:
            each.stop()


@pytest.mark.parametrize("delivery", ["barrier", "transactional"])
@pytest.mark.parametrize("ways", [("neli", "postgres"), ("postgres", "neli")], ids="-to-".join)
def test_a_pool_that_changes_its_election_process_by_process_is_named_and_goes_on_in_the_old_one(
    outbox, caplog, ways, delivery
):
    """Two elections have two leaders: the second one waits for nobody that it does not know of, and yet begins only
    when the first one is stopped."""
    settings = {"delivery": delivery, "session_timeout_seconds": 4.0}
    first = member(outbox, name="first-process", leadership=ways[0], **settings)
    first.start()
    outbox.fill(3)
    eventually(lambda: first.delivered_records == 3, "delivered")
    leader = first.leader_id
    said = refused(member(outbox, name="second-process", leadership=ways[1], **settings))
    assert all(word in said for word in ("first-process", f"({ways[0]}", f"({ways[1]}", "`leadership`"))
    (reported,) = eventually(lambda: conflicts(caplog), "reported")
    assert reported.their_process == "second-process"
    outbox.fill(2)
    eventually(lambda: first.delivered_records == 5, "it goes on")
    assert first.leader_id == leader, "it was not fenced"
    first.stop()
    assert first.await_stopped(60)
    outbox.fill(2)
    with member(outbox, name="second-process", leadership=ways[1], **settings) as second:
        eventually(lambda: second.delivered_records == 2, "delivered by the second, and nothing twice")
    assert len(outbox.arrived(isolation="read_committed")) == 7


@pytest.mark.parametrize(
    ("subscription", "cause"), [("default", "another outbox"), ("theirs", "share the checkpoint topic")]
)
def test_two_databases_with_one_transactional_id_that_start_at_once_do_not_share_it(
    outbox, monkeypatch, subscription, cause
):
    """Each leads by the lock of its own database. Neither had a checkpoint when the other looked: the one that finds
    the other's ends, and nothing of either comes twice or under the other's name."""
    name = f"{outbox.connection.info.dbname[:50]}_other"
    outbox.connection.execute(f'CREATE DATABASE "{name}"')
    other = Subscribed(make_conninfo(outbox.dsn, dbname=name), outbox.topic, outbox.servers, outbox.group)
    settings = {"delivery": "transactional", "leadership": "postgres", "session_timeout_seconds": 4.0}
    settings["checkpoint_topic"] = f"{outbox.group}.shared"
    pools = [(outbox, member(outbox, **settings)), (other, member(other, subscription=subscription, **settings))]
    try:
        with monkeypatch.context() as patched:
            patched.setattr(KafkaStore, "refuse_another", lambda _, **__: None)
            for _, harvest in pools:
                harvest.start()
        outbox.fill(5)
        other.fill(7)
        (ended,) = eventually(lambda: [each for _, each in pools if each.state is State.STOPPED], "one ends")
        with pytest.raises(CheckpointError, match=cause) as raised:
            ended.await_stopped(60)
        assert all(f"{each}/" in raised.value.evidence for each in (name, outbox.connection.info.dbname))
        assert "`checkpointTopic`" in raised.value.next_step
        assert cause != "another outbox" or "`leaderGroupID`" in raised.value.next_step
        ((records, survivor),) = ((table.count(), each) for table, each in pools if each is not ended)
        eventually(lambda: survivor.delivered_records == records, "the other goes on")
        assert len(outbox.arrived(isolation="read_committed")) == records
    finally:
        for _, harvest in pools:
            harvest.stop()
            with suppress(CheckpointError):
                harvest.await_stopped(60)
        other.close()
        outbox.connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def test_another_pool_may_follow_one_that_is_gone(outbox):
    outbox.fill(1)
    with member(outbox) as first:
        eventually(lambda: first.delivered_records == 1, "delivered")
    outbox.fill(1)
    with member(outbox, group=f"{outbox.group}.other") as other:
        eventually(lambda: other.delivered_records == 1, "delivered")


def test_another_subscription_is_no_conflict(outbox, caplog):
    with member(outbox) as first, member(outbox, group=f"{outbox.group}.other", subscription="other") as other:
        outbox.fill(3)
        eventually(lambda: first.delivered_records == other.delivered_records == 3, "each delivers all")
    assert not conflicts(caplog)


@pytest.mark.parametrize("settings", [{}, {"leadership": "postgres"}], ids=["neli", "postgres"])
def test_processes_of_one_pool_are_no_conflict(outbox, caplog, settings):
    """A rolling restart, by another name and another address of the same server."""
    outbox.fill(1)
    first = member(outbox, **settings)
    first.start()
    eventually(lambda: first.delivered_records == 1, "delivered")
    again = make_conninfo(outbox.dsn, host="localhost")
    with member(outbox, dsn=again, name="another", **settings) as second:
        first.stop()
        assert first.await_stopped(60)
        outbox.fill(1)
        eventually(lambda: second.delivered_records == 1, "delivered by the second")
    assert not conflicts(caplog)


@pytest.mark.parametrize("leadership", ["neli", "postgres"])
def test_processes_of_one_pool_that_deliver_otherwise_are_told_on_both_sides(outbox, caplog, leadership):
    """They work on: whichever leads waits until the other is over."""
    first = member(outbox, name="first-process", leadership=leadership)
    first.start()
    eventually(lambda: first.is_leader, "leads")
    with member(outbox, name="second-process", delivery="transactional", leadership=leadership) as second:
        reported = eventually(lambda: (found := conflicts(caplog)) and len(found) == 2 and found, "both say it")
        assert {each.their_process for each in reported} == {"first-process", "second-process"}
        assert all(word in reported[0].reason for word in ("'barrier'", "'transactional'"))
        outbox.fill(3)
        eventually(lambda: first.delivered_records == 3, "delivered")
        first.stop()
        assert first.await_stopped(60)
        outbox.fill(2)
        eventually(lambda: second.delivered_records == 2, "delivered by the second")
    assert len(conflicts(caplog)) == 2, "said once by each"


def test_a_second_outbox_in_one_group_is_refused_and_the_first_one_told(outbox, caplog):
    other = OutboxTable.parse("billing")
    NativeTable(outbox=other).create(outbox.connection)
    with member(outbox, name="first-process") as first:
        eventually(lambda: first.is_leader, "leads")
        eventually(lambda: "first-process" in _said(outbox), "says who it is")
        said = refused(member(outbox, outbox_table="billing", name="second-process"))
        for word in (repr(outbox.group), "first-process", "public.outbox", f"{outbox.group}.neli"):
            assert word in said
        (reported,) = eventually(lambda: conflicts(caplog), "reported")
        assert (reported.their_process, reported.their_table) == ("second-process", "public.billing")
        outbox.fill(2)
        eventually(lambda: first.delivered_records == 2, "goes on")


def test_a_second_outbox_in_one_group_that_started_at_once_ends(outbox, caplog, monkeypatch):
    """It saw nobody when it started; while it waits, it finds the other pool."""
    other = OutboxTable.parse("billing")
    NativeTable(outbox=other).create(outbox.connection)
    with member(outbox, name="first-process") as first:
        eventually(lambda: first.is_leader, "leads")
        with monkeypatch.context() as patched:
            patched.setattr("harvest_lib.leadership.other_pools.OtherPools.find", lambda _: None)
            second = member(outbox, outbox_table="billing", name="second-process")
            second.start()
        with pytest.raises(PoolConflict, match=r"first-process|second-process"):
            second.await_stopped(60)
            first.await_stopped(60)
        eventually(lambda: conflicts(caplog), "reported")
        second.stop()


def _said(outbox):
    return str(members({"bootstrap.servers": outbox.servers}, outbox.group))
