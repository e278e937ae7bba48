"""The daemon's run, in this process: it delivers, tells, and ends in order; and the row by which it is known."""

import logging
import os
import signal
import socket
import threading
from contextlib import suppress

import dagster as dg
import pytest
from dagster import DagsterInstance, DagsterRunStatus
from dagster._daemon.monitoring.run_monitoring import check_run_timeout
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.exc import OperationalError
from support.outbox import read_topic
from support.scraping import scrape
from support.waiting import eventually

from dagster_harvest.daemon import GENERATION_TAG, LEAVING_TAG, VERSION_TAG, WORKED_TAG, daemon_job
from dagster_harvest.heartbeat import HeartbeatPlace, HeartbeatTable
from dagster_harvest.heartbeat_thread import HeartbeatThread
from dagster_harvest.resources import HarvesterResource, version_of
from dagster_harvest.settings import DaemonSettings, OutboxSettings
from harvest_lib.errors import LifecycleError
from harvest_lib.harvester.status import StatusReader
from harvest_lib.outbox import OutboxTable
from harvest_lib.telemetry.server import Listener

pytestmark = pytest.mark.gate

PLACE = HeartbeatPlace(name="shop", location="in-process")
TABLE = OutboxTable.parse("outbox")


@pytest.fixture
def instance():
    with DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


@pytest.fixture
def settings(outbox):
    daemon = DaemonSettings(report_every_seconds=1, heartbeat_every_seconds=0.2, stale_after_seconds=60)
    return OutboxSettings(name="shop", topics=[outbox.topic], daemon=daemon)


@pytest.fixture
def resource(reaper):
    return HarvesterResource(config_file=str(reaper))


@pytest.fixture
def heartbeats(outbox):
    made = HeartbeatTable.beside(outbox.connection, TABLE)
    made.create()
    return made


@pytest.fixture
def execute(settings, resource, instance):
    def run(**tags):
        return daemon_job(settings).execute_in_process(
            instance=instance, resources={settings.resource_key: resource}, tags=tags, raise_on_error=False
        )

    return run


def undisturbed(ask):
    """Ask Dagster's storage again later where the run writes there: SQLite in memory refuses the second one to come."""

    def asked():
        with suppress(OperationalError):
            return ask()
        return False

    return asked


def terminate_when(condition, instance):
    """Do to this process, once the condition holds, what terminating a run does to the run's."""

    def wait():
        try:
            eventually(undisturbed(condition))
        finally:
            eventually(undisturbed(lambda: instance.report_run_canceling(only_run(instance)) or True))
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait, daemon=True).start()


def only_run(instance):
    (run,) = instance.get_runs()
    return run


def observations(instance, topic):
    records = instance.fetch_observations(dg.AssetKey(["kafka", f"{topic}_topic"]), limit=100).records
    return [record.asset_observation.metadata for record in reversed(records)]


def delivered_as_told(instance, topic):
    """Return how many records the last observation tells of; none, before the first."""
    return max((each["delivered_records"].value for each in observations(instance, topic)), default=0)


def materializations(instance, topic):
    return instance.fetch_materializations(dg.AssetKey(["kafka", f"{topic}_topic"]), limit=10).records


def worked(instance):
    return WORKED_TAG in only_run(instance).tags


def test_a_run_that_has_delivered_for_some_time_says_so_for_the_supervisor(execute, settings, outbox, instance):
    settings.daemon.healthy_after_working_seconds = 3
    outbox.fill(500, keys=100)
    terminate_when(lambda: outbox.count() == 0 and worked(instance), instance)
    assert not execute().success
    assert only_run(instance).status is DagsterRunStatus.CANCELED
    assert outbox.count() == 0


def asked_to_leave_when(condition, instance):
    """Do what the supervisor does, once the condition holds."""

    def wait():
        eventually(condition)
        eventually(
            undisturbed(lambda: instance.add_run_tags(only_run(instance).run_id, {LEAVING_TAG: "9.9+next"}) or True)
        )

    threading.Thread(target=wait, daemon=True).start()


def said(instance):
    return " ".join(entry.user_message for entry in instance.all_logs(only_run(instance).run_id))


def test_a_run_hands_over_in_order_to_another_version(execute, outbox, heartbeats, instance, resource, settings):
    outbox.fill(500)
    asked_to_leave_when(lambda: outbox.count() == 0, instance)
    assert execute().success
    ours = version_of(resource.config(), settings.daemon)
    assert only_run(instance).tags[VERSION_TAG] == ours
    assert f"hands over: code or configuration are 9.9+next now, this is {ours}" in said(instance)
    assert heartbeats.read(PLACE).is_stopped
    assert outbox.leaders() == set()


def test_a_run_whose_process_has_another_configuration_says_so(execute, heartbeats, instance):
    asked_to_leave_when(lambda: heartbeats.read(PLACE) is not None, instance)
    assert execute(**{VERSION_TAG: "0.0+other"}).success
    assert "the code server would harvest by 0.0+other" in said(instance)


def test_a_version_follows_what_a_run_harvests_by_and_shows_no_secret(resource, settings):
    def version(made=resource, **changed):
        return version_of(made.config(), settings.daemon.model_copy(update=changed))

    def like(**stated):
        return HarvesterResource(config_file=resource.config_file, **stated)

    assert version() == version() == version(runs=3)
    assert len({version(), version(report_every_seconds=7.0), version(like(outbox_table="orders"))}) == 3
    assert version(like(dsn="host=x password=one")) == version(like(dsn="host=x password=two"))


@pytest.mark.quick
def test_records_are_delivered_and_told_and_a_terminated_run_stops_in_order(
    execute, outbox, heartbeats, instance, bootstrap_servers
):
    outbox.fill(2_000, keys=500)
    # The database is asked first: reading Dagster's log again and again would keep the harvester from working.
    terminate_when(
        lambda: (
            outbox.count() == 0
            and delivered_as_told(instance, outbox.topic) == 2_000
            and materializations(instance, outbox.topic)
        ),
        instance,
    )
    assert not execute().success
    assert only_run(instance).status is DagsterRunStatus.CANCELED
    assert len(read_topic(bootstrap_servers, outbox.topic)) == 2_000
    assert outbox.leaders() == set()
    heartbeat = heartbeats.read(PLACE)
    assert heartbeat.is_stopped
    assert heartbeat.generation == 1
    assert heartbeat.run_id == only_run(instance).run_id

    last = observations(instance, outbox.topic)[-1]
    assert last["backlog_records"].value == 0
    assert last["backlog_age_seconds"].value == 0
    assert last["is_leader"].value is True
    assert last["records_per_second"].value >= 0
    assert last["generation"].value == 1
    assert last["version"].value == only_run(instance).tags[VERSION_TAG]
    written = [each.asset_materialization.metadata for each in materializations(instance, outbox.topic)]
    assert sum(each["dagster/row_count"].value for each in written) == 2_000
    assert len(written) <= 2, "the first, and what was delivered after it: the interval is a minute"
    text = [entry.user_message for entry in instance.all_logs(only_run(instance).run_id)]
    assert any("leads shard 0 as" in line for line in text)
    assert any("stopped after 2,000 records" in line for line in text)


@pytest.mark.full
def test_an_idle_run_writes_no_event_for_each_time_that_it_looks(execute, outbox, instance, monkeypatch):
    looks = []
    read = StatusReader.waiting

    def waiting(self, *arguments):
        found = read(self, *arguments)
        looks.append(found.records)
        return found

    monkeypatch.setattr(StatusReader, "waiting", waiting)
    outbox.fill(50)
    terminate_when(lambda: looks[-6:] == [0] * 6, instance)
    execute()
    seen = observations(instance, outbox.topic)
    assert seen[-1]["delivered_records"].value == 50
    assert seen[-1]["records_per_second"].value == 0, "the last report of a run that became idle is of an idle run"
    assert len(seen) <= len(looks) - 4


def test_no_limit_of_the_deployment_on_the_time_of_runs_ends_it(settings, instance):
    @dg.job
    def other():
        """One that ends."""

    ended = {}
    for job in (daemon_job(settings), other):
        run = instance.create_run_for_job(job, status=DagsterRunStatus.STARTED, tags=job.tags)
        record = instance.get_run_record_by_id(run.run_id)
        check_run_timeout(instance, record._replace(start_time=1.0), logging.getLogger(__name__), 60.0)
        ended[job.name] = instance.get_run_by_id(run.run_id).status
    assert ended[settings.daemon_job_name] is DagsterRunStatus.STARTED
    assert ended["other"] in {DagsterRunStatus.CANCELING, DagsterRunStatus.FAILURE}


@pytest.fixture
def listeners(monkeypatch):
    """The listeners of runs, in the order in which they began."""
    made = []

    class Noted(Listener):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr("dagster_harvest.daemon.Listener", Noted)
    return made


@pytest.mark.parametrize("by", ["settings", "environment"])
def test_a_run_serves_its_metrics_while_it_lives(execute, outbox, instance, settings, listeners, by, monkeypatch):
    if by == "settings":
        settings.daemon.listen = "127.0.0.1:0"
    else:
        monkeypatch.setenv("HARVEST_LISTEN", "127.0.0.1:0")
    outbox.fill(50)
    seen = {}

    def served():
        seen.update(scrape(listeners[0].address) if listeners else {})
        return seen.get(("harvest_delivered_records_total", ("0",))) == 50

    terminate_when(served, instance)
    execute()
    assert seen["harvest_leader", ("0",)] == 1
    with pytest.raises(OSError, match="refused"):
        scrape(listeners[0].address)


def test_only_who_was_told_by_its_settings_needs_the_port(execute, outbox, instance, settings, monkeypatch):
    """The variable is one for all runs of a machine, of which one alone can have the port."""
    outbox.fill(1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("HARVEST_LISTEN", address)
        terminate_when(lambda: outbox.count() == 0, instance)
        execute()
        text = [entry.user_message for entry in instance.all_logs(only_run(instance).run_id)]
        assert any("serves no metrics" in line and address in line for line in text)
        settings.daemon.listen = address
        failure = execute().failure_data_for_node(f"harvest_{settings.name}").user_failure_data
        assert f"cannot listen on {address}" in failure.description


def test_no_secret_is_in_what_dagster_keeps_of_a_run(execute, outbox, instance, dsn):
    outbox.fill(1)
    terminate_when(lambda: outbox.count() == 0, instance)
    execute()
    password = conninfo_to_dict(dsn)["password"]
    run = only_run(instance)
    assert run.run_config == {}
    kept = [repr(run), *(entry.to_json() for entry in instance.all_logs(run.run_id))]
    assert not any(password in each for each in kept)


def test_what_cannot_start_says_why_in_the_run(execute, outbox, instance, settings):
    outbox.connection.execute("DROP TABLE outbox")
    result = execute()
    assert not result.success
    failure = result.failure_data_for_node(f"harvest_{settings.name}").user_failure_data
    assert "there is no table" in failure.description
    assert "harvest init" in failure.metadata["next_step"].value


def test_a_second_run_is_refused_while_the_first_lives(execute, outbox, heartbeats, instance, settings):
    heartbeats.claim(PLACE, run_id="the-first", generation=None, stale_after_seconds=60)
    result = execute()
    failure = result.failure_data_for_node(f"harvest_{settings.name}").user_failure_data
    assert "another run harvests 'shop'" in failure.description
    assert "the-first" in failure.metadata["evidence"].value
    assert heartbeats.read(PLACE).run_id == "the-first"


def test_a_run_that_was_succeeded_ends(execute, outbox, heartbeats, instance, settings):
    def succeed():
        heartbeat = heartbeats.read(PLACE)
        if heartbeat is None or not observations(instance, outbox.topic):
            return False
        heartbeats.claim(PLACE, run_id="the-next", generation=5, stale_after_seconds=60)
        return True

    threading.Thread(target=lambda: eventually(succeed), daemon=True).start()
    result = execute(**{GENERATION_TAG: "4"})
    failure = result.failure_data_for_node(f"harvest_{settings.name}").user_failure_data
    assert "another run replaced this run" in failure.description
    heartbeat = heartbeats.read(PLACE)
    assert (heartbeat.run_id, heartbeat.generation, heartbeat.is_stopped) == ("the-next", 5, False)


# -- the row


def test_a_stale_row_may_be_taken_and_a_fresh_one_only_by_a_later_generation(heartbeats, outbox):
    assert heartbeats.read(PLACE) is None
    assert heartbeats.claim(PLACE, run_id="a", generation=None, stale_after_seconds=60) == 1
    with pytest.raises(LifecycleError, match="already"):
        heartbeats.claim(PLACE, run_id="b", generation=None, stale_after_seconds=60)
    with pytest.raises(LifecycleError, match="run a, generation 1"):
        heartbeats.claim(PLACE, run_id="b", generation=1, stale_after_seconds=60)
    assert heartbeats.claim(PLACE, run_id="b", generation=2, stale_after_seconds=60) == 2
    assert not heartbeats.renew(PLACE, "a")
    assert heartbeats.renew(PLACE, "b")
    with pytest.raises(LifecycleError):
        heartbeats.claim(PLACE, run_id="a", generation=1, stale_after_seconds=0)
    outbox.connection.execute("UPDATE harvest_daemons SET heartbeat_at = now() - interval '61 s'")
    assert heartbeats.claim(PLACE, run_id="c", generation=None, stale_after_seconds=60) == 3


def test_who_stopped_in_order_leaves_the_row_at_once(heartbeats):
    heartbeats.claim(PLACE, run_id="a", generation=None, stale_after_seconds=60)
    heartbeats.stop(PLACE, "a")
    assert heartbeats.claim(PLACE, run_id="b", generation=None, stale_after_seconds=60) == 2
    assert not heartbeats.read(PLACE).is_stopped


def test_code_locations_and_slots_have_rows_of_their_own(heartbeats):
    for location, slot in (("one", 0), ("two", 0), ("two", 1)):
        place = HeartbeatPlace(name="shop", location=location, slot=slot)
        assert heartbeats.claim(place, run_id=f"{location}-{slot}", generation=None, stale_after_seconds=60) == 1


@pytest.mark.parametrize("error", [KeyError, SystemExit, GeneratorExit])
def test_beats_go_on_after_an_error_of_any_kind(heartbeats, outbox, resource, monkeypatch, caplog, error):
    monkeypatch.setattr("harvest_lib.process.threads._LOOK_SECONDS", 0.01)
    renew, errors = HeartbeatTable.renew, [error("why")]

    def failing(self, place, run_id):
        if errors:
            raise errors.pop()
        return renew(self, place, run_id)

    monkeypatch.setattr(HeartbeatTable, "renew", failing)
    heartbeat_thread = HeartbeatThread(resource.connect, TABLE, PLACE, run_id="a", every_seconds=0.05)
    heartbeat_thread.start(generation=None, stale_after_seconds=60)
    try:
        eventually(lambda: not errors, "it has failed")
        outbox.connection.execute("UPDATE harvest_daemons SET heartbeat_at = now() - interval '1 hour'")
        eventually(lambda: heartbeats.read(PLACE).age_seconds < 1_800, "it sends heartbeats again")
    finally:
        heartbeat_thread.close()
    assert [record.reason for record in caplog.records if record.message == "heartbeat_failed"] == [
        f"{error.__name__}: {error('why')}"
    ]


def test_beats_go_on_after_the_connection_was_cut(heartbeats, outbox, resource):
    heartbeat_thread = HeartbeatThread(resource.connect, TABLE, PLACE, run_id="a", every_seconds=0.05)
    heartbeat_thread.start(generation=None, stale_after_seconds=60)
    try:
        outbox.connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )
        outbox.connection.execute("UPDATE harvest_daemons SET heartbeat_at = now() - interval '1 hour'")
        eventually(lambda: heartbeats.read(PLACE).age_seconds < 1_800, "it sends heartbeats again")
    finally:
        heartbeat_thread.close()
    assert heartbeats.read(PLACE).is_stopped
