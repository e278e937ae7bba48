"""A new subscription as a partition: filled by a run, and by the next one if that ends early."""

import threading

import dagster as dg
import psutil
import pytest
from dagster import DagsterInstance
from support.native import Native
from support.outbox import read_topic
from support.outbox_format import environment
from support.waiting import eventually

from dagster_harvest.components import outbox_definitions
from dagster_harvest.replay import replay_asset
from dagster_harvest.settings import OutboxSettings, ReplaySettings
from harvest_lib.outbox import append
from harvest_lib.record import OutboxRecord

pytestmark = [pytest.mark.full, pytest.mark.spark, pytest.mark.timeout(600)]

REPLAY = dg.AssetKey(["replay", "shop_replay"])
RECORDS = 20_000


@pytest.fixture
def instance():
    with DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


@pytest.fixture
def settings(reaper, make_topic):
    replays = [
        ReplaySettings(subscription="v2", topics={"orders": make_topic(partitions=2)}),
        ReplaySettings(subscription="v3", topics={"orders": "not-there"}),
    ]
    return OutboxSettings(name="shop", topics=["orders"], config_file=str(reaper), replays=replays)


@pytest.fixture
def written(dsn):
    """A native outbox with records of some keys; returns their ids."""
    native = Native(dsn, size=50_000)
    for key in range(10):
        records = [OutboxRecord(topic="orders", key=f"k{key}", value=str(n)) for n in range(RECORDS // 10)]
        append(native.connection, records)
    yield [row[0] for row in native.connection.execute("SELECT id FROM outbox ORDER BY id")]
    native.connection.close()


@pytest.fixture
def materialize(settings, instance, monkeypatch):
    for name, value in environment().items():
        monkeypatch.setenv(name, value)

    def run(partition, module="harvest_lib.spark.replay"):
        result = dg.materialize(
            [replay_asset(settings, module)],
            partition_key=partition,
            instance=instance,
            resources=outbox_definitions(settings).resources,
            raise_on_error=False,
        )
        return result, [entry.user_message for entry in instance.all_logs(result.run_id)]

    return run


def test_a_run_that_is_killed_is_resumed_by_the_next(materialize, settings, instance, written, bootstrap_servers):
    target = settings.replays[0].topics["orders"]
    before = {each.pid for each in psutil.Process().children()}
    ended = []
    # The same command, with transactions of few records and pauses between.
    thread = threading.Thread(target=lambda: ended.append(materialize("v2", "support.slow_replay")))
    thread.start()
    eventually(lambda: len(read_topic(bootstrap_servers, target)) > 0, seconds=200)
    (process,) = [
        each
        for each in psutil.Process().children()
        if each.pid not in before and "support.slow_replay" in " ".join(each.cmdline())
    ]
    process.kill()
    thread.join()
    ((result, log),) = ended
    assert not result.success
    there = read_topic(bootstrap_servers, target, isolation="read_committed")
    assert 0 < len(there) < RECORDS
    assert "v2: about" in "".join(log), "nobody saw how far it was"
    assert instance.get_materialized_partitions(REPLAY) == set()

    result, _ = materialize("v2")
    assert result.success
    (made,) = result.get_asset_materialization_events()
    assert (made.asset_key, made.partition) == (REPLAY, "v2")
    reported = {name: each.value for name, each in made.materialization.metadata.items()}
    assert (reported["records"], reported["parts"], reported["already_filled"]) == (RECORDS, 2, False)
    assert reported["seconds"] > 0
    assert "subscription: v2" in reported["next_step"]
    found = read_topic(bootstrap_servers, target, isolation="read_committed")
    assert sorted(each.outbox_id for each in found) == written
    for key in {each.key for each in found}:
        ids = [each.outbox_id for each in found if each.key == key]
        assert ids == sorted(ids)

    result, _ = materialize("v2")
    (made,) = result.get_asset_materialization_events()
    assert made.materialization.metadata["already_filled"].value is True
    assert len(read_topic(bootstrap_servers, target, isolation="read_committed")) == RECORDS


def test_what_is_refused_is_what_the_run_says(materialize, written):
    result, _ = materialize("v3")
    (failure,) = [each.step_failure_data.user_failure_data for each in result.all_events if each.is_step_failure]
    assert "there is no topic 'not-there'" in failure.description
