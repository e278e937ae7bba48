"""The last leaders by the rows of a subscription; a term that was granted too early does not begin."""

import uuid
from dataclasses import replace

import psycopg
import pytest
from psycopg import sql
from support.native_outbox import NativeOutbox
from support.waiting import eventually

from harvest_lib.checkpoints.table import CheckpointTable, LeadershipStatus
from harvest_lib.leadership.last_leaders import _MARKED, MARKS, UNKNOWN, LastLeaders, SubscriptionRows
from harvest_lib.leadership.pool import Pool
from harvest_lib.leadership.rivals import Rivals
from harvest_lib.source.filters import Subscription

pytestmark = pytest.mark.gate

FENCE = "transactional ids of x in y"
NEW = LastLeaders(epochs={0: 0}, are_fenced=True)


@pytest.fixture
def outbox(dsn, make_topic):
    made = NativeOutbox(dsn, make_topic(1))
    yield made
    made.close()


@pytest.fixture
def leader(outbox):
    """Make the checkpoints of one more leader, which says by what it is fenced."""
    made = []

    def make(fence=FENCE, delivery="transactional", shards=1, shard=0):
        pool = Pool(leadership="postgres", group="g", fence=fence, delivery=delivery)
        subscription = Subscription(shards=shards, shard=shard)
        rivals = Rivals(pool, outbox.name.subscriptions.identifier, subscription.name, stale_seconds=15.0)
        made.append(
            CheckpointTable(
                outbox.dsn,
                outbox.name.subscriptions.identifier,
                subscription,
                outbox=outbox.name.identifier,
                rivals=rivals,
            )
        )
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def rows(outbox):
    return SubscriptionRows(
        table=outbox.name.subscriptions.identifier,
        subscription="default",
        shards=1,
        fence=FENCE,
        outbox=outbox.name.identifier,
    )


def read(outbox, rows):
    return rows.read(outbox.connection)


def test_whoever_led_by_the_same_fence_is_not_waited_for(outbox, leader, rows):
    assert read(outbox, rows) == NEW, "nobody has led it yet"
    leader().lead(uuid.uuid4())
    assert read(outbox, rows) == LastLeaders(epochs={0: 1}, are_fenced=True)


@pytest.mark.parametrize("fence", ["", "epoch", "transactional ids of z in y"])
def test_whoever_led_by_another_fence_or_none_is_waited_for(outbox, leader, rows, fence):
    leader().lead(uuid.uuid4())
    leader(fence).lead(uuid.uuid4())
    assert read(outbox, rows) == LastLeaders(epochs={0: 2})
    leader().lead(uuid.uuid4())
    assert read(outbox, rows).are_fenced, "every leader since has waited for that one"


def test_who_fences_nobody_waits_for_everybody(outbox, leader, rows):
    assert not read(outbox, replace(rows, fence="")).are_fenced
    leader("").lead(uuid.uuid4())
    assert read(outbox, replace(rows, fence="")) == LastLeaders(epochs={0: 1})


def test_a_leader_that_names_no_fence_is_waited_for(outbox, leader, rows):
    """It raises the epoch under an id of its own."""
    leader().lead(uuid.uuid4())
    outbox.connection.execute("UPDATE outbox_subscriptions SET epoch = epoch + 1, leader_id = gen_random_uuid()")
    assert read(outbox, rows) == LastLeaders(epochs={0: 2})


def test_all_shards_count(outbox, leader, rows):
    three = replace(rows, shards=3)
    assert read(outbox, three) == LastLeaders(epochs={0: 0, 1: 0, 2: 0}, are_fenced=True)
    for shard in range(3):
        assert read(outbox, three).are_fenced is (shard == 0), "each has to say so"
        leader(shards=3, shard=shard).lead(uuid.uuid4())
        assert read(outbox, three).epochs == {each: int(each <= shard) for each in range(3)}
    assert read(outbox, three) == LastLeaders(epochs={0: 1, 1: 1, 2: 1}, are_fenced=True)
    assert not read(outbox, rows).are_fenced, "it is divided otherwise"
    leader("", shards=3, shard=2).lead(uuid.uuid4())
    assert not read(outbox, three).are_fenced


@pytest.mark.parametrize("is_added", [False, True])
def test_one_that_marks_the_table_is_waited_for(outbox, rows, dsn, is_added):
    """It has no row, and somebody may have added one for those who are to read the table from now on."""
    if is_added:
        outbox.connection.execute(
            "INSERT INTO outbox_subscriptions (subscription, shard, shards, source)"
            " VALUES ('default', 0, 1, 'snapshot')"
        )
    with psycopg.connect(dsn, application_name=MARKS):
        assert not read(outbox, rows).are_fenced
    eventually(lambda: read(outbox, rows).are_fenced, "it is gone")


_MARK_ONE = "UPDATE outbox SET leader_id = %s WHERE id = (SELECT min(id) + 3 FROM outbox)"


def test_who_marked_is_waited_for_and_named_whatever_its_sessions_are_called(outbox, leader, rows, caplog):
    """As one whose `dataSource` names them, or one that was killed."""
    outbox.fill(10)
    assert read(outbox, rows) == NEW
    marker = uuid.uuid4()
    outbox.connection.execute(_MARK_ONE, (marker,))
    assert not read(outbox, rows).are_fenced
    assert not read(outbox, rows).are_fenced
    (said,) = [each for each in caplog.records if each.getMessage() == "marked_records_found"]
    assert said.leader_id == str(marker)
    assert "stop whatever still marks" in said.next_step
    leader().lead(uuid.uuid4())
    assert read(outbox, rows).are_fenced, "every leader since has waited for that one"


def test_a_table_that_has_no_marks_is_not_asked_for_them(outbox, rows):
    outbox.connection.execute("ALTER TABLE outbox DROP COLUMN leader_id")
    assert read(outbox, replace(rows, outbox=None)) == NEW


_KEPT, _FEW_BUFFERS = 100_000, 20
"""So many records, which take thousands of buffers."""


@pytest.mark.parametrize("statistics", ["none", "fresh"])
def test_marks_are_looked_for_in_few_buffers_however_many_records_are_kept(outbox, statistics):
    outbox.fill(_KEPT)
    if statistics == "fresh":
        outbox.connection.execute("ANALYZE outbox")
    statement = sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + _MARKED).format(outbox=outbox.name.identifier)
    ((plan,),) = outbox.connection.execute(statement).fetchone()
    used = plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
    assert 0 < used <= _FEW_BUFFERS


def test_rows_that_are_not_there_say_nothing(outbox, rows):
    outbox.connection.execute("DROP TABLE outbox_subscriptions")
    assert read(outbox, rows) == UNKNOWN


# -- terms


def test_a_term_does_not_begin_after_another_leader_has(outbox, leader, rows):
    """Both held the lock in turn, and the first was late: it must not fence the second."""
    late, other = leader(), leader("")
    granted = read(outbox, rows).epochs[0]
    other.lead(uuid.uuid4(), granted)
    late.lead(uuid.uuid4(), granted)
    assert late.leadership_status()[0] is LeadershipStatus.FENCED
    assert other.leadership_status()[0] is LeadershipStatus.LEADS
    again = leader()
    again.lead(uuid.uuid4(), read(outbox, rows).epochs[0])
    assert again.leadership_status()[0] is LeadershipStatus.LEADS
    assert other.leadership_status()[0] is LeadershipStatus.FENCED


def test_a_leader_that_did_not_hear_that_it_leads_tries_again(outbox, leader):
    """The answer was lost, and the epoch is its own."""
    one = leader()
    one.lead(uuid.uuid4(), 0)
    one.lead(uuid.uuid4(), 0)
    assert one.leadership_status()[0] is LeadershipStatus.LEADS
    assert outbox.subscription()["epoch"] == 2


def test_an_election_that_does_not_look_at_epochs_fences_whoever_led(leader):
    first, second = leader(), leader()
    first.lead(uuid.uuid4())
    second.lead(uuid.uuid4())
    assert first.leadership_status()[0] is LeadershipStatus.FENCED
