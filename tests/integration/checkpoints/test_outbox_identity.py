"""The owner of a checkpoint: one table of one database of one server, whatever its name and whichever pool finds it."""

import json
import uuid

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from support.outbox import harvest_config, read_topic
from support.subscribed import Subscribed
from support.waiting import eventually

from harvest_lib.checkpoints.kafka_store import KafkaStore
from harvest_lib.checkpoints.table import CheckpointTable
from harvest_lib.errors import CheckpointError, ServerRegressed
from harvest_lib.harvester.harvest import Harvest, State
from harvest_lib.outbox import OutboxTable, append
from harvest_lib.outbox.identity import identity_of
from harvest_lib.outbox.native_table import create_beside
from harvest_lib.outbox.relocation import Migration
from harvest_lib.record import OutboxRecord
from harvest_lib.source.filters import Subscription

pytestmark = pytest.mark.full

EXACTLY_ONCE = {"delivery": "transactional"}


def in_schema(dsn, *schemas):
    """A connection string that finds its tables in these schemas, which are made."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for schema in schemas:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    return make_conninfo(dsn, options=f"-c search_path={','.join(schemas)}")


@pytest.fixture
def make(dsn, make_topic, bootstrap_servers, group_id):
    """Make pools of one group, each with a table and a topic of its own, all named alike."""
    made = []

    def one(*schemas, table="outbox"):
        made.append(Subscribed(in_schema(dsn, *schemas), make_topic(), bootstrap_servers, group_id, table))
        return made[-1]

    yield one
    for each in made:
        each.close()


def saved(outbox):
    return outbox.connection.execute("SELECT checkpoint FROM outbox_subscriptions").fetchone()[0]


# -- two outboxes of one name


def test_a_pool_does_not_go_on_from_the_checkpoint_of_another_schema(make):
    """It delivered nothing of its own up to there, and said that nothing was behind."""
    a, b = make("a"), make("b")
    a.write(*"12345")
    b.write(*"12345")
    a.harvest(**EXACTLY_ONCE).drain(60)
    assert a.committed() == [1, 2, 3, 4, 5]
    with pytest.raises(CheckpointError, match="another outbox") as error:
        b.harvest(**EXACTLY_ONCE).drain(60)
    assert "leaderGroupID" in error.value.next_step
    assert str(identity_of(a.connection, a.name.identifier)) in error.value.evidence
    assert b.committed() == []
    a.write("6")
    a.harvest(**EXACTLY_ONCE).drain(60)
    assert a.committed() == [1, 2, 3, 4, 5, 6], "it is as it was"
    b.harvest(**EXACTLY_ONCE, subscription="theirs").drain(60)
    assert b.committed() == [1, 2, 3, 4, 5]


def test_who_has_nothing_to_deliver_owns_the_names_all_the_same(make):
    a, b = make("a"), make("b")
    a.harvest(**EXACTLY_ONCE).drain(60)
    b.write("1")
    with pytest.raises(CheckpointError, match="another outbox"):
        b.harvest(**EXACTLY_ONCE).drain(60)
    a.write("1")
    a.harvest(**EXACTLY_ONCE).drain(60)
    assert (a.committed(), b.committed()) == ([1], [])


def test_a_standby_of_another_schema_says_so_while_it_waits(make, monkeypatch):
    """Also where the members of the group do not tell who they are: they are not to be described."""
    monkeypatch.setattr("harvest_lib.leadership.other_pools.OtherPools.find", lambda _: None)
    monkeypatch.setattr("harvest_lib.leadership.diagnosis._INTERVAL_SECONDS", 0.05)  # before the other error comes
    a, b = make("a"), make("b")
    settings = {**EXACTLY_ONCE, "leadership": "neli", "leader_topic": f"{a.group}.neli"}
    with b.made(**settings) as other, a.made(**settings) as first:
        first.start()
        with monkeypatch.context() as while_it_starts:  # as if there were no checkpoint yet, of neither
            while_it_starts.setattr(KafkaStore, "refuse_another", lambda _, **__: None)
            other.start()
        a.write("1")
        b.write("1")
        failed = eventually(
            lambda: [each for each in (first, other) if each.state is State.STOPPED], "one gives up", seconds=60
        )
        with pytest.raises(CheckpointError, match="another outbox"):
            failed[0].await_stopped(60)
        assert len(failed) == 1


def test_two_pools_of_one_group_each_lead_their_own_schema_by_the_lock(make):
    a, b = make("a"), make("b")
    settings = {"leadership": "postgres"}
    a.write("1")
    b.write("1", "2")
    with a.running(**settings), b.running(**settings):
        eventually(lambda: (a.arrived(), b.arrived()) == ([1], [1, 2]), "both lead")


def test_subscriptions_that_another_table_s_pool_keeps_are_not_its_own(make, dsn, bootstrap_servers):
    """The outbox is found in one schema of the path, the table of subscriptions in another, which another pool uses."""
    first = make("shared")
    first.write("1", "2")
    first.harvest().drain(60)
    first.connection.execute("CREATE SCHEMA IF NOT EXISTS hidden; ALTER TABLE outbox SET SCHEMA hidden")
    second = make("later")
    second.write("1", "2", "3")
    path = in_schema(dsn, "shared", "later")
    with pytest.raises(CheckpointError, match="another outbox"):
        Harvest(harvest_config(path, bootstrap_servers, "", leadership="solo", source="snapshot")).drain(60)
    assert second.arrived() == []


# -- checkpoints without an identity


def test_a_checkpoint_in_postgres_that_names_no_outbox_is_refused_and_rewinding_mends_it(outbox):
    outbox.write("1")
    outbox.harvest().drain(60)
    outbox.connection.execute("UPDATE outbox_subscriptions SET checkpoint = checkpoint - 'identity'")
    outbox.write("2")
    with pytest.raises(CheckpointError, match="another outbox") as error:
        outbox.harvest().drain(60)
    assert "it does not name" in error.value.evidence
    outbox.subscriptions.rewind("default", to="mirror")
    outbox.harvest().drain(60)
    assert sorted(outbox.arrived()) == [1, 2]
    assert saved(outbox)["identity"] == str(identity_of(outbox.connection, outbox.name.identifier))


# -- the same table


def test_a_table_that_was_renamed_is_the_same(outbox, bootstrap_servers):
    outbox.write("1")
    outbox.harvest(**EXACTLY_ONCE).drain(60)
    outbox.connection.execute("ALTER TABLE outbox RENAME TO orders")
    for each in ("subscriptions", "segments", "parked_ids"):
        outbox.connection.execute(f"ALTER TABLE outbox_{each} RENAME TO orders_{each}")
    append(outbox.connection, [OutboxRecord(topic=outbox.topic, key="k", value="v")], table="orders")
    outbox.harvest(**EXACTLY_ONCE, outbox_table="orders").drain(60)
    assert outbox.committed() == [1, 2]


def test_a_table_that_was_migrated_is_the_same(outbox):
    """Its first segment is the table that it was."""
    table = OutboxTable.parse("old")
    table.create(outbox.connection)
    create_beside(outbox.connection, table)
    outbox.connection.execute(
        "INSERT INTO old (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values) "
        "VALUES (now(), %s, 'k', 'v', '{}', '{}')",
        (outbox.topic,),
    )
    outbox.harvest(**EXACTLY_ONCE, source="mark", outbox_table="old").drain(60)
    Migration(outbox=table, segment_size=1000, after=lambda _step: None).run(outbox.connection)
    append(outbox.connection, [OutboxRecord(topic=outbox.topic, key="k", value="v")], table="old")
    outbox.harvest(**EXACTLY_ONCE, source="mark", outbox_table="old").drain(60)
    assert len(outbox.committed()) == 2


def test_a_table_that_was_made_anew_is_another_until_somebody_says_so(outbox):
    outbox.write("1", "2")
    outbox.harvest(**EXACTLY_ONCE).drain(60)
    outbox.connection.execute(
        "CREATE TABLE other (LIKE outbox INCLUDING ALL) PARTITION BY RANGE (id);"
        "CREATE TABLE other_tail PARTITION OF other FOR VALUES FROM (MINVALUE) TO (MAXVALUE);"
        "INSERT INTO other SELECT * FROM outbox; ALTER SEQUENCE outbox_id_seq OWNED BY other.id;"
        "DROP TABLE outbox; ALTER TABLE other RENAME TO outbox"
    )
    outbox.write("3")
    with pytest.raises(CheckpointError, match="another outbox") as error:
        outbox.harvest(**EXACTLY_ONCE).drain(60)
    assert "harvest subscriptions rewind default --to mirror" in error.value.next_step
    outbox.subscriptions.rewind("default", to="mirror")
    outbox.harvest(**EXACTLY_ONCE).drain(60)
    assert outbox.committed() == [1, 2, 3]


def test_another_server_is_told_how_to_move(outbox):
    outbox.write("1")
    outbox.harvest().drain(60)
    outbox.connection.execute(
        "UPDATE outbox_subscriptions SET checkpoint = jsonb_set(checkpoint, '{identity}', '\"42/5/6\"')"
    )
    with pytest.raises(ServerRegressed, match="harvest subscriptions move"):
        outbox.harvest().drain(60)
    checkpoints = CheckpointTable(
        outbox.dsn, outbox.name.subscriptions.identifier, Subscription(), outbox=outbox.name.identifier
    )
    epoch = outbox.shard().epoch
    with pytest.raises(ServerRegressed):
        checkpoints.lead(uuid.uuid4())
    checkpoints.close()
    assert outbox.shard().epoch == epoch, "nobody is fenced by it"


def test_what_is_read_committed_says_who_wrote_it(outbox, bootstrap_servers):
    outbox.write("1")
    outbox.harvest(**EXACTLY_ONCE).drain(60)
    records = read_topic(bootstrap_servers, f"{outbox.group}.default.checkpoint", isolation="read_committed")
    record = json.loads(records[-1].value)
    row = outbox.shard()
    assert record["identity"] == str(identity_of(outbox.connection, outbox.name.identifier))
    assert (record["subscription"], record["shard"]) == ("default", 0)
    assert (record["epoch"], record["leader_id"]) == (row.epoch, row.leader_id)
    assert record["kafka"]["group"] == outbox.group
