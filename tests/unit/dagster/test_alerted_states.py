"""Ticks of the alert sensor report a failed check and a missing daemon, each when it begins and when it ends."""

import datetime as dt
import time
from types import SimpleNamespace

import dagster as dg
import pytest
from dagster import AssetCheckSeverity, DagsterInstance, DagsterRunStatus
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin

from dagster_harvest.alert_settings import AlertSettings
from dagster_harvest.alerts import alert_sensor
from dagster_harvest.checks import judged_lost, unreadable
from dagster_harvest.daemon import DAEMON_TAG, SLOT_TAG
from dagster_harvest.settings import DaemonSettings, OutboxSettings
from harvest_lib.audit.summary import AuditSummary
from harvest_lib.errors import DatabaseUnavailable

pytestmark = pytest.mark.quick

AWAY = DatabaseUnavailable("Postgres does not answer", evidence="port 1", next_step="start Postgres")


@pytest.fixture
def instance(tmp_path):
    with DagsterInstance.local_temp(str(tmp_path)) as kept:
        yield kept


class Shop:
    """An outbox in an instance: its checks are reported as the supervisor's ticks report them."""

    def __init__(self, instance, name="shop", *, tell=None, **settings):
        self.heard = []
        self.settings = OutboxSettings(name=name, topics=["orders"], **settings)
        self.cursor = None
        self._instance = instance
        self._sensor = alert_sensor(self.settings, tell or self.heard.append)

    def report(self, name, verdict, key=None):
        self._instance.report_runless_asset_event(
            dg.AssetCheckEvaluation(
                asset_key=key or self.settings.outbox_key,
                check_name=name,
                passed=verdict.passed,
                severity=verdict.severity,
                metadata=verdict.metadata,
                description=verdict.description,
            )
        )

    def tick(self):
        before = len(self.heard)
        context = dg.build_sensor_context(instance=self._instance, cursor=self.cursor)
        self.cursor = self._sensor.evaluate_tick(context).cursor
        return self.heard[before:]


@pytest.fixture
def shop(instance):
    return Shop(instance)


def verdict(*, passed=False, severity=AssetCheckSeverity.ERROR, text="seen", **metadata):
    return dg.AssetCheckResult(passed=passed, severity=severity, description=text, metadata=metadata)


GOOD = verdict(passed=True, text="good")
WARN = verdict(severity=AssetCheckSeverity.WARN, text="late")
LATE = verdict(text="the oldest record that waits is 700 s old")


@pytest.mark.parametrize("name", ["backlog_age", "backlog_size", "parked", "leader"])
def test_a_failed_check_is_told_once_and_once_when_it_is_good_again(shop, name):
    shop.report(name, GOOD)
    assert shop.tick() == []
    shop.report(name, LATE)
    (failed,) = shop.tick()
    assert (failed.kind, failed.checks, failed.severity) == ("check_failed", (name,), "ERROR")
    assert failed.text == f"shop: {name}: the oldest record that waits is 700 s old"
    shop.report(name, verdict(text="the oldest record that waits is 900 s old"))
    assert shop.tick() == []
    shop.report(name, GOOD)
    (recovered,) = shop.tick()
    assert (recovered.kind, recovered.checks) == ("check_recovered", (name,))
    assert f"{name}: good" in str(recovered)
    assert shop.tick() == []


def test_an_audit_that_lost_a_record_is_told_with_numbers_and_the_next_step(shop):
    summary = shop.settings.audit_key
    counts = {**dict.fromkeys(AuditSummary.__slots__, 0), "audit_id": "a", "at": dt.datetime.now(dt.UTC)}
    shop.report("lost", judged_lost(AuditSummary(**{**counts, "records": 601, "lost": 1})), summary)
    (alert,) = shop.tick()
    assert "lost: 1 of 601 records are committed and not in Kafka" in alert.text
    assert "audit/shop_audit" in alert.next_step
    assert str(alert).endswith(f"next step: {alert.next_step}")


@pytest.mark.parametrize("name", ["lost", "unknown", "ordering", "duplicates", "expectations"])
def test_each_check_of_an_audit_is_told(shop, name):
    shop.report(name, LATE, shop.settings.audit_key)
    (alert,) = shop.tick()
    assert alert.next_step


def test_checks_of_another_outbox_are_not_told(instance, shop):
    Shop(instance, "crm").report("parked", LATE)
    assert shop.tick() == []


def test_a_warning_is_told_only_where_that_is_set(instance, shop):
    loud = Shop(instance, alerts=AlertSettings(warn=True))
    shop.report("backlog_age", WARN)
    assert shop.tick() == []
    (alert,) = loud.tick()
    assert alert.severity == "WARN"
    shop.report("backlog_age", LATE)
    assert len(shop.tick()) == len(loud.tick()) == 1, "it became worse"
    shop.report("backlog_age", WARN)
    assert [each.kind for each in shop.tick()] == ["check_recovered"]
    assert loud.tick() == [], "it is still bad"
    shop.report("backlog_age", GOOD)
    assert [each.kind for each in loud.tick()] == ["check_recovered"]


def test_checks_that_cannot_read_are_told_together_and_a_finding_after_that_is_told(shop):
    for name in ("backlog_age", "backlog_size", "parked", "leader"):
        shop.report(name, unreadable(AWAY))
    (alert,) = shop.tick()
    assert alert.text == "shop: backlog_age, backlog_size, parked, leader: Postgres does not answer; port 1"
    assert alert.next_step == "start Postgres"
    shop.report("parked", LATE)
    (alert,) = shop.tick()
    assert alert.checks == ("parked",)
    for name in ("backlog_age", "backlog_size", "parked", "leader"):
        shop.report(name, GOOD)
    (alert,) = shop.tick()
    assert alert.checks == ("backlog_age", "backlog_size", "parked", "leader")


def test_while_a_run_evaluates_a_check_its_state_remains(instance, shop):
    shop.report("parked", LATE)
    assert len(shop.tick()) == 1
    during = []

    @dg.asset_check(asset=shop.settings.outbox_key, name="parked")
    def parked():
        during.extend(shop.tick())
        return dg.AssetCheckResult(passed=True, description="none")

    definitions = dg.Definitions(
        assets=[dg.AssetSpec(shop.settings.outbox_key)],
        asset_checks=[parked],
        jobs=[dg.define_asset_job("checks", selection=dg.AssetSelection.checks(parked))],
    )
    definitions.resolve_job_def("checks").execute_in_process(instance=instance)
    assert during == []
    assert [each.kind for each in shop.tick()] == ["check_recovered"]


def test_each_destination_is_told_once_though_another_fails(instance, monkeypatch):
    failing, heard = [True, True], []

    def tell(alert):
        if failing:
            failing.pop()
            raise ConnectionError("pager:secret-9x is away")

    monkeypatch.setattr(
        "dagster_harvest.alerts.destinations", lambda _settings, _tell: {"log": heard.append, "tell": tell}
    )
    shop = Shop(instance)
    shop.report("parked", LATE)
    shop.report("leader", verdict(text="nobody leads"))
    for _ in range(3):
        shop.tick()
    assert [each.checks for each in heard] == [("parked",), ("leader",)]
    assert "secret-9x" not in shop.cursor


# -- the daemon


ORIGIN = RemoteJobOrigin(
    RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("in-process"), "__repository__"), "shop_harvester_daemon"
)
"""Dagster queues only runs of a known origin."""


@pytest.fixture
def later(monkeypatch):
    """Let the sensor's clock be ahead, so that what began now has lasted."""
    ahead = [0.0]
    clock = SimpleNamespace(time=lambda: time.time() + ahead[0])
    monkeypatch.setattr("dagster_harvest.alerted_daemon.time", clock)

    def move(seconds):
        ahead[0] += seconds

    return move


def run(instance, status, slot=0):
    @dg.job(name="shop_harvester_daemon")
    def job():
        pass

    tags = {DAEMON_TAG: "shop", SLOT_TAG: str(slot)}
    return instance.create_run_for_job(job, status=status, tags=tags, remote_job_origin=ORIGIN)


def test_a_daemon_that_stays_queued_is_told_once_and_once_when_it_starts(instance, shop, later):
    queued = run(instance, DagsterRunStatus.QUEUED)
    assert shop.tick() == []
    later(181)
    (alert,) = shop.tick()
    assert (alert.kind, alert.run_id) == ("daemon_missing", queued.run_id)
    assert "is queued for 18" in alert.text
    assert "max_concurrent_runs" in alert.next_step
    assert shop.tick() == []
    run(instance, DagsterRunStatus.STARTED)
    (alert,) = shop.tick()
    assert alert.kind == "daemon_recovered"
    assert shop.tick() == []


def test_a_daemon_that_never_began_or_ended_is_told(instance, shop, later):
    assert shop.tick() == []
    later(181)
    (alert,) = shop.tick()
    assert "no run of shop_harvester_daemon has begun" in alert.text
    assert "shop_supervisor" in alert.next_step
    started = run(instance, DagsterRunStatus.STARTED)
    assert [each.kind for each in shop.tick()] == ["daemon_recovered"]
    later(-181)
    instance.report_run_canceled(started)
    assert shop.tick() == []
    later(181)
    (alert,) = shop.tick()
    assert f"the last, {started.run_id}, is CANCELED" in alert.text


def test_each_slot_has_to_have_its_run(instance, later):
    pool = Shop(instance, daemon=DaemonSettings(runs=2))
    run(instance, DagsterRunStatus.STARTED, slot=1)
    pool.tick()
    later(181)
    assert [each.kind for each in pool.tick()] == ["daemon_missing"]


def test_a_harvester_elsewhere_has_no_run_to_miss(instance, later):
    external = Shop(instance, daemon=DaemonSettings(mode="external"))
    external.tick()
    later(181)
    assert external.tick() == []


# -- the work of a tick


def test_a_tick_of_an_outbox_among_fifty_makes_as_many_queries_as_alone(instance, monkeypatch):
    """One query for all checks, one for the runs of the daemon, one for each kind of event."""
    asked = []
    for owner, names in (
        (type(instance), ("get_runs", "get_run_records", "fetch_run_status_changes", "get_records_for_run")),
        (type(instance.event_log_storage), ("get_latest_asset_check_execution_by_key",)),
    ):
        for name in names:
            monkeypatch.setattr(owner, name, noted(asked, name, getattr(owner, name)))
    shops = [Shop(instance, f"shop_{number}") for number in range(50)]
    for each in shops:
        each.tick()
        each.report("parked", LATE)
    asked.clear()
    assert all(len(each.tick()) == 1 for each in shops)
    assert sorted(set(asked)) == [
        "fetch_run_status_changes",
        "get_latest_asset_check_execution_by_key",
        "get_run_records",
    ]
    assert len(asked) == 4 * 50


def noted(asked, name, call):
    def wrapper(*arguments, **named):
        asked.append(name)
        return call(*arguments, **named)

    return wrapper


@pytest.mark.parametrize("cursor", ["[17, 0]", '"17"', "{}"])
def test_a_cursor_of_another_form_begins_anew(shop, cursor):
    shop.cursor = cursor
    assert shop.tick() == []
    shop.report("parked", LATE)
    assert len(shop.tick()) == 1
