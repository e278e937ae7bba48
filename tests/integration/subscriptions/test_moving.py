"""An outbox that is moved to another server while its writers go on: by dump and restore, pg_upgrade, replication."""

import json
import threading

import psycopg
import pytest
import yaml
from psycopg.conninfo import make_conninfo
from support import clusters
from support.outbox import Outbox, harvest_config, read_topic
from support.subscribed import Subscribed
from support.waiting import eventually

from harvest_lib.errors import CheckpointError, HarvestError, OutboxTableError, ServerRegressed
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.outbox import OutboxTable, append
from harvest_lib.outbox.parking import ParkedIdTable
from harvest_lib.outbox.relocation import Restamping
from harvest_lib.record import OutboxRecord
from harvest_lib.source import Selection
from harvest_lib.subscriptions.admin import Subscriptions
from harvest_lib.subscriptions.moving import Moving, kafka_checkpoints

pytestmark = pytest.mark.full

KINDS = ["snapshot", "transaction_id"]


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """Two servers, the second of which has given more ids of transactions than the first."""
    with clusters.clusters(tmp_path_factory.mktemp("moving"), "18", "18") as made:
        yield made


@pytest.fixture
def make(bootstrap_servers, make_topic, group_id):
    made = []

    def one(dsn, topic=None):
        made.append(Subscribed(dsn, topic or make_topic(partitions=4), bootstrap_servers, group_id))
        return made[-1]

    yield one
    for each in made:
        each.close()


@pytest.fixture
def old(servers, unique, make):
    return make(clusters.create(servers[0], unique("old")[:63]))


def write(outbox, *keys):
    append(outbox.connection, [OutboxRecord(topic=outbox.topic, key=key, value="v") for key in keys])


def move(outbox, **options):
    config = outbox.harvest(**options.pop("settings", {}))._config
    from_mirror = options.pop("from_mirror", False)
    return Moving(outbox.subscriptions, kafka_checkpoints(config), from_mirror=from_mirror).run(**options)


def committed(outbox):
    return outbox.arrived(isolation="read_committed")


def restored(old, servers, make, unique, **options):
    dsn = clusters.create(servers[1], unique("new")[:63])
    clusters.dump_and_restore(old.dsn, dsn, "18", **options)
    return make(dsn, old.topic)


def number(outbox):
    return outbox.connection.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").fetchone()[0]


@pytest.mark.parametrize("ahead", ["old", "new"])
@pytest.mark.parametrize("how", ["custom", "inserts"])
@pytest.mark.parametrize("source", KINDS)
def test_dump_and_restore_loses_and_repeats_nothing(old, servers, make, unique, source, how, ahead):
    """Whichever of the servers has given more ids of transactions."""
    settings = {"delivery": "transactional", "source": source}
    clusters.burn((servers[0] if ahead == "old" else servers[1]).dsn, 2_000)
    for _ in range(10):
        write(old, "a", "b", "c")
    with psycopg.connect(old.dsn) as late:
        append(late, [OutboxRecord(topic=old.topic, key="late", value="v")])
        write(old, "a", "b")
        old.harvest(**settings).drain(60)
        late.commit()
    write(old, "a", "d")
    delivered = sorted(committed(old))
    new = restored(old, servers, make, unique, how=how)
    write(new, "a", "e")  # before it is moved
    with pytest.raises(HarvestError, match="harvest subscriptions move"):
        new.harvest(**settings).drain(60)
    last = new.connection.execute("SELECT max(id) FROM outbox").fetchone()[0] - 2
    moved = move(new, settings=settings)
    assert moved.origin.last_id == last
    assert moved.waiting == {"default": last - len(delivered)}
    assert move(new, settings=settings) is None, "it is moved"
    write(new, "a")
    new.harvest(**settings).drain(60)
    assert sorted(committed(new)) == list(range(1, last + 4))


def test_each_key_keeps_its_order(old, servers, make, unique):
    for _ in range(5):
        write(old, "a", "b")
    old.harvest(delivery="transactional").drain(60)
    for _ in range(20):
        write(old, "a", "b", "c")
    new = restored(old, servers, make, unique)
    for _ in range(20):
        write(new, "a", "b", "c")
    move(new, settings={"delivery": "transactional"})
    new.harvest(delivery="transactional").drain(60)
    by_key = {}
    for record in read_topic(new.servers, new.topic, isolation="read_committed"):
        by_key.setdefault(record.key, []).append(record.outbox_id)
    assert sum(map(len, by_key.values())) == 130
    assert all(ids == sorted(ids) for ids in by_key.values())


def test_the_last_checkpoint_is_kafka_s(old, servers, make, unique):
    """The copy was made before the last records were delivered."""
    write(old, *"abcdef")
    old.harvest(delivery="transactional").drain(60)
    write(old, *"abcdef")
    new = restored(old, servers, make, unique)
    old.harvest(delivery="transactional").drain(60)
    assert move(new, settings={"delivery": "transactional"}).waiting == {"default": 0}
    new.harvest(delivery="transactional").drain(60)
    assert sorted(committed(new)) == list(range(1, 13))


def test_a_checkpoint_that_kafka_has_not_is_said(old, servers, make, unique):
    write(old, *"abc")
    old.harvest(delivery="transactional").drain(60)
    new = restored(old, servers, make, unique)
    new.connection.execute("UPDATE outbox_subscriptions SET checkpoint = jsonb_set(checkpoint, '{number}', '900')")
    with pytest.raises(CheckpointError, match="is not in Kafka") as error:
        move(new, settings={"delivery": "transactional"})
    assert "--from-mirror" in error.value.next_step
    move(new, settings={"delivery": "transactional"}, from_mirror=True)
    write(new, "d")
    new.harvest(delivery="transactional").drain(60)
    assert sorted(committed(new)) == [1, 2, 3, 4]


@pytest.mark.parametrize("source", KINDS)
def test_several_subscriptions_and_shards_that_stand_apart(old, servers, make, unique, source):
    old.subscriptions.add("first", source=source)
    old.subscriptions.add("halves", source=source, shards=2)
    old.subscriptions.add("never", source=source)
    ways = {name: {"subscription": name, "source": source} for name in ("first", "halves", "never")}
    ways["halves"]["shards"] = 2
    arrived = {}

    def drain(outbox, name):
        before = len(outbox.arrived())
        outbox.harvest(**ways[name]).drain(60)
        arrived[name] = arrived.get(name, 0) + len(outbox.arrived()) - before

    write(old, *"abcdefgh")
    drain(old, "first")
    write(old, *"abcdefgh")
    drain(old, "halves")
    write(old, *"abcd")
    new = restored(old, servers, make, unique)
    moved = move(new)
    assert moved.waiting == {"first": 12, "halves": 4, "never": 20}
    write(new, "x")
    for name in ways:
        drain(new, name)
    assert arrived == dict.fromkeys(ways, 21)


def test_what_is_parked_and_deferred_stays_so(old, servers, make, unique):
    old.harvest().drain(60)
    write(old, "a", "b")
    missing = OutboxRecord(topic=unique("missing"), key="p", value="v")
    append(old.connection, [missing, missing])  # the second one waits behind the first, of the same topic and key
    old.harvest().drain(60)
    assert sorted(old.arrived()) == [1, 2]
    old.connection.execute(
        "UPDATE outbox_subscriptions SET retention_hold = 2, "
        "checkpoint = jsonb_set(checkpoint, '{position,deferred}', '[2]')"
    )
    new = restored(old, servers, make, unique)
    assert move(new).waiting == {"default": 1}
    new.harvest().drain(60)
    assert sorted(new.arrived()) == [1, 2, 2], "it was deferred, so it is still to come; what is parked stays"
    assert new.connection.execute("SELECT id, held FROM outbox_parked_ids ORDER BY id").fetchall() == [
        (3, False),
        (4, True),
    ]
    listed = ParkedIdTable(OutboxTable.parse("outbox")).list(new.connection)
    assert [(each.id, each.gone) for each in listed] == [(3, False), (4, False)], "with the transactions of this server"


@pytest.fixture
def command(harvest, tmp_path, bootstrap_servers, group_id):
    """Run `harvest subscriptions …` on an outbox."""

    def run(outbox, *arguments):
        file = tmp_path / f"{outbox.connection.info.port}.yaml"
        kafka = {"bootstrap.servers": bootstrap_servers}
        settings = {"dataSource": outbox.dsn, "baseKafkaConfig": kafka, "leaderGroupID": group_id}
        file.write_text(yaml.safe_dump({"harvest": {**settings, "delivery": "transactional"}}))
        return harvest("subscriptions", *arguments, "-f", str(file))

    return run


def test_the_command_says_what_it_did(old, servers, make, unique, command):
    write(old, *"abc")
    old.harvest(delivery="transactional").drain(60)
    write(old, *"de")
    done = command(old, "move")
    assert (done.returncode, done.stdout) == (0, "nothing to move: every subscription belongs to this server\n")
    new = restored(old, servers, make, unique)
    write(new, "f")
    refused = command(new, "rewind", "default", "--to", "mirror")
    assert refused.returncode == 8
    assert "harvest subscriptions move" in refused.stderr
    done = command(new, "move")
    assert done.returncode == 0, done.stderr
    systems = [
        each.connection.execute("SELECT system_identifier FROM pg_control_system()").fetchone()[0]
        for each in (old, new)
    ]
    assert done.stdout.splitlines()[:3] == [
        f"moved: from server {systems[0]} to {systems[1]}",
        "5 records were copied, up to id 5",
        "default: 2 of them are still to be delivered",
    ]
    assert command(new, "move").stdout.startswith("nothing to move")
    shown = json.loads(command(new, "list", "--json").stdout)
    assert shown[0]["system"] == str(systems[1])
    new.harvest(delivery="transactional").drain(60)
    assert sorted(committed(new)) == [1, 2, 3, 4, 5, 6]


def test_a_checkpoint_topic_that_is_gone_is_no_topic_to_be_made(old, servers, make, unique, admin):
    write(old, *"abc")
    old.harvest(delivery="transactional").drain(60)
    topic = f"{old.group}.default.checkpoint"
    admin.delete_topics([topic])[topic].result(60)
    eventually(lambda: topic not in admin.list_topics(timeout=60).topics, "it is gone")
    new = restored(old, servers, make, unique)
    with pytest.raises(CheckpointError, match="is not in Kafka") as error:
        move(new, settings={"delivery": "transactional"})
    assert "--from-mirror" in error.value.next_step


def test_an_outbox_without_subscriptions_of_its_own_is_moved_too(old, servers, make, unique):
    """The outbox alone was copied, or nobody has harvested it."""
    clusters.burn(servers[0].dsn, 3_000)
    old.subscriptions.add("never")
    write(old, *"abc")
    old.connection.execute("UPDATE outbox_subscriptions SET checkpoint = NULL")
    new = restored(old, servers, make, unique)
    write(new, "d")
    move(new)
    new.harvest(subscription="never").drain(60)
    assert sorted(new.arrived()) == [1, 2, 3, 4]


def test_an_outbox_that_is_marked_and_purged_is_moved_too(servers, make_topic, bootstrap_servers, group_id, unique):
    settings = {"leadership": "solo", "delivery": "transactional", "source": "mark"}
    outbox = Outbox(clusters.create(servers[0], unique("old")[:63]), make_topic(partitions=4))
    outbox.fill(30)
    Harvest(harvest_config(outbox.dsn, bootstrap_servers, group_id, **settings)).drain(60)
    outbox.fill(20)
    target = clusters.create(servers[1], unique("new")[:63])
    clusters.dump_and_restore(outbox.dsn, target, "18")
    outbox.close()
    config = harvest_config(target, bootstrap_servers, group_id, **settings)
    with pytest.raises(ServerRegressed, match="harvest subscriptions move"):
        Harvest(config).drain(60)
    with psycopg.connect(target, autocommit=True) as connection:
        table = OutboxTable(("public", "outbox"))
        subscriptions = Subscriptions(connection, table, Selection(table=table.identifier))
        assert Moving(subscriptions, kafka_checkpoints(config)).run() is not None
    Harvest(config).drain(60)
    arrived = read_topic(bootstrap_servers, outbox.topic, isolation="read_committed")
    assert sorted(record.outbox_id for record in arrived) == list(range(1, 51))


# -- refusals


def test_a_snapshot_of_the_other_server_is_refused(old, servers, make, unique):
    """It would skip what was written here under numbers that it has seen there."""
    clusters.burn(servers[0].dsn, 3_000)
    write(old, *"abcdef")
    old.harvest().drain(60)
    low_watermark = old.shard().low_watermark
    write(old, *"abcdef")
    system = old.shard().checkpoint.position["server"]["system"]
    new = restored(old, servers, make, unique)
    write(new, *"abc")
    for text in (low_watermark, f"{low_watermark}@{system}", "5:5:"):
        with pytest.raises(CheckpointError, match=r"of another server|cannot be shown") as error:
            new.subscriptions.rewind("default", to=text)
        assert "harvest subscriptions move" in error.value.next_step
    with pytest.raises(CheckpointError, match="came from another server") as error:
        new.subscriptions.rewind("default", to="mirror")
    assert "harvest subscriptions move" in error.value.next_step
    with pytest.raises(OutboxTableError, match="would lose its place"):
        Restamping(outbox=new.name).run(new.connection)
    move(new)
    for text in (low_watermark, f"{low_watermark}@{system}"):
        with pytest.raises(CheckpointError, match=r"of another server|cannot be shown"):
            new.subscriptions.rewind("default", to=text)
    new.harvest().drain(60)
    assert sorted(new.arrived()) == list(range(1, 16))
    ours = new.shard().checkpoint.position["server"]["system"]
    now = new.snapshot()
    write(new, "z")
    new.subscriptions.rewind("default", to=f"{now}@{ours}")
    new.harvest().drain(60)
    assert sorted(new.arrived()) == list(range(1, 17))


def test_a_server_that_was_never_moved_takes_its_own_snapshots_as_ever(old):
    write(old, "a")
    seen = old.snapshot()
    old.harvest().drain(60)
    old.subscriptions.rewind("default", to=seen)
    old.subscriptions.add("more", start=seen)


def test_who_leads_is_not_moved(old, servers, make, unique):
    write(old, "a")
    old.harvest().drain(60)
    new = restored(old, servers, make, unique)
    leader = new.shard().leader_id
    led = psycopg.connect(make_conninfo(new.dsn, application_name=f"harvest leader {leader}"))
    with led, pytest.raises(CheckpointError, match="being harvested"):
        move(new)
    eventually(lambda: not new.shard().is_led)
    assert move(new) is not None


def test_the_other_server_s_pool_does_not_go_on_beside_the_new_one(old, servers, make, unique):
    write(old, "a")
    old.harvest(delivery="transactional").drain(60)
    new = restored(old, servers, make, unique)
    move(new, settings={"delivery": "transactional"})
    new.harvest(delivery="transactional").drain(60)
    write(old, "b")
    with pytest.raises(CheckpointError, match="another outbox"):
        old.harvest(delivery="transactional").drain(60)


def test_rows_that_do_not_tell_where_they_came_from_are_said(old, servers, make, unique):
    """Both servers had transactions of these numbers, and each row was restored by one of its own."""
    write(old, "a")
    old.harvest().drain(60)
    new = restored(old, servers, make, unique)
    with psycopg.connect(new.dsn) as connection:  # as a restore would by statements, on a server that is ahead
        (at,) = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
        with connection.transaction():
            connection.execute(
                "INSERT INTO outbox (id, transaction_id, kafka_topic, kafka_key, kafka_value) "
                "VALUES (nextval('outbox_id_seq'), %s::text::xid8, %s, 'k', 'v')",
                (str(at), new.topic),
            )
    with pytest.raises(OutboxTableError, match="do not show") as error:
        move(new)
    assert "--last-id" in error.value.next_step
    assert move(new, last_id=1).origin.last_id == 1
    new.harvest().drain(60)
    assert sorted(new.arrived()) == [1, 2]


# -- the other ways


def test_pg_upgrade_goes_on_where_it_was(make, unique, tmp_path):
    settings = {"delivery": "transactional"}
    with clusters.clusters(tmp_path / "servers", "16", "18") as (before, after):
        old = make(clusters.create(before, "shop"))
        for _ in range(10):
            write(old, "a", "b", "c")
        with psycopg.connect(old.dsn) as late:
            append(late, [OutboxRecord(topic=old.topic, key="late", value="v")])
            write(old, "a")
            old.harvest(**settings).drain(60)
            late.commit()
        write(old, "a", "b")
        seen = old.shard()
        old.close()
        clusters.upgrade(before, after, tmp_path / "work")
        new = make(make_conninfo(after.dsn, dbname="shop"), old.topic)
        write(new, "a", "n")
        with pytest.raises(ServerRegressed, match="harvest subscriptions move"):
            new.harvest(**settings).drain(60)
        moved = move(new, settings=settings)
        assert moved.origin.is_upgraded
        new.harvest(**settings).drain(60)
        assert sorted(committed(new)) == list(range(1, 37))
        system = seen.checkpoint.position["server"]["system"]
        new.subscriptions.rewind("default", to=f"{seen.low_watermark}@{system}")  # its numbers go on here
        new.close()


def test_logical_replication_to_a_second_server(old, servers, make, unique):
    settings = {"delivery": "transactional"}
    write(old, *"abc")
    old.harvest(**settings).drain(60)
    target = clusters.create(servers[1], unique("new")[:63])
    new = make(target, old.topic)
    old.connection.execute(
        "CREATE PUBLICATION moves FOR TABLE outbox, outbox_subscriptions, outbox_parked_ids "
        "WITH (publish_via_partition_root)"
    )
    slot = unique("slot")[:60]
    new.connection.execute(f"CREATE SUBSCRIPTION {slot} CONNECTION '{old.dsn}' PUBLICATION moves")
    with old.running(**settings):
        for _ in range(30):
            write(old, *"abcd")
        eventually(lambda: len(committed(old)) > 20, "it harvests while it is copied")
    write(old, *"xyz")
    with pytest.raises(OutboxTableError, match="logical replication still writes"):
        eventually(new.subscriptions.shards, "the copy begins")
        move(new, settings=settings)
    last = old.connection.execute("SELECT max(id) FROM outbox").fetchone()[0]
    lsn = old.connection.execute("SELECT pg_current_wal_lsn()").fetchone()[0]
    eventually(
        lambda: (
            old.connection.execute(
                "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s", (lsn, slot)
            ).fetchone()
            == (True,)
        ),
        "all has come",
        seconds=60,
    )
    eventually(lambda: new.count() == last, "all rows are there")
    new.connection.execute(f"ALTER SUBSCRIPTION {slot} DISABLE")
    with pytest.raises(OutboxTableError, match="sequence") as error:
        move(new, settings=settings)
    new.connection.execute(error.value.next_step)
    write(new, *"new")
    moved = move(new, settings=settings, last_id=last)
    assert moved.origin.last_id == last
    new.harvest(**settings).drain(60)
    assert sorted(committed(new)) == list(range(1, last + 4))
    new.connection.execute(f"DROP SUBSCRIPTION {slot}")


def test_under_load_nothing_is_lost_and_nothing_comes_twice(old, servers, make, unique):
    """A writer writes until the cut, with transactions open meanwhile, then to the new server; the harvester too."""
    settings = {"delivery": "transactional", "shards": 2}
    stop, written = threading.Event(), {"old": 0, "new": 0}

    def writer(outbox, which):
        with psycopg.connect(outbox.dsn) as mine, psycopg.connect(outbox.dsn) as open_for_long:
            while not stop.is_set():
                append(open_for_long, [OutboxRecord(topic=outbox.topic, key="long", value="v")])
                for each in "abcdefgh":
                    append(mine, [OutboxRecord(topic=outbox.topic, key=each, value="v")])
                    mine.commit()
                    written[which] += 1
                open_for_long.commit()
                written[which] += 1

    def busy(outbox, which, until):
        stop.clear()
        thread = threading.Thread(target=writer, args=(outbox, which))
        with outbox.running(**settings):
            thread.start()
            eventually(lambda: written[which] > until, f"{until} were written to the {which} one")
            eventually(lambda: committed(outbox), "some of them are delivered")
        # it is stopped in the midst of them
        by_then = written[which]
        eventually(lambda: written[which] > by_then + until / 2, "the writer goes on")
        stop.set()
        thread.join(60)

    busy(old, "old", 400)
    delivered = len(committed(old))
    assert 0 < delivered < written["old"]
    new = restored(old, servers, make, unique)
    stop.clear()
    early = threading.Thread(target=writer, args=(new, "new"))
    early.start()
    eventually(lambda: written["new"] > 50, "it is written to before it is moved")
    moved = move(new, settings=settings)
    stop.set()
    early.join(60)
    assert moved.waiting == {"default": written["old"] - delivered}
    busy(new, "new", 400)
    new.harvest(**settings).drain(60)
    ids = committed(new)
    assert len(ids) == len(set(ids)) == written["old"] + written["new"]
