"""The harvester on real servers: the records that arrive, their order, and its start and stop."""

import json
import logging
import threading
import uuid

import psycopg
import pytest
from psycopg import sql
from support.outbox import Outbox, harvest_config, read_topic, steps_back
from support.waiting import eventually

from harvest_lib.errors import LifecycleError
from harvest_lib.events import LeaderAcquired, LeaderRevoked, MeterRead
from harvest_lib.harvester.harvest import Harvest, State
from harvest_lib.harvester.telemetry.outbox_sample import SampleReader
from harvest_lib.outbox import OutboxTable, append
from harvest_lib.postgres.database import connect
from harvest_lib.record import OutboxRecord
from harvest_lib.source import MarkSource

pytestmark = pytest.mark.quick


@pytest.fixture
def solo(outbox, bootstrap_servers, group_id):
    def make(**settings):
        return Harvest(harvest_config(outbox.dsn, bootstrap_servers, group_id, leadership="solo", **settings))

    return make


@pytest.mark.parametrize("delivery", ["barrier", "pipelined"])
def test_drain_delivers_everything_once_in_order_and_empties_the_table(outbox, solo, bootstrap_servers, delivery):
    outbox.fill(5_000, keys=50)
    assert solo(delivery=delivery).drain(60).records == 5_000
    assert outbox.count() == 0
    assert outbox.connection.execute("SELECT to_regclass('outbox_subscriptions')").fetchone() == (None,)
    delivered = read_topic(bootstrap_servers, outbox.topic)
    assert sorted(record.outbox_id for record in delivered) == list(range(1, 5_001))
    assert steps_back(delivered) == 0


def test_a_record_arrives_as_it_was_written(outbox, solo, bootstrap_servers):
    headers = [("type", "created"), ("type", "twice"), ("empty", ""), ("none", None)]
    with outbox.connection.transaction():
        append(
            outbox.connection,
            [
                OutboxRecord(topic=outbox.topic, key="kéy", value='{"a": "ü\\n"}', headers=headers),
                OutboxRecord(topic=outbox.topic, key="gone", value=None),
                OutboxRecord(topic=outbox.topic, key="", value=""),
            ],
        )
    solo().drain(60)
    arrived = {record.key: record for record in read_topic(bootstrap_servers, outbox.topic)}
    assert arrived["kéy"].value == '{"a": "ü\\n"}'
    assert arrived["kéy"].headers == [
        (name, None if content is None else content.encode()) for name, content in headers
    ]
    assert arrived["gone"].value is None
    assert arrived[""].value == ""


def test_without_our_header_a_record_carries_only_its_own(outbox, solo, bootstrap_servers):
    outbox.fill(1)
    solo(record_header=False).drain(60)
    (record,) = read_topic(bootstrap_servers, outbox.topic)
    assert record.headers == [("Seq", b"1")]
    assert record.outbox_id is None


def test_records_of_the_empty_key_keep_their_order(outbox, solo, bootstrap_servers):
    """librdkafka's own default scatters them over the partitions."""
    append(outbox.connection, [OutboxRecord(topic=outbox.topic, key="", value=str(n)) for n in range(50)])
    solo().drain(60)
    records = read_topic(bootstrap_servers, outbox.topic)
    assert [record.value for record in records] == [str(n) for n in range(50)]


def test_what_rolled_back_is_never_sent(outbox, solo, bootstrap_servers):
    """I2."""
    with pytest.raises(ZeroDivisionError), outbox.connection.transaction():
        append(outbox.connection, [OutboxRecord(topic=outbox.topic, key="k", value="undone")])
        1 / 0  # noqa: B018
    append(outbox.connection, [OutboxRecord(topic=outbox.topic, key="k", value="done")])
    solo().drain(60)
    assert [record.value for record in read_topic(bootstrap_servers, outbox.topic)] == ["done"]


@pytest.mark.parametrize("table", ['"; DROP TABLE outbox; --', 'Mixed "Case"', "50% off", "%s", "sélect"])
def test_a_hostile_table_name_is_only_a_name(dsn, make_topic, bootstrap_servers, group_id, table):
    hostile = Outbox(dsn, make_topic(), table)
    hostile.fill(10)
    config = harvest_config(dsn, bootstrap_servers, group_id, leadership="solo", outbox_table=table)
    assert Harvest(config).drain(60).records == 10
    assert hostile.count() == 0
    hostile.close()


@pytest.mark.gate
@pytest.mark.parametrize(("length", "parking"), [(50, "skip"), (56, "skip"), (63, "stop")])
def test_a_table_whose_name_leaves_no_room_beside_it_is_marked(
    dsn, make_topic, harvest, bootstrap_servers, group_id, length, parking
):
    name, topic = OutboxTable(("o" * length,)), make_topic()
    with psycopg.connect(dsn, autocommit=True) as connection:
        name.create(connection)
        append(connection, [OutboxRecord(topic=topic, key="k", value=str(n)) for n in range(3)], table="o" * length)
    settings = {"OUTBOX_TABLE": "o" * length, "PARKING": parking, "DELIVERY": "barrier", "LEADERSHIP": "solo"}
    servers = {"DSN": dsn, "BOOTSTRAP_SERVERS": bootstrap_servers, "LEADER_GROUP_ID": group_id}
    environment = {f"HARVEST_{key}": value for key, value in {**settings, **servers}.items()}

    def read(*arguments):
        done = harvest(*arguments, "--json", **environment)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return json.loads(done.stdout)

    assert read("status")["backlog_records"] == 3
    assert read("check", "--topic", topic)["ok"]
    config = harvest_config(dsn, bootstrap_servers, group_id, outbox_table="o" * length, parking=parking)
    with connect(dsn) as connection:
        assert SampleReader(connection, config).sample().records == 3
        assert list(SampleReader(connection, config).rare().added) == []
    report = read("audit", "--topic", topic)
    assert (report["committed"], report["pending"], report["delivered"]) == (3, 3, 0)
    assert Harvest(config).drain(60).records == 3


def test_a_stop_under_load_is_clean(outbox, solo, bootstrap_servers):
    """I9: nothing in flight unaccounted for, nothing left marked, nothing sent twice."""
    records = 20_000
    outbox.fill(records, keys=5_000)
    limits = {"min_metrics_interval_seconds": 0.001}
    first = solo(limits=limits)

    def stop_while_busy(event):
        if isinstance(event, MeterRead) and first.delivered_records > 1_000:
            first.stop()
            first.stop()

    first.set_event_handler(stop_while_busy)
    first.start()
    assert first.await_stopped(60)
    assert first.state is State.STOPPED
    assert outbox.count() == records - first.delivered_records > 0, "it was stopped in the middle"
    assert outbox.leaders() == set()

    solo(limits=limits).drain(60)
    delivered = read_topic(bootstrap_servers, outbox.topic)
    assert sorted(record.outbox_id for record in delivered) == list(range(1, records + 1))
    assert steps_back(delivered) == 0


def test_what_a_dead_leader_marked_the_next_one_takes(outbox, solo):
    outbox.fill(10)
    outbox.connection.execute("UPDATE outbox SET leader_id = gen_random_uuid()")
    assert solo().drain(60).records == 10


def test_events_and_state_over_a_life(outbox, solo):
    events = []
    harvest = solo(limits={"min_metrics_interval_seconds": 0.001})
    harvest.set_event_handler(events.append)
    assert (harvest.state, harvest.is_leader, harvest.leader_id) == (State.CREATED, False, None)
    with harvest:
        assert harvest.state is State.RUNNING
        eventually(lambda: harvest.is_leader, "leads")
        assert harvest.leader_id is not None
        outbox.fill(100)
        eventually(lambda: harvest.delivered_records == 100, "delivers")
        assert harvest.in_flight_records == 0
        harvest.stop()
        assert harvest.state in {State.STOPPING, State.STOPPED}
    assert harvest.state is State.STOPPED
    assert isinstance(events[0], LeaderAcquired)
    assert isinstance(events[-1], LeaderRevoked)
    meters = [event.stats for event in events if isinstance(event, MeterRead)]
    assert sum(stats.interval_count for stats in meters) <= 100
    assert meters[-1].total_rate > 0


def test_an_event_handler_that_raises_harms_nobody(outbox, solo):
    outbox.fill(10)
    harvest = solo()
    harvest.set_event_handler(lambda event: 1 / 0)
    assert harvest.drain(60).records == 10


def test_limits_without_effect_are_named_at_the_start(outbox, solo, caplog):
    caplog.set_level(logging.INFO)
    solo(limits={"send_concurrency": 4, "markBackoff": "20ms"}).drain(60)
    solo(limits={"markBackoff": "20ms"}).drain(60)
    assert [each.limits for each in caplog.records if each.msg == "limits_without_effect"] == [["sendConcurrency"]]


def test_an_instance_lives_once(outbox, solo):
    harvest = solo()
    with pytest.raises(LifecycleError, match="never started"):
        harvest.await_stopped()
    harvest.drain(60)
    with pytest.raises(LifecycleError, match="cannot start"):
        harvest.start()


def test_a_drain_that_takes_too_long_says_so(outbox, solo):
    harvest = solo()
    outbox.fill(5_000, keys=1)
    with pytest.raises(LifecycleError, match="not empty"):
        harvest.drain(0)
    assert harvest.state is State.STOPPED


def test_writers_that_lock_the_key_keep_its_commit_order(outbox, solo, bootstrap_servers):
    """I4 while eight writers compete for four keys, some of them rolling back."""
    connection = outbox.connection
    connection.execute("CREATE TABLE aggregate (key text PRIMARY KEY, version int NOT NULL)")
    connection.execute("INSERT INTO aggregate SELECT 'key-' || g, 0 FROM generate_series(0, 3) g")

    def write(number):
        with psycopg.connect(outbox.dsn) as writer:
            for turn in range(60):
                key = f"key-{(number + turn) % 4}"
                version = writer.execute(
                    "UPDATE aggregate SET version = version + 1 WHERE key = %s RETURNING version", (key,)
                ).fetchone()[0]
                append(writer, [OutboxRecord(topic=outbox.topic, key=key, value=str(version))])
                writer.rollback() if turn % 7 == 3 else writer.commit()

    with solo() as harvest:
        writers = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join(60)
        eventually(lambda: outbox.count() == 0, "the backlog is empty")
        assert harvest.state is State.RUNNING
    versions = {}
    for record in read_topic(bootstrap_servers, outbox.topic):
        versions.setdefault(record.key, []).append(int(record.value))
    expected = dict(connection.execute("SELECT key, version FROM aggregate").fetchall())
    assert versions == {key: list(range(1, version + 1)) for key, version in expected.items()}


def test_marks_and_purges_are_durable_whatever_the_database_says(outbox, solo):
    """The barrier rests on a purge that no crash undoes; a database may have `synchronous_commit` off by default."""
    name = outbox.connection.info.dbname
    outbox.connection.execute(sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(sql.Identifier(name)))
    source = MarkSource(outbox.dsn, outbox.name.identifier, outbox.name.parked.identifier)
    source.open(uuid.uuid4())
    assert source._connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
    source.close()
