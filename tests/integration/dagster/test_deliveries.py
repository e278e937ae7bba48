"""What runs tell of topics, against the real Postgres and Kafka: each record once, at its topic, with its offsets."""

import json
import os
import signal
import threading
from contextlib import suppress

import dagster as dg
import pytest
from confluent_kafka import Producer
from dagster import DagsterInstance
from sqlalchemy.exc import OperationalError
from support.outbox import Outbox, harvest_config, read_topic
from support.subscribed import Subscribed
from support.waiting import eventually

from dagster_harvest.daemon import LEAVING_TAG, daemon_job
from dagster_harvest.deliveries import delivered_sensor, delivered_until
from dagster_harvest.resources import HarvesterResource
from dagster_harvest.settings import DaemonSettings, OutboxSettings
from dagster_harvest.supervisor import supervisor_sensor
from dagster_harvest.topic_reports import DELIVERED_UNTIL, ROW_COUNT
from harvest_lib.harvester.harvest import Harvest

pytestmark = pytest.mark.gate

SOON = DaemonSettings(
    report_every_seconds=1, materialize_every_seconds=1, heartbeat_every_seconds=0.2, stale_after_seconds=60
)


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """Wait for Kafka's answer: a run would leave the offsets to its next materialization."""
    monkeypatch.setattr("dagster_harvest.topic_ends._ANSWER_SECONDS", 60.0)


@pytest.fixture
def instance():
    with DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


@pytest.fixture
def other(make_topic):
    return make_topic(partitions=1)


@pytest.fixture
def settings(outbox, other):
    return OutboxSettings(name="shop", topics=[outbox.topic, other], daemon=SOON)


@pytest.fixture
def resource(reaper):
    return HarvesterResource(config_file=str(reaper))


def undisturbed(ask):
    """Ask Dagster's storage again later where the run writes there: SQLite in memory refuses the second one to come."""

    def asked():
        with suppress(OperationalError):
            return ask()
        return False

    return asked


@pytest.fixture
def execute(settings, resource, instance):
    """Execute a run in this process, and end it once a condition holds: by a hand-over, or as a terminated run."""

    def run(condition, *, is_terminated=False):
        known = {each.run_id for each in instance.get_runs()}

        def end():
            eventually(condition)
            (run,) = eventually(undisturbed(lambda: [r for r in instance.get_runs() if r.run_id not in known]))
            if is_terminated:
                eventually(undisturbed(lambda: instance.report_run_canceling(run) or True))
                os.kill(os.getpid(), signal.SIGINT)
            else:
                eventually(undisturbed(lambda: instance.add_run_tags(run.run_id, {LEAVING_TAG: "9.9+next"}) or True))

        threading.Thread(target=end, daemon=True).start()
        return daemon_job(settings).execute_in_process(
            instance=instance, resources={settings.resource_key: resource}, raise_on_error=False
        )

    return run


def materialized(instance, settings, topic):
    """Return the metadata of the topic's materializations, in order."""
    key = settings.asset_keys.make("topic", name=settings.name, topic=topic)
    records = instance.fetch_materializations(key, limit=200).records
    return [record.asset_materialization.metadata for record in reversed(records)]


def assert_covers(found, delivered):
    """Check that the materializations count the records of the topic once, and that their offsets have no gap."""
    assert sum(each[ROW_COUNT].value for each in found) == len(delivered)
    assert all(each[ROW_COUNT].value > 0 for each in found)
    ends = {}
    for each in found:
        for partition, (begin, end) in each["offsets"].value.items():
            assert begin == ends.get(partition, 0)
            ends[partition] = end
    assert all(record.offset < ends[str(record.partition)] for record in delivered)


@pytest.mark.quick
def test_only_the_topic_that_got_records_is_materialized(execute, settings, outbox, other, instance, bootstrap_servers):
    outbox.fill(300, keys=50)
    execute(lambda: outbox.count() == 0)
    found = materialized(instance, settings, outbox.topic)
    assert_covers(found, read_topic(bootstrap_servers, outbox.topic))
    assert materialized(instance, settings, other) == []


def test_two_topics_have_their_own_numbers(execute, settings, outbox, other, instance, bootstrap_servers):
    second = Outbox(outbox.dsn, other)
    try:
        outbox.fill(200, keys=50)
        second.fill(31, keys=7)
        execute(lambda: outbox.count() == 0)
    finally:
        second.close()
    for topic, records in ((outbox.topic, 200), (other, 31)):
        delivered = read_topic(bootstrap_servers, topic)
        assert len(delivered) == records
        assert_covers(materialized(instance, settings, topic), delivered)


def test_the_sum_over_restarts_is_what_the_runs_delivered(execute, settings, outbox, instance, bootstrap_servers):
    for run in range(4):
        outbox.fill(100 + run, keys=10)
        execute(lambda: outbox.count() == 0, is_terminated=run % 2 == 1)
    delivered = read_topic(bootstrap_servers, outbox.topic)
    assert len(delivered) == 406
    assert_covers(materialized(instance, settings, outbox.topic), delivered)


@pytest.fixture
def native(dsn, make_topic, bootstrap_servers, group_id, reaper):
    made = Subscribed(dsn, make_topic(partitions=2), bootstrap_servers, group_id)
    text = reaper.read_text().replace("delivery: barrier", "delivery: transactional\n  source: snapshot")
    reaper.write_text(text.replace("    maxInFlightRecords: 1000\n", ""))
    yield made
    made.close()


def test_transactions_are_counted_without_their_markers(native, resource, instance, bootstrap_servers):
    settings = OutboxSettings(name="shop", topics=[native.topic], daemon=SOON)
    native.write(*(f"key-{number % 20}" for number in range(200)))

    def delivered():
        found = materialized(instance, settings, native.topic)
        return found[-1]["outbox_position"].value[0]["delivered"] if found else 0

    def positioned():
        if delivered():
            return True
        native.write("key-0")  # the position is stored after the records: the next event shows it
        return False

    def end():
        eventually(undisturbed(positioned))
        (run,) = eventually(undisturbed(instance.get_runs))
        eventually(undisturbed(lambda: instance.add_run_tags(run.run_id, {LEAVING_TAG: "9.9+next"}) or True))

    threading.Thread(target=end, daemon=True).start()
    daemon_job(settings).execute_in_process(
        instance=instance, resources={settings.resource_key: resource}, raise_on_error=False
    )
    found = materialized(instance, settings, native.topic)
    assert_covers(found, read_topic(bootstrap_servers, native.topic, isolation="read_committed"))
    assert delivered() > 0


def test_the_time_of_the_last_event_passes_what_was_delivered(execute, settings, outbox, instance):
    outbox.fill(50)
    (committed,) = outbox.connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()

    def passed():
        until = delivered_until(instance, settings)
        return until is not None and until.timestamp() > committed

    execute(undisturbed(passed))
    assert outbox.count() == 0


def test_the_sensor_counts_each_record_over_restarts_of_the_run(execute, settings, outbox, instance):
    cursor, keys = None, []

    def tick():
        nonlocal cursor
        sensor = delivered_sensor(settings, topic=outbox.topic, every_records=100, target="*")
        result = sensor.evaluate_tick(dg.build_sensor_context(instance=instance, cursor=cursor))
        cursor = result.cursor
        keys.extend(request.run_key for request in result.run_requests or ())

    tick()
    for run in range(3):
        outbox.fill(150, keys=10)
        execute(lambda: outbox.count() == 0, is_terminated=run == 1)
        tick()
        tick()
    assert len(set(keys)) == len(keys) == 4


# -- a harvester outside Dagster


@pytest.fixture
def ticks(settings, resource, instance, monkeypatch):
    """Tick as the supervisor of a harvester outside does, at times of the test's own; return the events of topics."""
    daemon = settings.daemon.model_copy(update={"mode": "external", "materialize_every_seconds": 60})
    external = settings.model_copy(update={"daemon": daemon})
    cursor = None

    def tick(now):
        nonlocal cursor
        monkeypatch.setattr("dagster_harvest.supervisor.time.time", lambda: now)
        context = dg.build_sensor_context(instance=instance, cursor=cursor, resources={settings.resource_key: resource})
        result = supervisor_sensor(external, None).evaluate_tick(context)
        cursor = result.cursor
        return [each for each in result.asset_events if isinstance(each, dg.AssetMaterialization)]

    tick.ends = lambda: json.loads(cursor)["outbox"].get("topics", {}).get("ends")
    return tick


def test_topics_of_a_harvester_outside_are_materialized_by_their_ends(
    ticks, outbox, settings, dsn, bootstrap_servers, group_id
):
    def deliver(records):
        outbox.fill(records, keys=20)
        assert Harvest(harvest_config(dsn, bootstrap_servers, group_id)).drain().records == records

    noon = 1_772_366_400.0
    deliver(5)
    assert ticks(noon) == [], "the first tick notes the ends"
    deliver(40)
    (first,) = ticks(noon + 10)
    assert first.asset_key == settings.topic_keys[0]
    assert sum(end - begin for begin, end in first.metadata["offsets"].value.values()) == 40
    assert ROW_COUNT not in first.metadata
    assert first.metadata[DELIVERED_UNTIL].value > 0
    deliver(2)
    assert ticks(noon + 60) == [], "within the interval"
    (second,) = ticks(noon + 70)
    assert {part: begin for part, (begin, _) in second.metadata["offsets"].value.items()} == {
        part: end for part, (_, end) in first.metadata["offsets"].value.items()
    }
    assert ticks(noon + 200) == [], "never without a record"


def test_a_record_of_another_producer_moves_the_ends(ticks, outbox, bootstrap_servers):
    noon = 1_772_366_400.0
    # A tick that Kafka does not answer in time leaves the ends to the next.
    eventually(lambda: ticks(noon) or ticks.ends(), "the ends are noted")
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    producer.produce(outbox.topic, b"v")
    producer.flush(60)
    assert len(eventually(lambda: ticks(noon + 10), "the topic is materialized")) == 1
