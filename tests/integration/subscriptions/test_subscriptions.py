"""Subscriptions on real servers: filters, rewinding while harvesters run, and what does not fit is refused."""

import time
import uuid
from contextlib import contextmanager

import psycopg
import pytest
from support.outbox import read_topic
from support.subscribed import Subscribed
from support.waiting import eventually

from harvest_lib.checkpoints import table as table_module
from harvest_lib.checkpoints.table import CheckpointTable, LeadershipStatus
from harvest_lib.errors import CheckpointError, ConfigError, DatabaseUnavailable, ServerRegressed
from harvest_lib.outbox import append
from harvest_lib.record import OutboxRecord
from harvest_lib.record.checkpoint import OutboxCheckpoint
from harvest_lib.source.filters import Subscription
from harvest_lib.subscriptions.backlog import Backlog

pytestmark = pytest.mark.gate

KINDS = ["snapshot", "transaction_id"]
DELIVERIES = ["barrier", "pipelined", "transactional", "sequenced"]


@pytest.fixture
def outbox(dsn, make_topic, bootstrap_servers, group_id):
    made = Subscribed(dsn, make_topic(partitions=4), bootstrap_servers, group_id)
    yield made
    made.close()


def write(outbox, *keys, topic=None):
    append(outbox.connection, [OutboxRecord(topic=topic or outbox.topic, key=key, value="v") for key in keys])


# -- beginnings


@pytest.mark.full
@pytest.mark.parametrize("source", KINDS)
def test_a_subscription_begins_where_it_is_told(outbox, source):
    write(outbox, "a", "b")
    snapshot = outbox.snapshot()
    write(outbox, "c")
    add = outbox.subscriptions.add
    add("all", source=source)
    add("since", start=snapshot, source=source)
    add("new", start="now", source=source)
    write(outbox, "d")
    arrived = {}
    for name in ("all", "since", "new"):
        before = len(outbox.arrived())
        outbox.harvest(subscription=name, source=source).drain(60)
        arrived[name] = len(outbox.arrived()) - before
    assert arrived == {"all": 4, "since": 2, "new": 1}


def test_what_was_open_when_a_subscription_began_now_is_delivered(outbox):
    with psycopg.connect(outbox.dsn) as late:
        append(late, [OutboxRecord(topic=outbox.topic, key="late", value="v")])
        outbox.subscriptions.add("new", start="now")
        late.commit()
    outbox.harvest(subscription="new").drain(60)
    assert outbox.arrived() == [1]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"start": "yesterday"}, "no snapshot"),
        ({"start": "5:3:"}, "no snapshot"),
        ({"start": "1:1:\0"}, "no snapshot"),
        ({"start": "1:9000000000:"}, "ahead of the database"),
        ({"keys": "("}, "parentheses"),
        ({"topics": ["a b"]}, "topic"),
        ({"source": "mark"}, "source"),
        ({"shards": 0}, "shards"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_added(outbox, settings, words):
    with pytest.raises((CheckpointError, ConfigError), match=words):
        outbox.subscriptions.add("s", **settings)
    assert outbox.subscriptions.shards() == []


def test_a_name_is_added_once_and_only_a_known_one_is_found(outbox):
    outbox.subscriptions.add("s")
    with pytest.raises(CheckpointError, match="already"):
        outbox.subscriptions.add("s")
    with pytest.raises(CheckpointError, match=r"there are s"):
        outbox.subscriptions.get("t")
    with pytest.raises(ConfigError, match="name"):
        outbox.subscriptions.add("no spaces")


# -- filters


@pytest.mark.quick
@pytest.mark.parametrize("source", KINDS)
def test_a_filter_is_applied_however_hostile_it_looks(outbox, make_topic, source):
    other = make_topic()
    keys = ["50% off", "%s", "a'b", "back\\slash", "{x}", "plain"]
    write(outbox, *keys)
    write(outbox, *keys, topic=other)
    outbox.subscriptions.add("f", topics=[outbox.topic], keys=r"[%'\\{]", source=source)
    outbox.harvest(subscription="f", source=source).drain(60)
    assert sorted(record.key for record in read_topic(outbox.servers, outbox.topic)) == sorted(keys[:-1])
    assert read_topic(outbox.servers, other) == []


@pytest.mark.parametrize("source", KINDS)
def test_what_a_filter_leaves_out_is_passed_in_the_end(outbox, source):
    """Else every look would read it again, and retention would keep it permanently."""
    outbox.subscriptions.add("f", keys="^never$", source=source)
    with outbox.running(subscription="f", source=source):
        for _ in range(1_010):
            write(outbox, "k")
        eventually(lambda: outbox.subscriptions.lag(outbox.shard("f")).records == 0)
        eventually(lambda: _sees(outbox, outbox.shard("f").low_watermark) >= 1_000, "the position has passed them")
    assert outbox.arrived() == []


def _sees(outbox, seen):
    statement = "SELECT count(*) FROM outbox WHERE pg_visible_in_snapshot(transaction_id, %s::pg_snapshot)"
    return outbox.connection.execute(statement, (seen,)).fetchone()[0]


# -- rewinding


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("source", KINDS)
def test_a_running_harvester_goes_on_from_where_its_subscription_was_rewound_to(outbox, source, delivery):
    write(outbox, *(f"k{number % 7}" for number in range(500)))
    with outbox.running(source=source, delivery=delivery) as harvest:
        eventually(lambda: len(outbox.arrived(isolation="read_committed")) == 500)
        eventually(lambda: outbox.subscriptions.lag(outbox.shard()).records == 0)
        leader_id = outbox.shard().leader_id
        moved = outbox.subscriptions.rewind("default", to="beginning")
        assert moved.is_led
        eventually(lambda: len(outbox.arrived(isolation="read_committed")) == 1_000, "everything comes again")
        write(outbox, "after")
        eventually(lambda: 501 in outbox.arrived(isolation="read_committed"))
        assert harvest.is_leader
        assert outbox.shard().leader_id == leader_id, "it was not fenced"
        eventually(lambda: outbox.subscriptions.lag(outbox.shard()).records == 0)
    assert sorted(outbox.arrived(isolation="read_committed")) == sorted([*range(1, 501)] * 2 + [501])
    outbox.harvest(source=source, delivery=delivery).drain(60)
    assert len(outbox.arrived(isolation="read_committed")) == 1_001, "the next one goes on from there"


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_rewind_under_load_loses_nothing(outbox, delivery):
    outbox.fill(20_000, keys=500)
    with outbox.running(delivery=delivery) as harvest:
        eventually(lambda: harvest.delivered_records > 1_000)
        outbox.subscriptions.rewind("default", to="beginning")
        eventually(lambda: harvest.delivered_records > 20_000)
        eventually(lambda: outbox.subscriptions.lag(outbox.shard()).records == 0)
    records = read_topic(outbox.servers, outbox.topic, isolation="read_committed")
    assert {record.outbox_id for record in records} == set(range(1, 20_001))


def test_rewinding_to_now_skips_what_waits(outbox):
    write(outbox, "a", "b")
    outbox.subscriptions.add("s")
    outbox.subscriptions.rewind("s", to="now")
    write(outbox, "c")
    outbox.harvest(subscription="s").drain(60)
    assert outbox.arrived() == [3]


@pytest.mark.parametrize("shards", [1, 2])
def test_a_lost_checkpoint_topic_halts_and_the_mirror_takes_its_place(outbox, admin, shards):
    write(outbox, *(f"k{number}" for number in range(20)))
    settings = {"delivery": "transactional", "shards": shards, "checkpoint_topic": f"{outbox.group}.checkpoint"}
    outbox.harvest(**settings).drain(60)
    for future in admin.delete_topics([settings["checkpoint_topic"]]).values():
        future.result(60)
    eventually(lambda: settings["checkpoint_topic"] not in admin.list_topics(timeout=60).topics)
    with pytest.raises(CheckpointError, match="--to mirror"):
        outbox.harvest(**settings).drain(60)
    outbox.subscriptions.rewind("default", to="mirror")
    write(outbox, "more")
    outbox.harvest(**settings).drain(60)
    assert sorted(outbox.arrived(isolation="read_committed")) == list(range(1, 22))


def test_what_an_earlier_subscription_of_the_name_left_in_kafka_does_not_count(outbox):
    """Else the new one would begin where the old one ended, and skip."""
    write(outbox, "a", "b")
    outbox.harvest(delivery="transactional").drain(60)
    outbox.subscriptions.remove("default", force=True)  # the last session may still be closing
    outbox.subscriptions.add("default")
    outbox.harvest(delivery="transactional").drain(60)
    assert sorted(outbox.arrived(isolation="read_committed")) == [1, 1, 2, 2]


def test_what_was_purged_cannot_be_rewound_to(outbox):
    write(outbox, "a")
    outbox.harvest(source="mark", delivery="transactional").drain(60)
    with pytest.raises(CheckpointError, match="marks and purges") as error:
        outbox.subscriptions.rewind("default", to="beginning")
    assert "--to mirror" in error.value.next_step
    write(outbox, "b")
    outbox.subscriptions.rewind("default", to="mirror")
    outbox.harvest(source="mark", delivery="transactional").drain(60)
    assert sorted(outbox.arrived(isolation="read_committed")) == [1, 2]


@pytest.mark.full
@pytest.mark.parametrize(("source", "delivery"), [("snapshot", "barrier"), ("mark", "transactional")])
def test_a_mirror_goes_on_after_a_failover_of_which_nothing_can_be_read(outbox, source, delivery):
    """Where a timeline forked from an earlier one needs a right that a managed server does not give."""
    write(outbox, "a")
    outbox.harvest(source=source, delivery=delivery).drain(60)
    outbox.subscriptions.rewind("default", to="mirror")
    place = "{position,server,timeline}"
    outbox.connection.execute(
        "UPDATE outbox_subscriptions SET checkpoint = jsonb_set(checkpoint, %s, %s)", (place, '"00000009"')
    )
    write(outbox, "b")
    with pytest.raises(ServerRegressed, match="--to mirror"):
        outbox.harvest(source=source, delivery=delivery).drain(60)
    outbox.subscriptions.rewind("default", to="mirror")
    outbox.harvest(source=source, delivery=delivery).drain(60)
    assert set(outbox.arrived(isolation="read_committed")) == {1, 2}


def test_there_is_no_mirror_of_what_was_never_harvested(outbox):
    outbox.connection.execute(
        "INSERT INTO outbox_subscriptions (subscription, shard, shards, source) VALUES ('s', 0, 1, 'snapshot')"
    )
    with pytest.raises(CheckpointError, match="never harvested"):
        outbox.subscriptions.rewind("s", to="mirror")


@pytest.mark.parametrize(("before", "after"), [KINDS, KINDS[::-1]])
def test_a_position_of_one_source_is_refused_by_the_other_until_it_is_converted(outbox, before, after):
    write(outbox, "a", "b")
    outbox.harvest(source=before).drain(60)
    with pytest.raises(CheckpointError, match=f"--to mirror --source {after}"):
        outbox.harvest(source=after).start()
    outbox.subscriptions.rewind("default", to="mirror", source=after)
    write(outbox, "c")
    outbox.harvest(source=after).drain(60)
    assert set(outbox.arrived()) == {1, 2, 3}
    assert len(outbox.arrived()) <= 5


def test_segments_that_were_dropped_are_warned_of(outbox):
    write(outbox, "a", "b")
    seen = outbox.snapshot()
    write(outbox, "c")
    assert outbox.subscriptions.add("all").warnings == []
    outbox.connection.execute("DELETE FROM outbox WHERE id < 2")
    (first,) = outbox.connection.execute("SELECT min(tableoid::regclass::text) FROM outbox").fetchone()
    outbox.connection.execute(f"ALTER TABLE outbox DETACH PARTITION {first}")
    outbox.connection.execute(f"ALTER TABLE outbox ATTACH PARTITION {first} FOR VALUES FROM (2) TO (10000000)")
    assert outbox.subscriptions.rewind("all", to="beginning").warnings
    assert outbox.subscriptions.rewind("all", to=seen).warnings == []


# -- removing, and who may lead


def test_a_subscription_that_is_led_is_removed_only_by_force(outbox):
    with outbox.running():
        eventually(lambda: outbox.subscriptions.shards() and outbox.shard().is_led)
        with pytest.raises(CheckpointError, match="is led by"):
            outbox.subscriptions.remove("default")
    eventually(lambda: not outbox.shard().is_led)
    assert len(outbox.subscriptions.remove("default")) == 1
    assert outbox.subscriptions.shards() == []


def test_a_leader_of_a_row_that_was_made_anew_is_deposed_though_its_epoch_fits(outbox):
    table = outbox.name.subscriptions.identifier
    old, new = (CheckpointTable(outbox.dsn, table, Subscription()) for _ in range(2))
    old.lead(uuid.uuid4())
    outbox.subscriptions.remove("default", force=True)
    outbox.subscriptions.add("default")
    new.lead(uuid.uuid4())
    assert old.leadership_status()[0] is LeadershipStatus.FENCED
    generation = outbox.shard().generation
    assert not old.save(OutboxCheckpoint(generation=generation, number=99))
    assert new.save(OutboxCheckpoint(generation=generation, number=99))
    old.close()
    new.close()


def test_a_rewound_leader_keeps_its_epoch_and_saves_nothing_of_before(outbox):
    checkpoints = CheckpointTable(outbox.dsn, outbox.name.subscriptions.identifier, Subscription())
    before = checkpoints.lead(uuid.uuid4())
    assert checkpoints.save(OutboxCheckpoint(generation=before.generation, number=5, position={"prev": "3:3:"}))
    outbox.subscriptions.rewind("default", to="beginning")
    assert not checkpoints.save(OutboxCheckpoint(generation=before.generation, number=6))
    standing, stands = checkpoints.leadership_status()
    assert standing is LeadershipStatus.MOVED
    assert stands.position["prev"] == "1:1:"
    assert not checkpoints.save(OutboxCheckpoint(generation=before.generation, number=6)), (
        "nor after it has heard of it"
    )
    assert checkpoints.leadership_status()[0] is LeadershipStatus.LEADS
    assert checkpoints.save(OutboxCheckpoint(generation=stands.generation, number=2))
    CheckpointTable(outbox.dsn, outbox.name.subscriptions.identifier, Subscription()).lead(uuid.uuid4())
    assert checkpoints.leadership_status()[0] is LeadershipStatus.FENCED
    checkpoints.close()


def test_an_epoch_that_was_raised_unheard_is_ours_until_another_raises_it(outbox, monkeypatch):
    ours, other = (CheckpointTable(outbox.dsn, outbox.name.subscriptions.identifier, Subscription()) for _ in range(2))
    other.lead(uuid.uuid4())
    granted_at = other.epoch
    with monkeypatch.context() as patched:
        patched.setattr(psycopg.Connection, "transaction", _commit_unheard)
        with pytest.raises(DatabaseUnavailable):
            ours.lead(uuid.uuid4(), granted_at)
    with monkeypatch.context() as patched:
        patched.setattr(table_module, "connect", _refuse)
        with pytest.raises(DatabaseUnavailable):
            ours.lead(uuid.uuid4(), granted_at)
    ours.lead(uuid.uuid4(), granted_at)
    assert ours.epoch == granted_at + 2
    assert ours.leadership_status()[0] is LeadershipStatus.LEADS
    other.lead(uuid.uuid4())
    ours.lead(uuid.uuid4(), granted_at)
    assert ours.leadership_status()[0] is LeadershipStatus.FENCED
    ours.close()
    other.close()


_transaction = psycopg.Connection.transaction


@contextmanager
def _commit_unheard(connection):
    """As a transaction whose commit has no answer: the connection is lost with it."""
    with _transaction(connection):
        yield
    connection.close()
    raise psycopg.OperationalError("the connection was lost")


def _refuse(_conninfo, _settings=None):
    raise DatabaseUnavailable("nobody answers", next_step="wait")


def test_another_number_of_shards_is_refused_at_start_and_no_epoch_is_raised(outbox):
    outbox.harvest(shards=2).drain(60)
    epochs = [each.epoch for each in outbox.subscriptions.shards()]
    for shards in (1, 3):
        with pytest.raises(CheckpointError, match=f"harvest subscriptions reshard default --shards {shards}"):
            outbox.harvest(shards=shards).start()
        checkpoints = CheckpointTable(
            outbox.dsn, outbox.name.subscriptions.identifier, Subscription(shard=shards - 1, shards=shards)
        )
        with pytest.raises(CheckpointError, match="reshard"):
            checkpoints.lead(uuid.uuid4())
        checkpoints.close()
    assert [each.epoch for each in outbox.subscriptions.shards()] == epochs


def test_two_databases_of_one_cluster_do_not_share_a_transactional_id(outbox, make_topic):
    write(outbox, "a")
    outbox.harvest(delivery="transactional").drain(60)
    name = f"{outbox.connection.info.dbname[:50]}_other"
    outbox.connection.execute(f'CREATE DATABASE "{name}"')
    other = Subscribed(
        psycopg.conninfo.make_conninfo(outbox.dsn, dbname=name), outbox.topic, outbox.servers, outbox.group
    )
    try:
        write(other, "b")
        with pytest.raises(CheckpointError, match="another outbox"):
            other.harvest(delivery="transactional").drain(60)
    finally:
        other.close()
        outbox.connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


# -- lag


@pytest.mark.parametrize("source", KINDS)
def test_the_lag_is_what_is_still_to_come(outbox, source):
    began = time.time()
    outbox.subscriptions.add("all", source=source, shards=2)
    outbox.subscriptions.add("some", source=source, keys="^a")
    write(outbox, "a", "ab", "b")

    def lags(name):
        return [outbox.subscriptions.lag(each) for each in outbox.subscriptions.get(name)]

    assert sum(each.records for each in lags("all")) == 3
    assert lags("some")[0].records == 2
    age = lags("some")[0].oldest_age_seconds
    assert age >= 0
    assert age <= time.time() - began
    assert not lags("some")[0].is_estimate
    outbox.harvest(subscription="some", source=source).drain(60)
    assert lags("some")[0].records == 0
    assert lags("some")[0].oldest_age_seconds is None


def test_a_long_lag_is_estimated_from_ids(outbox):
    outbox.subscriptions.add("s")
    outbox.fill(50)
    lag = outbox.subscriptions.lag(outbox.shard("s"), most=10)
    assert (lag.records, lag.counted, lag.is_estimate) == (50, 11, True)


@pytest.fixture
def in_a_batch(outbox):
    """Fill the outbox; put the subscription in the middle of one batch of all of it, behind a record."""

    def put(records, after, **more):
        outbox.fill(records)
        now = outbox.snapshot()
        outbox.subscriptions.add("s")
        place = outbox.shard("s").checkpoint.position
        outbox.connection.execute(
            "UPDATE outbox_subscriptions SET checkpoint = jsonb_set(checkpoint, '{position}', %s)",
            (psycopg.types.json.Jsonb({**place, "cur": now, "after": after, **more}),),
        )
        return outbox.shard("s")

    return put


def test_the_lag_in_the_middle_of_a_batch_counts_what_was_deferred_and_not_what_has_gone(outbox, in_a_batch):
    assert outbox.subscriptions.lag(in_a_batch(10, after=7, deferred=[2])).records == 4


@pytest.mark.parametrize(("after", "counted"), [(30, 10), (49, 1)])
def test_the_lag_in_a_batch_larger_than_what_is_checked_is_not_zero(outbox, in_a_batch, after, counted):
    """All that is checked from its beginning has gone: a zero would end a wait for the last record too early."""
    lag = outbox.subscriptions.lag(in_a_batch(50, after=after), most=10)
    assert (lag.counted, lag.is_estimate, lag.first_id) == (counted, True, after + 1)
    assert lag.records == 50 - after
    assert lag.oldest_age_seconds is not None


def test_the_lag_behind_a_batch_that_has_gone_is_an_estimate_until_the_next_begins(outbox, in_a_batch):
    lag = outbox.subscriptions.lag(in_a_batch(50, after=50), most=10)
    assert (lag.records, lag.is_estimate) == (0, True)
    assert not Backlog(records=0, oldest_age_seconds=0.0, is_estimate=True).is_empty
    assert Backlog(records=0, oldest_age_seconds=0.0).is_empty
