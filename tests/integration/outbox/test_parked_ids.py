"""Records that Kafka rejects permanently, read in batches from the native table: each costs its key and no other."""

import random
import uuid
from contextlib import closing

import psycopg
import pytest
from support.outbox import harvest_config, read_topic
from support.topics import configure_topic
from support.waiting import eventually

from harvest_lib.checkpoints.table import CheckpointTable
from harvest_lib.errors import ParkedRecordMissing, RecordError
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.outbox import NativeTable, OutboxTable
from harvest_lib.outbox.parking import ParkedIdTable
from harvest_lib.outbox.parking.leader_ids import Entry, ParkedIds
from harvest_lib.outbox.parking.parked_record import ParkedSelection
from harvest_lib.outbox.relocation import Restamping
from harvest_lib.outbox.segments import drop_passed
from harvest_lib.source import Selection
from harvest_lib.source.filters import Subscription
from harvest_lib.source.selection import COLUMNS
from harvest_lib.subscriptions.admin import Subscriptions
from harvest_lib.subscriptions.resharding import Resharding

pytestmark = pytest.mark.gate

INSERT = """
INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
VALUES (%s, %s, %s, %s, %s) RETURNING id
"""

DELIVERIES = [
    "transactional",
    *(pytest.param(each, marks=pytest.mark.full) for each in ("barrier", "pipelined", "sequenced")),
]


@pytest.fixture
def connection(dsn):
    with closing(psycopg.connect(dsn, autocommit=True)) as connection:
        NativeTable(outbox=OutboxTable.parse("outbox"), value_type="text").create(connection)
        yield connection


@pytest.fixture
def topic(make_topic):
    return make_topic(partitions=4)


@pytest.fixture
def insert(connection, topic):
    def one(key, value="v", *, to=None, names=(), contents=()):
        values = (to or topic, key, value, list(names), list(contents))
        return connection.execute(INSERT, values).fetchone()[0]

    return one


@pytest.fixture(params=DELIVERIES)
def delivery(request):
    return request.param


@pytest.fixture
def config(dsn, bootstrap_servers, group_id, delivery):
    def make(**settings):
        return harvest_config(
            dsn, bootstrap_servers, group_id, **{"leadership": "solo", "delivery": delivery, **settings}
        )

    return make


def parked_ids(connection):
    rows = connection.execute("SELECT id, held, reason FROM outbox_parked_ids ORDER BY id").fetchall()
    return {record_id: "held" if held else reason for record_id, held, reason in rows}


def delivered(bootstrap_servers, topic):
    return [record.outbox_id for record in read_topic(bootstrap_servers, topic, isolation="read_committed")]


def keys_in_order(bootstrap_servers, topic):
    """Return the ids of each key as they first came."""
    found = {}
    for record in read_topic(bootstrap_servers, topic, isolation="read_committed"):
        ids = found.setdefault(record.key, [])
        if record.outbox_id not in ids:
            ids.append(record.outbox_id)
    return found


def test_each_kind_of_bad_record_costs_its_own_key_only(
    connection, insert, config, topic, bootstrap_servers, make_topic
):
    """I8, with a full backlog of good records around them."""
    small = make_topic(**{"max.message.bytes": 3_000})
    bad = {
        insert("unequal", names=["a", "b"], contents=["1"]): "2 header names, 1 header values",
        insert("nameless", names=[None], contents=["1"]): "a header without a name",
        insert("missing", to=f"{small}.none"): "the topic does not exist",
        insert("illegal", to="no/such topic"): "the topic's name is not legal in Kafka",
    }
    few = []
    for number in range(200):
        few.append(insert(f"small-{number % 20}", "x" * 200, to=small))
        if number == 100:
            large = insert("large", "y" * 9_000, to=small)
    huge = insert("huge", "z" * 1_200_000)
    held = [insert("unequal"), insert("missing", to=f"{small}.none"), insert("huge")]
    held += [insert("large", to=small), insert("large", to=small)]
    good = [insert(key) for key in ("missing", "illegal", "large")]  # in another topic than what is bad
    good += [insert(f"good-{number % 20}") for number in range(200)]
    done = Harvest(config()).drain(60)
    found = parked_ids(connection)
    assert {record_id: found[record_id] for record_id in bad} == bad
    assert "size" in found.pop(large).lower()
    assert "size" in found.pop(huge).lower()
    assert {record_id for record_id in found if record_id not in bad} == set(held)
    assert {found[record_id] for record_id in held} == {"held"}
    assert done.records == 403
    for name, ids in ((topic, good), (small, few)):
        assert set(delivered(bootstrap_servers, name)) == set(ids)
        assert all(each == sorted(each) for each in keys_in_order(bootstrap_servers, name).values())
    assert connection.execute("SELECT count(*) FROM outbox").fetchone()[0] == 414, "they stay for other subscriptions"


def test_under_stop_the_harvester_ends(connection, insert, config):
    insert("a")
    bad = insert("b", to="no/such topic")
    harvest = Harvest(config(parking="stop"))
    harvest.start()
    with pytest.raises(RecordError, match=f"record {bad} "):
        harvest.await_stopped(60)
    assert parked_ids(connection) == {}


def test_under_skip_the_key_goes_on(connection, insert, config, topic, bootstrap_servers):
    ids = [insert("a"), insert("a", names=["a"]), insert("a", "z" * 1_200_000), insert("a")]
    Harvest(config(parking="skip")).drain(60)
    assert set(parked_ids(connection)) == set(ids[1:3])
    assert set(delivered(bootstrap_servers, topic)) == {ids[0], ids[3]}


def test_what_is_parked_stays_so_under_the_next_leader(connection, insert, config, topic, bootstrap_servers):
    bad = insert("a", names=["n"])
    Harvest(config()).drain(60)
    later, other = insert("a"), insert("b")
    Harvest(config()).drain(60)
    assert parked_ids(connection) == {bad: "1 header names, 0 header values", later: "held"}
    assert delivered(bootstrap_servers, topic) == [other]


def test_retention_keeps_what_is_parked(connection, insert, config):
    insert("a")
    bad = insert("b", to="no/such topic")
    insert("b")
    Harvest(config()).drain(60)
    assert connection.execute("SELECT retention_hold FROM outbox_subscriptions").fetchone()[0] == bad


def test_a_topic_that_is_removed_while_records_come(connection, insert, config, admin, make_topic):
    """The topic is looked up again; its records are parked, and others go on."""
    doomed = make_topic(partitions=1)
    soon = {"topic.metadata.propagation.max.ms": 500, "topic.metadata.refresh.interval.ms": 500}
    insert("a", to=doomed)
    with Harvest(config(producer_kafka_config=soon)) as harvest:
        eventually(lambda: harvest.delivered_records == 1, "the first is delivered")
        admin.delete_topics([doomed])[doomed].result(60)
        lost = insert("a", to=doomed)
        insert("b")
        eventually(lambda: set(parked_ids(connection)) == {lost}, "it is parked")
        eventually(lambda: harvest.delivered_records == 2, "the other is delivered")


RETRY = "UPDATE outbox_parked_ids SET retry = true WHERE NOT held"


def test_what_is_retried_arrives_in_order_while_its_key_goes_on(
    connection, insert, config, make_topic, unique, bootstrap_servers
):
    """The harvester holds more of the key all the while, until what is before has gone."""
    topic = unique("later")
    with Harvest(config()):
        ids = [insert("a", to=topic), insert("a", to=topic)]
        eventually(lambda: set(parked_ids(connection)) == set(ids), "both are parked")
        make_topic(name=topic)

        def arrived():
            ids.append(insert("a", to=topic))
            connection.execute(RETRY)
            return delivered(bootstrap_servers, topic)

        eventually(arrived, "the first arrives")
        ids.append(insert("a", to=topic))
        eventually(lambda: len(set(delivered(bootstrap_servers, topic))) == len(ids), "all arrive")
        eventually(lambda: parked_ids(connection) == {}, "nothing is left")
    assert delivered(bootstrap_servers, topic) == ids
    assert connection.execute("SELECT retention_hold FROM outbox_subscriptions").fetchone()[0] is None


def test_what_was_dropped_lets_the_others_go(connection, insert, config, topic, bootstrap_servers):
    bad, *held = insert("a", names=["n"]), insert("a"), insert("a")
    with Harvest(config()):
        eventually(lambda: set(parked_ids(connection)) == {bad, *held}, "all are parked")
        connection.execute("DELETE FROM outbox_parked_ids WHERE id = %s", (bad,))
        eventually(lambda: delivered(bootstrap_servers, topic) == held, "those behind it arrive")
        held.append(insert("a"))
        eventually(lambda: delivered(bootstrap_servers, topic) == held, "and what comes later")


def test_a_retry_waits_for_the_next_leader_and_is_part_of_a_drain(
    connection, insert, config, make_topic, unique, bootstrap_servers
):
    topic = unique("later")
    ids = [insert("a", to=topic), insert("a", to=topic)]
    Harvest(config()).drain(60)
    make_topic(name=topic)
    connection.execute(RETRY)
    assert Harvest(config()).drain(60).records == 2
    assert delivered(bootstrap_servers, topic) == ids
    assert parked_ids(connection) == {}


def test_records_held_behind_a_row_that_is_gone_are_sent_by_the_next_leader(
    connection, insert, config, topic, bootstrap_servers
):
    bad, held = insert("a", names=["n"]), insert("a")
    Harvest(config()).drain(60)
    assert parked_ids(connection) == {bad: "1 header names, 0 header values", held: "held"}
    connection.execute("DELETE FROM outbox WHERE id = %s", (bad,))
    later = insert("a")
    with Harvest(config()):
        eventually(lambda: delivered(bootstrap_servers, topic) == [held, later], "both are sent, in order")
    assert set(parked_ids(connection)) == {bad}


@pytest.mark.full
def test_what_is_refused_again_is_parked_again(connection, insert, config, topic, bootstrap_servers):
    bad, held, other = insert("a", names=["n"]), insert("a"), insert("b")
    Harvest(config()).drain(60)
    connection.execute(RETRY)
    Harvest(config()).drain(60)
    assert connection.execute("SELECT id, held, retry FROM outbox_parked_ids ORDER BY id").fetchall() == [
        (bad, False, False),
        (held, True, False),
    ]
    assert delivered(bootstrap_servers, topic) == [other]


def limit(admin, topic, number):
    """Set the bytes that a batch for the topic may have."""
    configure_topic(admin, topic, {"max.message.bytes": str(number)})


def random_text(number):
    return "".join(chr(choice) for choice in random.Random(number).choices(range(33, 127), k=number))


def test_one_too_large_among_many_that_are_not(connection, insert, config, make_topic, bootstrap_servers):
    """Of those that exceed the limit as they stand, only the one that compression does not help is parked."""
    small = make_topic(partitions=2, **{"max.message.bytes": 3_000})
    good = [insert(f"k{number % 25}", to=small) for number in range(250)]
    good.append(insert("repetitive", "x" * 9_000, to=small))
    bad = insert("k-bad", random_text(9_000), to=small)
    good += [insert(f"k{number % 25}", to=small) for number in range(250)]
    Harvest(config(producer_kafka_config={"compression.type": "lz4"})).drain(60)
    assert set(parked_ids(connection)) == {bad}
    assert set(delivered(bootstrap_servers, small)) == set(good)
    assert all(each == sorted(each) for each in keys_in_order(bootstrap_servers, small).values())


@pytest.mark.full
def test_a_limit_that_nobody_knew_of(connection, insert, config, make_topic, bootstrap_servers, admin):
    """It was lowered while records came: laps are halved until those to blame are alone; then it is raised again."""
    topic = make_topic(partitions=1)
    good = [insert("first", to=topic)]
    with Harvest(config()) as harvest:
        eventually(lambda: harvest.delivered_records == 1, "the topic is known")
        limit(admin, topic, 3_000)
        with connection.transaction():
            bad = []
            for number in range(400):
                if number in {130, 270}:
                    bad.append(insert(f"bad-{number}", random_text(9_000), to=topic))
                good.append(insert(f"k{number % 20}", to=topic))
        eventually(lambda: set(parked_ids(connection)) == set(bad), "both are parked")
        eventually(lambda: set(delivered(bootstrap_servers, topic)) == set(good), "the others arrive")
        limit(admin, topic, 1_000_000)

        def arrived():
            connection.execute(RETRY)
            return set(delivered(bootstrap_servers, topic)) == {*good, *bad}

        eventually(arrived, "they arrive too")
    assert all(each == sorted(each) for each in keys_in_order(bootstrap_servers, topic).values())
    if config().exactly_once:
        assert len(delivered(bootstrap_servers, topic)) == len(good) + len(bad)


@pytest.mark.parametrize("delivery", ["pipelined"], indirect=True)
def test_retention_and_removal_of_a_subscription(connection, insert, config):
    """Whatever `retention_hold` is: a subscription that was rewound or resharded has no leader yet to set it."""
    outbox = OutboxTable.parse("outbox")
    bad = insert("b", to="no/such topic")
    Harvest(config()).drain(60)
    connection.execute("UPDATE outbox_subscriptions SET retention_hold = NULL")
    connection.execute("SELECT setval('outbox_id_seq', 20000000)")
    insert("b")
    Harvest(config()).drain(60)
    connection.execute("UPDATE outbox_subscriptions SET retention_hold = NULL")
    assert f"holds the record {bad}" in drop_passed(connection, outbox, keep_seconds=0).because
    subscriptions = Subscriptions(connection, outbox, Selection(table=outbox.identifier))
    subscriptions.remove("default", force=True)
    assert parked_ids(connection) == {}


@pytest.mark.parametrize("delivery", ["pipelined"], indirect=True)
def test_a_key_is_held_and_released_whatever_number_of_shards_there_was(
    connection, insert, config, make_topic, unique, bootstrap_servers
):
    topic = unique("later")
    keys = [f"k{number}" for number in range(8)]
    first = [insert(key, to=topic) for key in keys]
    Harvest(config()).drain(60)
    outbox = OutboxTable.parse("outbox")
    subscriptions = Subscriptions(connection, outbox, Selection(table=outbox.identifier))
    Resharding(subscriptions, "default", 3).run(20.0)
    second = [insert(key, to=topic) for key in keys]
    Harvest(config(shards=3)).drain(60)
    assert set(parked_ids(connection)) == {*first, *second}
    make_topic(partitions=2, name=topic)
    connection.execute(RETRY)
    assert Harvest(config(shards=3)).drain(60).records == 16
    assert keys_in_order(bootstrap_servers, topic) == {
        key: list(ids) for key, *ids in zip(keys, first, second, strict=True)
    }
    assert parked_ids(connection) == {}


def test_a_fenced_leader_parks_nothing_and_releases_nothing(connection, dsn):
    """I6: the epoch is compared by the statement that writes."""
    outbox = OutboxTable.parse("outbox")
    old, new = (CheckpointTable(dsn, outbox.subscriptions.identifier, Subscription()) for _ in range(2))
    names = outbox.parked_ids.identifier, outbox.subscriptions.identifier, outbox.identifier
    places = [ParkedIds(each, *names, COLUMNS) for each in (old, new)]
    connection.cursor().executemany(INSERT, [("t", key, "v", [], []) for key in "aba"])
    with closing(old), closing(new):
        old.lead(uuid.uuid4())
        assert places[0].add([Entry(1, "t", "a", "because", held=False)])
        new.lead(uuid.uuid4())
        assert not places[0].add([Entry(2, "t", "b", "because", held=False)])
        assert not places[0].release([1])
        assert parked_ids(connection) == {1: "because"}
        assert places[1].add([Entry(1, "t", "a", "held", held=True), Entry(3, "t", "a", "held", held=True)])
        assert parked_ids(connection) == {1: "because", 3: "held"}, "what is parked is never held"
        assert places[1].load(each=False) == [(("t", "a"), 1)]
        assert places[1].release([1, 3])
        assert parked_ids(connection) == {}


# -- ids that are given out again


def restart(connection):
    connection.execute("TRUNCATE outbox RESTART IDENTITY")


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("policy", ["hold_key", "skip"])
@pytest.mark.parametrize("running", [False, True], ids=["next_leader", "same_leader"])
def test_a_new_row_with_a_parked_id_is_sent(connection, insert, config, topic, bootstrap_servers, policy, running):
    """The leader that has parked the old row, and the next one."""
    bad, held = insert("a", names=["n"]), insert("a")
    settings = config(parking=policy)

    def is_settled():
        return len(parked_ids(connection)) + len(delivered(bootstrap_servers, topic)) == 2

    expected = sorted([bad, held, held + 1, *([held] if policy == "skip" else [])])
    with Harvest(settings):
        eventually(is_settled, "it is parked")
        if running:
            restart(connection)
            assert [insert("a"), insert("a"), insert("b")] == [bad, held, 3]
            eventually(lambda: sorted(delivered(bootstrap_servers, topic)) == expected, "the new rows arrive")
    if not running:
        restart(connection)
        assert [insert("a"), insert("a"), insert("b")] == [bad, held, 3]
        assert Harvest(settings).drain(60).records == 3
    assert sorted(delivered(bootstrap_servers, topic)) == expected


@pytest.mark.parametrize("delivery", ["pipelined"], indirect=True)
def test_a_new_row_that_is_refused_takes_the_place_of_the_old_one(connection, insert, config, make_topic, unique):
    """The list, a retry, a drop and retention go by the row, not by its id."""
    outbox, missing = OutboxTable.parse("outbox"), unique("later")
    bad = [insert("a", names=["n"]), insert("gone", names=["n"])]
    Harvest(config()).drain(60)
    restart(connection)
    assert insert("other", to=missing) == bad[0]
    parked = ParkedIdTable(outbox)
    assert [(each.id, each.gone) for each in parked.list(connection)] == [(bad[0], True), (bad[1], True)]
    assert parked.show(connection, bad[0]).row == {}, "the new row is not the one that was parked"
    Harvest(config()).drain(60)
    summary = parked.summary(connection)
    assert (summary.parked, summary.held, summary.ids) == (2, 0, tuple(bad))
    assert "the topic does not exist" in summary.reasons
    listed = {each.id: each for each in parked.list(connection)}
    assert (listed[bad[0]].gone, listed[bad[0]].topic, listed[bad[0]].key) == (False, missing, "other")
    assert listed[bad[0]].reason == "the topic does not exist"
    assert listed[bad[1]].gone
    with pytest.raises(ParkedRecordMissing, match="no longer in the outbox"):
        parked.retry(connection, ParkedSelection(ids=[bad[1]]))
    assert parked.drop(connection, ParkedSelection(ids=[bad[1]])).dropped == 1
    make_topic(name=missing)
    assert parked.retry(connection, ParkedSelection()).parked == 1
    assert Harvest(config()).drain(60).records == 1
    assert parked_ids(connection) == {}


@pytest.mark.parametrize("delivery", ["pipelined"], indirect=True)
def test_all_of_them_are_dropped_with_those_that_are_gone(connection, insert, config):
    insert("a", names=["n"])
    Harvest(config()).drain(60)
    restart(connection)
    parked = ParkedIdTable(OutboxTable.parse("outbox"))
    assert parked.retry(connection, ParkedSelection()).parked == 0
    assert parked.drop(connection, ParkedSelection()).dropped == 1
    assert parked_ids(connection) == {}


@pytest.mark.parametrize("delivery", ["pipelined"], indirect=True)
def test_retention_does_not_wait_for_a_parked_row_that_is_gone(connection, insert, config):
    outbox = OutboxTable.parse("outbox")
    bad = insert("b", to="no/such topic")
    Harvest(config()).drain(60)
    restart(connection)
    connection.execute("SELECT setval('outbox_id_seq', 20000000)")
    insert("b")
    Harvest(config()).drain(60)
    assert set(parked_ids(connection)) == {bad}
    assert "holds the record" not in drop_passed(connection, outbox, keep_seconds=0).because


@pytest.mark.parametrize("delivery", ["pipelined"], indirect=True)
def test_what_is_restamped_stays_parked(connection, insert, config, topic, bootstrap_servers):
    """Rows that came from another server get new transactions, and what is parked of them goes along."""
    outbox = OutboxTable.parse("outbox")
    bad = insert("a", names=["n"])
    Harvest(config()).drain(60)
    connection.execute("UPDATE outbox SET transaction_id = '999999999'")
    connection.execute("UPDATE outbox_parked_ids SET transaction_id = '999999999'")
    assert Restamping(outbox=outbox).run(connection, force=True) == 1
    assert [(each.id, each.gone) for each in ParkedIdTable(outbox).list(connection)] == [(bad, False)]
