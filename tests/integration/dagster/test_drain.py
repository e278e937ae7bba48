"""Topics that a run fills: it delivers what waits, reports each topic's own numbers, and ends."""

import os
import re
import signal
import threading
from datetime import UTC, datetime

import dagster as dg
import pytest
from dagster import DagsterInstance, DagsterRunStatus
from support.outbox import Outbox, harvest_config, read_topic
from support.waiting import eventually

from dagster_harvest.components import outbox_definitions
from dagster_harvest.deliveries import delivered_until
from dagster_harvest.settings import DaemonSettings, OutboxSettings
from dagster_harvest.topic_reports import ROW_COUNT
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.outbox.daemons import TABLE

pytestmark = pytest.mark.gate


@pytest.fixture
def instance():
    with DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


@pytest.fixture
def settings(outbox, make_topic, reaper):
    topics = [outbox.topic, make_topic(partitions=2)]
    daemon = DaemonSettings(mode="drain", report_every_seconds=1)
    return OutboxSettings(name="shop", topics=topics, daemon=daemon, config_file=str(reaper))


@pytest.fixture
def drain(settings, instance):
    def run():
        job = outbox_definitions(settings).resolve_job_def("shop_drain")
        return job.execute_in_process(instance=instance, raise_on_error=False)

    return run


def said(instance):
    (newest,) = instance.get_runs(limit=1)
    return " ".join(entry.user_message for entry in instance.all_logs(newest.run_id))


def materialized(instance, settings):
    """Return the numbers of each topic's materializations, the oldest first."""
    found = {}
    for topic, key in zip(settings.topics, settings.topic_keys, strict=True):
        records = instance.fetch_materializations(key, limit=10, ascending=True).records
        found[topic] = [record.asset_materialization.metadata[ROW_COUNT].value for record in records]
    return found


def failure_of(result):
    return result.failure_data_for_node("shop_drained").user_failure_data


@pytest.mark.quick
def test_what_waits_is_delivered_and_each_topic_has_its_own_number(
    drain, settings, outbox, instance, bootstrap_servers
):
    first, second = settings.topics
    outbox.fill(300, keys=50)
    assert drain().success
    assert outbox.count() == 0
    assert outbox.leaders() == set()
    assert materialized(instance, settings) == {first: [300], second: []}
    outbox.fill(40)
    outbox.connection.execute("UPDATE outbox SET kafka_topic = %s WHERE id %% 4 = 0", (second,))
    assert drain().success
    assert materialized(instance, settings) == {first: [300, 30], second: [10]}
    assert len(read_topic(bootstrap_servers, first)) == 330
    assert "delivered 40 records" in said(instance)
    assert outbox.connection.execute("SELECT to_regclass(%s)", (TABLE,)).fetchone() == (None,), "no run is kept alive"


@pytest.mark.parametrize("delivery", ["pipelined", "transactional"])
def test_a_drain_says_until_when_everything_is_delivered(drain, settings, outbox, instance, reaper, delivery):
    reaper.write_text(re.sub(r"delivery: \w+", f"delivery: {delivery}", reaper.read_text()))
    outbox.fill(20, keys=5)
    before = datetime.now(UTC)
    assert drain().success
    (record,) = instance.fetch_materializations(settings.topic_keys[0], limit=5).records
    metadata = record.asset_materialization.metadata
    assert (metadata["outbox"].value, metadata[ROW_COUNT].value, metadata["backlog_records"].value) == ("shop", 20, 0)
    assert sum(end - begin for begin, end in metadata["offsets"].value.values()) >= 20
    assert delivered_until(instance, settings) > before


@pytest.mark.full
def test_where_nothing_waits_nothing_is_materialized(drain, settings, instance):
    assert drain().success
    assert materialized(instance, settings) == {topic: [] for topic in settings.topics}


@pytest.mark.usefixtures("elected")
def test_where_another_process_harvests_it_ends_when_that_one_has_delivered(
    drain, settings, outbox, instance, dsn, bootstrap_servers, group_id
):
    with Harvest(harvest_config(dsn, bootstrap_servers, group_id, leadership="neli", name="elsewhere")) as harvest:
        eventually(lambda: harvest.is_leader, "it leads")
        outbox.fill(50)
        assert drain().success
        assert harvest.delivered_records == 50
    assert "this run does not lead" in said(instance)
    assert "elsewhere" in said(instance)
    assert "delivered 0 records" in said(instance)
    assert outbox.count() == 0


def test_a_terminated_run_stops_in_order_and_the_next_one_tells_of_its_records(
    drain, settings, outbox, instance, monkeypatch
):
    first = settings.topics[0]
    outbox.fill(10)
    assert drain().success
    outbox.fill(200)

    def terminate():
        try:
            eventually(lambda: outbox.count() == 0)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Harvest, "is_drained", False)  # as if more and more were written
        threading.Thread(target=terminate, daemon=True).start()
        assert not drain().success
    assert outbox.leaders() == set()
    assert "delivered 200 records" in said(instance)
    assert materialized(instance, settings)[first] == [10]
    assert drain().success
    assert materialized(instance, settings)[first] == [10, 200]


def test_several_outboxes_are_drained_in_one_run(
    settings, outbox, instance, dsn, make_topic, reaper, tmp_path, group_id
):
    second = Outbox(dsn, make_topic(), table="other")
    file = tmp_path / "other.yaml"
    text = reaper.read_text().replace(group_id, f"{group_id}.other")
    file.write_text(text.replace("outboxTable: outbox", "outboxTable: other"))
    others = OutboxSettings(name="other", topics=[second.topic], daemon=settings.daemon, config_file=str(file))
    keys = dg.AssetSelection.assets(*settings.topic_keys, *others.topic_keys)
    job = dg.define_asset_job("all", selection=keys, executor_def=dg.in_process_executor)
    both = dg.Definitions.merge(outbox_definitions(settings), outbox_definitions(others), dg.Definitions(jobs=[job]))
    outbox.fill(3)
    second.fill(4)
    try:
        assert both.resolve_job_def("all").execute_in_process(instance=instance).success
        assert second.count() == 0
    finally:
        second.close()
    assert materialized(instance, settings)[outbox.topic] == [3]
    assert materialized(instance, others) == {second.topic: [4]}


def test_a_missing_topic_fails_the_run_before_a_record_is_parked(drain, settings, outbox, instance):
    settings.topics = [*settings.topics, "no_such_topic"]
    outbox.fill(5)
    result = drain()
    assert not result.success
    failure = failure_of(result)
    assert "the topic 'no_such_topic' does not exist" in failure.description
    assert "harvest topics create " in failure.metadata["next_step"].value
    assert outbox.count() == 5


def test_a_table_that_is_missing_fails_the_run_with_the_next_step(drain, outbox):
    outbox.connection.execute("DROP TABLE outbox")
    failure = failure_of(drain())
    assert "there is no table" in failure.description
    assert "harvest init" in failure.metadata["next_step"].value


def test_a_database_that_is_away_fails_the_run_which_may_be_retried(drain, settings, instance, reaper):
    lines = reaper.read_text().splitlines()
    reaper.write_text(
        "\n".join("  dataSource: host=127.0.0.1 port=1 dbname=x" if "dataSource" in each else each for each in lines)
    )
    failure = failure_of(drain())
    assert "port 1" in failure.description
    assert failure.metadata["next_step"].value
    assert instance.get_runs(limit=1)[0].status is DagsterRunStatus.FAILURE


def test_who_reads_a_topic_runs_after_a_drain_that_brought_records(settings, outbox, instance):
    read = [
        dg.AssetSpec(f"reads_{number}", deps=[key], automation_condition=dg.AutomationCondition.eager())
        for number, key in enumerate(settings.topic_keys)
    ]

    @dg.multi_asset(specs=read, can_subset=True)
    def readers(context):
        for key in context.selected_asset_keys:
            yield dg.MaterializeResult(asset_key=key)

    defs = dg.Definitions.merge(outbox_definitions(settings), dg.Definitions(assets=[readers]))

    def requested(cursor):
        evaluated = dg.evaluate_automation_conditions(defs=defs, instance=instance, cursor=cursor)
        return evaluated.cursor, [evaluated.get_num_requested(spec.key) for spec in read]

    cursor, _ = requested(None)
    outbox.fill(5)
    assert defs.resolve_job_def("shop_drain").execute_in_process(instance=instance).success
    cursor, asked = requested(cursor)
    assert asked == [1, 0]
    assert defs.resolve_job_def("shop_drain").execute_in_process(instance=instance).success
    assert requested(cursor)[1] == [0, 0], "nothing waited"
