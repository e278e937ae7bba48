"""What a tick of the supervisor reports of a real outbox: parked records, its leader, its page."""

import json
import re
import threading
import time
from types import SimpleNamespace

import dagster as dg
import pytest
from dagster import DagsterInstance, DagsterRunStatus
from psycopg.conninfo import make_conninfo
from support.parking import Parking
from support.waiting import eventually

from dagster_harvest.daemon import DAEMON_TAG, GENERATION_TAG, LEAVING_TAG, daemon_job
from dagster_harvest.heartbeat import HeartbeatPlace, HeartbeatTable
from dagster_harvest.leading import LEADS_TAG, Leading
from dagster_harvest.resources import HarvesterResource
from dagster_harvest.settings import DaemonSettings, OutboxSettings
from dagster_harvest.supervisor import supervisor_sensor
from harvest_lib.events import LeaderAcquired
from harvest_lib.harvester.status import StatusReader
from harvest_lib.outbox import append
from harvest_lib.outbox.parking import ParkedRecords
from harvest_lib.record import OutboxRecord

pytestmark = pytest.mark.gate

GOOD = {
    "backlog_age": (True, "WARN"),
    "backlog_size": (True, "WARN"),
    "parked": (True, "ERROR"),
    "leader": (True, "ERROR"),
}


@pytest.fixture
def instance():
    with DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


@pytest.fixture
def settings(outbox, reaper):
    return OutboxSettings(name="shop", topics=[outbox.topic], config_file=str(reaper))


@pytest.fixture
def tick(settings, instance, reaper):
    """Tick as Dagster's daemon does: a tick's cursor is the next one's, and its events are stored."""
    cursor = None

    def look():
        nonlocal cursor
        context = dg.build_sensor_context(
            instance=instance,
            cursor=cursor,
            resources={settings.resource_key: HarvesterResource(config_file=str(reaper))},
        )
        result = supervisor_sensor(settings, daemon_job(settings)).evaluate_tick(context)
        cursor = result.cursor
        for event in result.asset_events:
            instance.report_runless_asset_event(event)
        return result

    return look


@pytest.fixture
def ahead(monkeypatch):
    """The seconds by which the report's clock is ahead."""
    seconds = [0.0]
    clock = SimpleNamespace(time=lambda: time.time() + seconds[0])
    monkeypatch.setattr("dagster_harvest.outbox_report.time", clock)
    return seconds


@pytest.fixture
def relay(outbox, unique):
    """A role without rights."""
    name = unique("relay")
    outbox.connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'p'")
    yield name
    outbox.connection.execute(f"DROP OWNED BY {name}")
    outbox.connection.execute(f"DROP ROLE {name}")


@pytest.fixture
def believed(outbox, settings, instance):
    """Make a run that sends heartbeats and reports that its process leads."""

    def make(process):
        tags = {DAEMON_TAG: "shop", GENERATION_TAG: "1"}
        run = instance.create_run_for_job(daemon_job(settings), status=DagsterRunStatus.STARTED, tags=tags)
        heartbeats = HeartbeatTable.beside(outbox.connection, outbox.name)
        heartbeats.create()
        place = HeartbeatPlace(name="shop", location="in-process")
        heartbeats.claim(place, run_id=run.run_id, generation=1, stale_after_seconds=60)
        leading = Leading(process)
        leading.hear(LeaderAcquired(leader_id="00000000-0000-0000-0000-000000000001"))
        leading.tell(instance, run.run_id)

    return make


def verdicts(result):
    evaluations = [event for event in result.asset_events if isinstance(event, dg.AssetCheckEvaluation)]
    return {event.check_name: (event.passed, event.severity.value) for event in evaluations}


def test_a_parked_record_fails_its_check_and_is_on_the_page_of_the_outbox(tick, outbox, harvest):
    """With the records held behind it; once it is retried, the check passes."""
    assert verdicts(tick()) == GOOD
    outbox.fill(3, keys=1)
    parked = ParkedRecords(outbox.name)
    parking = Parking(outbox.connection, parked)
    parking.move(1, reason="MSG_SIZE_TOO_LARGE")
    parking.move(2, held=1)
    result = tick()
    assert verdicts(result) == {"parked": (False, "ERROR")}
    (check, seen) = result.asset_events
    assert (
        check.description == f"1 record of {outbox.topic} cannot be sent, with 1 record held behind: MSG_SIZE_TOO_LARGE"
    )
    assert check.metadata["first_ids"].value == "1"
    listed, retried = re.findall("`(.*?)`", check.metadata["next_step"].value)
    done = harvest(*listed.split()[1:], "--json")
    assert {each["id"] for each in json.loads(done.stdout)} == {1, 2}
    assert (seen.metadata["parked_records"].value, seen.metadata["held_records"].value) == (1, 1)
    assert tick().asset_events == [], "nothing has changed"
    harvest(*retried.split()[1:])
    assert verdicts(tick()) == {"parked": (True, "ERROR")}


def test_parked_records_that_may_not_be_read_fail_their_check_with_the_grant(tick, outbox, dsn, reaper, relay):
    outbox.connection.execute(f"GRANT SELECT ON outbox TO {relay}")
    reaper.write_text(reaper.read_text().replace(dsn, make_conninfo(dsn, user=relay, password="p")))
    result = tick()
    assert verdicts(result) == {**GOOD, "parked": (False, "ERROR")}
    (check,) = [each for each in result.asset_events if getattr(each, "check_name", "") == "parked"]
    assert check.metadata["next_step"].value.startswith('GRANT SELECT ON "outbox_parked" TO')


def test_parked_records_that_a_policy_hides_fail_their_check(tick, outbox, dsn, reaper, relay):
    outbox.connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {relay}")
    outbox.connection.execute("ALTER TABLE outbox_parked ENABLE ROW LEVEL SECURITY")
    reaper.write_text(reaper.read_text().replace(dsn, make_conninfo(dsn, user=relay, password="p")))
    (check,) = [each for each in tick().asset_events if getattr(each, "check_name", "") == "parked"]
    assert not check.passed
    assert "row-level security hides rows" in check.metadata["cause"].value


def test_no_leader_for_a_minute_fails_and_a_run_that_leads_is_named_by_its_process(tick, believed, ahead):
    assert verdicts(tick())["leader"] == (True, "ERROR")
    ahead[0] = 61.0
    result = tick()
    assert verdicts(result) == {"leader": (False, "ERROR")}
    assert "no known leader for" in result.asset_events[0].description
    believed("host_42_1")
    result = tick()
    assert verdicts(result) == {"leader": (True, "ERROR")}
    (check, seen) = result.asset_events
    assert check.description == "leader: host_42_1"
    assert seen.metadata["leader"].value == "host_42_1"
    assert "leads_since" in seen.metadata


@pytest.mark.full
def test_the_page_of_the_outbox_shows_its_place_and_when_it_delivered_last(tick, outbox, ahead):
    def observed():
        (seen,) = [each for each in tick().asset_events if isinstance(each, dg.AssetObservation)]
        return {name: value.value for name, value in seen.metadata.items()}

    shown = observed()
    database = outbox.connection.info.dbname
    assert shown["dagster/table_name"] == f"{database}.public.outbox"
    assert shown["dagster/uri"].startswith("postgres://")
    assert "@" not in shown["dagster/uri"]
    assert [each.name for each in shown["dagster/column_schema"].columns][:2] == ["id", "create_time"]
    assert "last_delivered" not in shown
    outbox.fill(10)
    outbox.connection.execute("DELETE FROM outbox")  # as a purge does

    def observed_later():  # the statistics of Postgres come late
        ahead[0] += 3700.0
        return observed()

    eventually(lambda: "last_delivered" in observed_later())


@pytest.mark.full
def test_a_real_run_reports_that_it_leads_and_which_records_it_parked(outbox, settings, reaper, unique, tmp_path):
    missing = unique("missing")
    append(outbox.connection, [OutboxRecord(topic=missing, key="k", value="v")])
    reporting = settings.model_copy(update={"daemon": DaemonSettings(report_every_seconds=1)})
    with DagsterInstance.local_temp(str(tmp_path)) as instance:

        def led():
            runs = instance.get_runs()
            tags = runs[0].tags if runs else {}
            is_parked = ParkedRecords(outbox.name).summary(outbox.connection).parked == 1
            return is_parked and json.loads(tags.get(LEADS_TAG, '{"shards": []}'))["shards"] == [0]

        def end():
            eventually(led)
            instance.add_run_tags(instance.get_runs()[0].run_id, {LEAVING_TAG: "9.9+next"})

        thread = threading.Thread(target=end, daemon=True)
        thread.start()
        resources = {settings.resource_key: HarvesterResource(config_file=str(reaper))}
        result = daemon_job(reporting).execute_in_process(instance=instance, resources=resources)
        thread.join()
        (run,) = instance.get_runs()
        text = " ".join(entry.user_message for entry in instance.all_logs(result.run_id))
    assert f"records_parked: count 1; topics {missing}; ids 1; reasons the topic does not exist" in text
    assert json.loads(run.tags[LEADS_TAG])["process"]


def test_an_idle_tick_asks_dagster_a_few_times_and_kafka_never(tick, believed, monkeypatch, instance):
    """While a run reports that it leads."""
    believed("host_42_1")
    tick()
    asked = []
    for owner, name in [
        *((DagsterInstance, name) for name in ("get_runs", "get_run_records", "get_run_by_id", "fetch_observations")),
        (type(instance.event_log_storage), "get_latest_asset_check_execution_by_key"),
        (StatusReader, "leaders"),
    ]:
        monkeypatch.setattr(owner, name, noted(asked, name, getattr(owner, name)))
    assert tick().asset_events == []
    assert sorted(asked) == ["get_latest_asset_check_execution_by_key", "get_run_records", "get_runs"]


def noted(asked, name, call):
    def wrapper(*arguments, **named):
        asked.append(name)
        return call(*arguments, **named)

    return wrapper
