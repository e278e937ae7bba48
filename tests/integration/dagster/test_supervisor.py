"""A tick of the supervisor against the real database, with runs that Dagster believes whatever a test says."""

import json
import time
from types import SimpleNamespace

import dagster as dg
import pytest
from dagster import DagsterInstance, DagsterRunStatus
from support.outbox import harvest_config
from support.waiting import eventually

from dagster_harvest.daemon import (
    DAEMON_TAG,
    GENERATION_TAG,
    LEAVING_TAG,
    SLOT_TAG,
    VERSION_TAG,
    WORKED_TAG,
    daemon_job,
)
from dagster_harvest.heartbeat import HeartbeatPlace, HeartbeatTable
from dagster_harvest.resources import HarvesterResource, version_of
from dagster_harvest.settings import DaemonSettings, OutboxSettings, Thresholds
from dagster_harvest.supervisor import supervisor_sensor
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.outbox import OutboxTable

pytestmark = pytest.mark.full

PLACE = HeartbeatPlace(name="shop", location="in-process")


@pytest.fixture
def instance():
    with DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


@pytest.fixture
def heartbeats(outbox):
    made = HeartbeatTable.beside(outbox.connection, OutboxTable.parse("outbox"))
    made.create()
    return made


@pytest.fixture
def settings(outbox):
    daemon = DaemonSettings(heartbeat_every_seconds=0.2, stale_after_seconds=60)
    thresholds = Thresholds(backlog_warn_records=100, backlog_error_records=1000)
    return OutboxSettings(name="shop", topics=[outbox.topic], daemon=daemon, thresholds=thresholds)


@pytest.fixture
def resource(reaper):
    return HarvesterResource(config_file=str(reaper))


@pytest.fixture
def tick(settings, instance, reaper):
    cursor = None

    def look(settings=settings, file=reaper):
        nonlocal cursor
        job = daemon_job(settings) if settings.daemon.mode == "run" else None
        context = dg.build_sensor_context(
            instance=instance,
            cursor=cursor,
            resources={settings.resource_key: HarvesterResource(config_file=str(file))},
        )
        result = supervisor_sensor(settings, job).evaluate_tick(context)
        cursor = result.cursor
        for event in result.asset_events:  # as Dagster's daemon does
            instance.report_runless_asset_event(event)
        return result

    return look


@pytest.fixture
def believed(instance, settings):
    """Make a run that Dagster believes to be in a status."""

    def make(generation, status=DagsterRunStatus.STARTED):
        return instance.create_run_for_job(
            daemon_job(settings), status=status, tags={DAEMON_TAG: "shop", GENERATION_TAG: str(generation)}
        )

    return make


def test_the_first_tick_asks_for_the_first_generation(tick):
    (request,) = tick().run_requests
    assert request.run_key == "shop:0:1"
    assert request.tags[GENERATION_TAG] == "1"
    assert request.run_config == {}


def test_a_kill_after_a_time_of_work_is_followed_at_once_whatever_failed_before(
    tick, believed, heartbeats, outbox, instance
):
    for generation in range(1, 7):
        instance.report_run_failed(believed(generation), "no broker answers")
    run = believed(7)
    instance.add_run_tags(run.run_id, {WORKED_TAG: "true"})
    heartbeats.claim(PLACE, run_id=run.run_id, generation=7, stale_after_seconds=60)
    outbox.connection.execute("UPDATE harvest_daemons SET heartbeat_at = heartbeat_at - interval '61 s'")
    (request,) = eventually(lambda: tick().run_requests)
    assert request.run_key == "shop:0:8"


def test_a_living_run_is_left_alone(tick, believed, heartbeats):
    run = believed(1)
    heartbeats.claim(PLACE, run_id=run.run_id, generation=1, stale_after_seconds=60)
    result = tick()
    assert not result.run_requests
    assert "alive" in result.skip_message
    assert json.loads(result.cursor)["slot 0"]["generation"] == 1


@pytest.mark.gate
def test_a_run_of_another_version_is_asked_to_hand_over_and_the_next_one_has_the_present(
    tick, believed, heartbeats, instance
):
    run = believed(1)
    instance.add_run_tags(run.run_id, {VERSION_TAG: "0.0+older"})
    heartbeats.claim(PLACE, run_id=run.run_id, generation=1, stale_after_seconds=60)
    result = tick()
    present = instance.get_run_by_id(run.run_id).tags[LEAVING_TAG]
    assert "0.0+older" in result.skip_message
    assert present in result.skip_message
    assert not result.run_requests
    assert "was asked to hand over" in tick().skip_message
    heartbeats.stop(PLACE, run.run_id)
    instance.report_run_canceled(instance.get_run_by_id(run.run_id))
    (request,) = tick().run_requests
    assert request.tags[VERSION_TAG] == present
    assert request.run_key == "shop:0:2"


@pytest.mark.gate
def test_of_a_pool_one_run_hands_over_at_a_time_and_only_while_all_are_there(
    tick, believed, heartbeats, instance, settings
):
    pool = settings.model_copy(update={"daemon": settings.daemon.model_copy(update={"runs": 2})})
    runs = [believed(1), believed(1)]
    for slot, run in enumerate(runs):
        instance.add_run_tags(run.run_id, {VERSION_TAG: "0.0+older", SLOT_TAG: str(slot)})

    def asked():
        return [LEAVING_TAG in instance.get_run_by_id(run.run_id).tags for run in runs]

    heartbeats.claim(PLACE, run_id=runs[0].run_id, generation=1, stale_after_seconds=60)
    tick(pool)
    assert asked() == [False, False], "the other has sent no heartbeat"
    second = HeartbeatPlace(name="shop", location="in-process", slot=1)
    heartbeats.claim(second, run_id=runs[1].run_id, generation=1, stale_after_seconds=60)
    tick(pool)
    tick(pool)
    assert asked() == [True, False]


def test_a_run_without_a_beat_is_failed_and_the_next_generation_asked_for(tick, believed, heartbeats, outbox, instance):
    run = believed(1)
    heartbeats.claim(PLACE, run_id=run.run_id, generation=1, stale_after_seconds=60)
    outbox.connection.execute("UPDATE harvest_daemons SET heartbeat_at = now() - interval '1 hour'")
    assert "is considered dead if the next tick finds the same" in tick().skip_message
    assert instance.get_run_by_id(run.run_id).status is DagsterRunStatus.STARTED
    (request,) = eventually(lambda: tick().run_requests)
    assert request.run_key == "shop:0:2"
    assert instance.get_run_by_id(run.run_id).status is DagsterRunStatus.FAILURE
    said = [entry.dagster_event.message for entry in instance.all_logs(run.run_id) if entry.dagster_event]
    assert any("gave this run up" in (each or "") for each in said)


@pytest.mark.gate
def test_who_beats_again_before_the_supervisor_looks_again_is_not_failed(
    tick, believed, heartbeats, outbox, instance, monkeypatch
):
    """As after an outage of Postgres, when every heartbeat is old. No tick sleeps."""
    run = believed(1)
    heartbeats.claim(PLACE, run_id=run.run_id, generation=1, stale_after_seconds=60)
    outbox.connection.execute("UPDATE harvest_daemons SET heartbeat_at = now() - interval '1 hour'")
    ahead = [0.0]
    monkeypatch.setattr("dagster_harvest.supervisor.time", SimpleNamespace(time=lambda: time.time() + ahead[0]))
    assert "is considered dead" in tick().skip_message
    heartbeats.renew(PLACE, run.run_id)
    ahead[0] = 10.0
    assert "alive" in tick().skip_message
    outbox.connection.execute("UPDATE harvest_daemons SET heartbeat_at = now() - interval '1 hour'")
    assert "is considered dead" in tick().skip_message, "it is looked at twice again"
    assert instance.get_run_by_id(run.run_id).status is DagsterRunStatus.STARTED
    ahead[0] = 20.0
    (request,) = tick().run_requests
    assert request.run_key == "shop:0:2"
    assert instance.get_run_by_id(run.run_id).status is DagsterRunStatus.FAILURE


def failed(instance, believed, resource, settings, generations, version=None):
    """Make runs of a version, the present one by default, of which each failed."""
    for generation in generations:
        run = believed(generation)
        present = version_of(resource.config(), settings.daemon)
        instance.add_run_tags(run.run_id, {VERSION_TAG: version or present})
        instance.report_run_failed(instance.get_run_by_id(run.run_id))


@pytest.fixture
def moved(believed, heartbeats, instance):
    """A living run of another code location, whose supervisor ticks; the location that is supervised has one too."""
    own, run = believed(2), believed(1)
    heartbeats.claim(PLACE, run_id=own.run_id, generation=2, stale_after_seconds=60)
    instance.add_run_tags(run.run_id, {SLOT_TAG: "7"})  # among the runs here it is none of this location's
    heartbeats.claim(BEFORE, run_id=run.run_id, generation=1, stale_after_seconds=60)
    assert heartbeats.supervise("shop", BEFORE.location, stale_after_seconds=60) == []
    return run


@pytest.mark.gate
def test_a_pause_of_dagsters_daemon_ends_no_run_of_another_location(tick, moved, heartbeats, outbox, instance):
    tick()
    outbox.connection.execute(GONE)  # no supervisor has ticked for an hour
    assert moved.run_id not in tick().skip_message
    heartbeats.supervise("shop", BEFORE.location, stale_after_seconds=60)
    assert moved.run_id not in tick().skip_message
    assert LEAVING_TAG not in instance.get_run_by_id(moved.run_id).tags


BEFORE = HeartbeatPlace(name="shop", location="before")
GONE = "UPDATE harvest_daemons SET heartbeat_at = heartbeat_at - interval '1 hour' WHERE slot = -1"


@pytest.mark.gate
def test_the_run_of_a_code_location_that_was_renamed_hands_over(tick, moved, heartbeats, outbox, instance):
    outbox.connection.execute(GONE)
    for _ in range(2):
        assert f"run {moved.run_id} has to hand over: its code location" in tick().skip_message
    assert LEAVING_TAG in instance.get_run_by_id(moved.run_id).tags
    heartbeats.stop(BEFORE, moved.run_id)
    assert moved.run_id not in tick().skip_message, "it has stopped"


@pytest.mark.gate
def test_runs_of_two_code_locations_that_are_both_supervised_leave_each_other_alone(tick, moved, outbox, instance):
    assert moved.run_id not in tick().skip_message
    outbox.connection.execute("DELETE FROM harvest_daemons WHERE slot = -1 AND code_location = 'before'")
    assert moved.run_id not in tick().skip_message, "its supervisor may be about to tick"
    assert LEAVING_TAG not in instance.get_run_by_id(moved.run_id).tags


@pytest.mark.gate
def test_a_run_of_another_daemon_or_of_another_instance_is_left_alone(tick, moved, heartbeats, outbox, instance):
    outbox.connection.execute(GONE)
    outbox.connection.execute("UPDATE harvest_daemons SET run_id = 'elsewhere' WHERE run_id = %s", (moved.run_id,))
    assert "elsewhere" not in tick().skip_message
    outbox.connection.execute("UPDATE harvest_daemons SET run_id = %s WHERE run_id = 'elsewhere'", (moved.run_id,))
    outbox.connection.execute("UPDATE harvest_daemons SET name = 'other' WHERE code_location = 'before'")
    assert moved.run_id not in tick().skip_message
    assert LEAVING_TAG not in instance.get_run_by_id(moved.run_id).tags


def test_failures_are_followed_the_later_the_more_there_are(tick, believed, instance, resource, settings):
    failed(instance, believed, resource, settings, range(1, 5))
    result = tick()
    assert not result.run_requests
    assert "4 failed in a row" in result.skip_message
    assert json.loads(result.cursor)["slot 0"]["failures"] == 4


@pytest.mark.gate
def test_who_corrects_the_configuration_does_not_wait_for_the_backoff(tick, believed, instance, resource, settings):
    failed(instance, believed, resource, settings, range(1, 5), "0.0+wrong")
    (request,) = tick().run_requests
    assert request.run_key == "shop:0:5"
    assert request.tags[VERSION_TAG] == version_of(resource.config(), settings.daemon)


@pytest.mark.gate
def test_a_run_that_has_lived_for_long_is_asked_to_hand_over(tick, believed, heartbeats, instance, resource, settings):
    rotating = settings.model_copy(update={"daemon": settings.daemon.model_copy(update={"rotate_after_hours": 1e-9})})
    present = version_of(resource.config(), rotating.daemon)
    run = believed(1)
    instance.add_run_tags(run.run_id, {VERSION_TAG: present})
    began = dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, run.job_name)
    instance.report_dagster_event(began, run.run_id)
    heartbeats.claim(PLACE, run_id=run.run_id, generation=1, stale_after_seconds=60)
    result = tick(rotating)
    assert "hours ago" in result.skip_message
    assert instance.get_run_by_id(run.run_id).tags[LEAVING_TAG] == present


@pytest.fixture
def elsewhere(tmp_path, reaper):
    """A configuration that names a server that is away."""
    lines = reaper.read_text().splitlines()
    lines = [line if "dataSource" not in line else "  dataSource: host=127.0.0.1 port=1 dbname=x" for line in lines]
    file = tmp_path / "elsewhere.yaml"
    file.write_text("\n".join(lines))
    return file


def test_while_postgres_is_away_no_run_is_failed(tick, believed, instance, elsewhere):
    run = believed(1)
    result = tick(file=elsewhere)
    assert not result.run_requests
    assert "it is unknown whether it lives" in result.skip_message
    assert "the outbox cannot be read" in result.skip_message
    assert instance.get_run_by_id(run.run_id).status is DagsterRunStatus.STARTED


def test_several_runs_are_kept_where_several_are_asked_for(tick, settings):
    many = settings.model_copy(update={"daemon": settings.daemon.model_copy(update={"runs": 3})})
    assert [request.run_key for request in tick(many).run_requests] == ["shop:0:1", "shop:1:1", "shop:2:1"]


def verdicts(result):
    evaluations = [event for event in result.asset_events if isinstance(event, dg.AssetCheckEvaluation)]
    return {event.check_name: (event.passed, event.severity.value) for event in evaluations}


GOOD = {
    "backlog_age": (True, "WARN"),
    "backlog_size": (True, "WARN"),
    "parked": (True, "ERROR"),
    "leader": (True, "ERROR"),
}


@pytest.mark.gate
def test_checks_of_a_backlog_that_cannot_be_read_fail_and_say_why(tick, elsewhere):
    assert verdicts(tick()) == GOOD
    result = tick(file=elsewhere)
    assert verdicts(result) == dict.fromkeys(GOOD, (False, "ERROR"))
    for event in result.asset_events:
        assert "port 1" in event.description, "the cause"
        assert "next step" in event.description
    assert verdicts(tick(file=elsewhere)) == {}, "nothing has changed"
    assert verdicts(tick()) == GOOD


def test_the_backlog_is_judged_as_it_ticks_and_told_when_the_verdict_changes(tick, outbox):
    assert verdicts(tick()) == GOOD
    assert tick().asset_events == [], "nothing has changed"
    outbox.fill(100)
    assert verdicts(tick())["backlog_size"] == (False, "WARN")
    outbox.fill(900)
    assert verdicts(tick())["backlog_size"] == (False, "ERROR")
    outbox.connection.execute("DELETE FROM outbox")
    assert verdicts(tick())["backlog_size"] == (True, "WARN")


@pytest.mark.gate
def test_an_outbox_that_runs_drain_is_only_watched(tick, settings, outbox):
    draining = settings.model_copy(update={"daemon": settings.daemon.model_copy(update={"mode": "drain"})})
    outbox.fill(100)
    result = tick(draining)
    assert not result.run_requests
    assert verdicts(result) == {**GOOD, "backlog_size": (False, "WARN")}, "between two drains nobody has to lead"
    assert outbox.connection.execute("SELECT to_regclass('harvest_daemons')").fetchone() == (None,)


@pytest.mark.usefixtures("elected")
def test_a_harvester_elsewhere_is_only_watched(tick, settings, outbox, dsn, bootstrap_servers, group_id):
    external = settings.model_copy(update={"daemon": settings.daemon.model_copy(update={"mode": "external"})})
    with Harvest(harvest_config(dsn, bootstrap_servers, group_id, leadership="neli", name="elsewhere")) as harvest:
        eventually(lambda: harvest.is_leader, "leads")
        result = tick(external)
    assert not result.run_requests
    seen = {each.asset_key: each for each in result.asset_events if isinstance(each, dg.AssetObservation)}
    assert seen.keys() == {dg.AssetKey(["kafka", f"{outbox.topic}_topic"]), settings.outbox_key}
    for each in seen.values():
        assert "elsewhere" in each.metadata["leader"].value
        assert each.metadata["backlog_records"].value == 0
    assert verdicts(result) == GOOD
