"""Ticks of the sensor tell failures and recoveries: each once, of the outbox's own runs, whatever else runs."""

import dagster as dg
import pytest
from dagster import DagsterInstance, DagsterRunStatus

from dagster_harvest.alerts import alert_sensor
from dagster_harvest.components import outbox_definitions
from dagster_harvest.daemon import DAEMON_TAG, as_failure
from dagster_harvest.settings import OutboxSettings
from harvest_lib.errors import OutboxTableError

pytestmark = pytest.mark.quick


@pytest.fixture
def instance(tmp_path):
    # On disk, as `dg dev` has it: its events are kept by run, with an index.
    with DagsterInstance.local_temp(str(tmp_path)) as kept:
        yield kept


def run_job(instance, name, *, fails=True):
    @dg.op
    def work():
        if fails:
            raise as_failure(OutboxTableError("there is no table", evidence="seen", next_step="`harvest init`"))

    @dg.job(name=name, tags={DAEMON_TAG: "shop"} if "daemon" in name else {})
    def job():
        work()

    job.execute_in_process(instance=instance, raise_on_error=False)


class Alerts:
    """The sensor of one outbox, as Dagster's daemon ticks it: a tick's cursor is the next one's."""

    def __init__(self, instance, outbox="shop", *, failing=0):
        self.heard = []
        self.failing = failing
        self._instance = instance
        self._sensor = alert_sensor(OutboxSettings(name=outbox, topics=["orders"]), self._tell)
        self.cursor = None
        self.tick()

    def _tell(self, alert):
        if self.failing:
            self.failing -= 1
            raise ConnectionError("the pager is away")
        self.heard.append(str(alert))

    def tick(self):
        """Tick; return the alerts of this tick."""
        before = len(self.heard)
        result = self._sensor.evaluate_tick(dg.build_sensor_context(instance=self._instance, cursor=self.cursor))
        self.cursor = result.cursor
        return self.heard[before:]


@pytest.fixture
def alerts(instance):
    return Alerts(instance)


def test_a_failed_daemon_is_told_with_cause_and_next_step(instance, alerts):
    run_job(instance, "shop_harvester_daemon")
    (text,) = alerts.tick()
    assert "there is no table" in text
    assert "next step: `harvest init`" in text
    assert "its supervisor starts the next run" in text


def test_a_failed_audit_has_to_be_launched_again(instance, alerts):
    run_job(instance, "shop_audit")
    (text,) = alerts.tick()
    assert "launch the run again" in text


@pytest.mark.parametrize("order", [("shop_audit", "something_else"), ("something_else", "shop_audit")])
@pytest.mark.parametrize("failed", [True, False])
def test_foreign_runs_in_the_same_tick_neither_jam_nor_repeat_it(instance, alerts, order, failed):
    if not failed:
        run_job(instance, "shop_audit")
        run_job(instance, "something_else")
        alerts.tick()
    for name in order:
        run_job(instance, name, fails=failed)
    (text,) = alerts.tick()
    assert ("failed, run" if failed else "runs again") in text
    assert alerts.tick() == []
    run_job(instance, "shop_audit")
    assert "failed, run" in alerts.tick()[-1]


def test_two_outboxes_that_fail_together_are_told_once_each(instance):
    """Both daemons fail when Dagster is restarted."""
    each = {name: Alerts(instance, name) for name in ("shop", "crm")}
    for name in each:
        run_job(instance, f"{name}_harvester_daemon")
    for _ in range(3):
        for alert in each.values():
            alert.tick()
    for name, alert in each.items():
        (text,) = alert.heard
        assert text.startswith(f"{name}_harvester_daemon failed")


@pytest.mark.full
def test_a_tick_that_follows_many_events_reads_on_in_the_next(instance, alerts):
    for _ in range(60):
        instance.report_run_failed(instance.create_run_for_job(daemon("shop"), status=DagsterRunStatus.STARTED), "gone")
    assert len(alerts.tick()) == 50
    assert len(alerts.tick()) == 10
    assert alerts.tick() == []


def test_failures_from_before_the_sensor_are_not_told(instance):
    run_job(instance, "shop_audit")
    assert Alerts(instance).tick() == []


def test_an_alert_that_cannot_be_told_is_tried_again_and_delays_others(instance):
    alerts = Alerts(instance, failing=2)
    run_job(instance, "shop_audit")
    run_job(instance, "shop_harvester_daemon")
    assert alerts.tick() == []
    assert alerts.tick() == []
    assert [text.split()[0] for text in alerts.tick()] == ["shop_audit", "shop_harvester_daemon"]
    assert alerts.tick() == []


def test_a_pager_that_never_answers_costs_its_alerts_alone(instance):
    alerts = Alerts(instance, failing=3)
    run_job(instance, "shop_audit")
    for _ in range(3):
        assert alerts.tick() == []
    run_job(instance, "shop_harvester_daemon")
    (text,) = alerts.tick()
    assert text.startswith("shop_harvester_daemon")


def test_a_job_that_runs_again_after_a_failure_is_told_once(instance, alerts):
    run_job(instance, "shop_audit")
    run_job(instance, "shop_audit", fails=False)
    run_job(instance, "shop_audit", fails=False)
    failed, again = alerts.tick()
    assert "failed, run" in failed
    assert "runs again" in again


def test_a_run_killed_from_outside_is_told_too(instance, alerts):
    """No step has failed: its process is gone, and the supervisor has reported it."""
    run = instance.create_run_for_job(daemon("shop"), status=DagsterRunStatus.STARTED)
    instance.report_run_failed(run, "The supervisor gave this run up: last heartbeat 20 s ago")
    (text,) = alerts.tick()
    assert "last heartbeat 20 s ago" in text


def test_definitions_take_the_function_that_is_told(instance):
    heard = []
    settings = OutboxSettings(name="shop", topics=["orders"])
    sensor = outbox_definitions(settings, tell=heard.append).get_sensor_def("shop_alerts")
    first = sensor.evaluate_tick(dg.build_sensor_context(instance=instance))
    run_job(instance, "shop_audit")
    sensor.evaluate_tick(dg.build_sensor_context(instance=instance, cursor=first.cursor))
    (alert,) = heard
    assert (alert.kind, alert.outbox) == ("run_failed", "shop")
    assert alert.run_id in alert.text
    assert alert.next_step.startswith("`harvest init`; then launch")


def daemon(outbox):
    @dg.job(name=f"{outbox}_harvester_daemon", tags={DAEMON_TAG: outbox})
    def job():
        pass

    return job
