"""A failure is reported with its cause and the next step, and so is a run that goes on after one."""

import dagster as dg
import pytest
from dagster import DagsterInstance, DagsterRunStatus

from dagster_harvest.alerts import alert_sensors
from dagster_harvest.daemon import DAEMON_TAG, as_failure
from dagster_harvest.settings import OutboxSettings
from harvest_lib.errors import OutboxTableError

pytestmark = pytest.mark.quick

SETTINGS = OutboxSettings(name="shop", topics=["orders"])


@pytest.fixture
def instance():
    with DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


def job_of(name, *, fails=True):
    @dg.op
    def work():
        if fails:
            raise as_failure(OutboxTableError("there is no table", evidence="seen", next_step="`harvest init`"))

    @dg.job(name=name, tags={DAEMON_TAG: "shop"} if "daemon" in name else {})
    def job():
        work()

    return job


def reported(instance, job, which, event):
    result = job.execute_in_process(instance=instance, raise_on_error=False)
    run = instance.get_run_by_id(result.run_id)
    (happened,) = [each for each in result.all_events if each.event_type_value == event]
    heard = []
    sensors = dict(zip(("failures", "recoveries"), alert_sensors(SETTINGS, heard.append), strict=True))
    context = dg.build_run_status_sensor_context(
        sensor_name=f"shop_{which}", dagster_instance=instance, dagster_run=run, dagster_event=happened
    )
    sensors[which](context.for_run_failure() if which == "failures" else context)
    return heard


def test_a_failed_daemon_is_told_with_cause_and_next_step(instance):
    (text,) = reported(instance, job_of("shop_harvester_daemon"), "failures", "PIPELINE_FAILURE")
    assert "there is no table" in text
    assert "next step: `harvest init`" in text
    assert "its supervisor starts the next one" in text


def test_a_failed_audit_has_to_be_launched_again(instance):
    (text,) = reported(instance, job_of("shop_audit"), "failures", "PIPELINE_FAILURE")
    assert "launch it again" in text


def test_a_run_of_others_is_none_of_ours(instance):
    assert reported(instance, job_of("something_else"), "failures", "PIPELINE_FAILURE") == []


def test_who_runs_again_after_a_failure_is_told_once(instance):
    job_of("shop_audit").execute_in_process(instance=instance, raise_on_error=False)
    (text,) = reported(instance, job_of("shop_audit", fails=False), "recoveries", "PIPELINE_START")
    assert "runs again" in text
    assert reported(instance, job_of("shop_audit", fails=False), "recoveries", "PIPELINE_START") == []


def test_a_run_killed_from_outside_is_told_too(instance):
    """No step has failed: its process is gone, and the supervisor has reported it."""
    run = instance.create_run_for_job(job_of("shop_harvester_daemon"), status=DagsterRunStatus.STARTED)
    event = instance.report_run_failed(run, "The supervisor gave this run up: last heartbeat 20 s ago")
    heard = []
    failures, _ = alert_sensors(SETTINGS, heard.append)
    context = dg.build_run_status_sensor_context(
        sensor_name="shop_failures", dagster_instance=instance, dagster_run=run, dagster_event=event
    )
    failures(context.for_run_failure())
    assert "last heartbeat 20 s ago" in heard[0]
