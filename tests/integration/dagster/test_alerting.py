"""Alerts of a real Dagster instance: two outboxes, a foreign job that fails, and restarts of every process."""

import json
import sys
from collections import Counter

import pytest
from dagster import DagsterRunStatus, RunsFilter
from dagster._core.scheduler.instigation import TickStatus
from support.dagster_platform import LOCATION, Platform
from support.waiting import eventually

from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.parking import ParkedRecords

pytestmark = [pytest.mark.full, pytest.mark.long, pytest.mark.timeout(900)]

TABLES = {"shop": "outbox", "crm": "crm_outbox"}
RESTARTS = 3


@pytest.fixture
def alerts(tmp_path):
    """The alerts that were told until now."""
    file = tmp_path / "alerts.jsonl"
    file.touch()

    def read(*kinds):
        told = [json.loads(line) for line in file.read_text().splitlines()]
        return [each for each in told if not kinds or each["kind"] in kinds]

    read.file = file
    return read


@pytest.fixture
def platform(tmp_path, outbox, elected, alerts):
    outbox.connection.execute("DROP TABLE outbox")
    with Platform(
        tmp_path / "dagster",
        file=LOCATION.with_name("dagster_alerting.py"),
        TEST_TOPIC=outbox.topic,
        TEST_CONFIG=str(elected),
        TEST_ALERTS=str(alerts.file),
    ) as started:
        try:
            yield started
        except BaseException:
            sys.stderr.write(started.log()[-5000:])
            raise


def failed_runs(platform, outbox):
    runs = RunsFilter(job_name=f"{outbox}_harvester_daemon", statuses=[DagsterRunStatus.FAILURE])
    return {run.run_id for run in platform.instance.get_runs(runs)}


def state_of(platform, sensor):
    (found,) = [each for each in platform.instance.all_instigator_state() if each.instigator_name == sensor]
    return found


def ticks(platform, sensor):
    state = state_of(platform, sensor)
    return platform.instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=1000)


def kill(platform, alerts):
    """Kill Dagster's daemon and the code servers. Return the identity of each alert of a tick whose cursor is lost."""
    platform.kill_daemon()
    for server in platform.code_servers():
        platform.kill(server.pid)
    # Dagster writes a tick's end before its cursor.
    kept = {name: state_of(platform, f"{name}_alerts").instigator_data.last_tick_timestamp for name in TABLES}
    lost = {
        name: [t.timestamp for t in ticks(platform, f"{name}_alerts") if t.timestamp > kept[name]] for name in TABLES
    }
    return [identity(each) for each in alerts() if any(each["at"] >= began for began in lost[each["outbox"]])]


def identity(alert):
    return alert["outbox"], alert["kind"], alert["run_id"], tuple(alert["checks"])


def test_two_outboxes_that_fail_beside_another_job_are_told_once_each_over_restarts(platform, outbox, alerts):
    """Both outboxes lack their table at first; their daemons fail again and again, until the tables are there."""
    eventually(lambda: {each["outbox"] for each in alerts("run_failed")} == set(TABLES), seconds=240)
    repeatable = Counter()
    for _ in range(RESTARTS):
        repeatable.update(kill(platform, alerts))
        before = len(alerts("run_failed"))
        platform.start_daemon()
        eventually(lambda before=before: len(alerts("run_failed")) > before + 2, "alerts go on", seconds=240)
    for table in TABLES.values():
        OutboxTable.parse(table).create(outbox.connection)
        ParkedRecords(OutboxTable.parse(table)).create(outbox.connection)
    eventually(
        lambda: all(
            {"run_recovered", "check_recovered"} <= {each["kind"] for each in alerts() if each["outbox"] == name}
            for name in TABLES
        ),
        "both harvest",
        seconds=240,
    )
    told = Counter(identity(each) for each in alerts("run_failed", "run_recovered", "check_failed"))
    assert not {each: times for each, times in told.items() if times > 1 + repeatable[each]}
    for name, table in TABLES.items():
        failed = {each["run_id"] for each in alerts("run_failed") if each["outbox"] == name}
        eventually(lambda name=name, failed=failed: failed == failed_runs(platform, name))
        unreadable = next(each for each in alerts("check_failed") if each["outbox"] == name)
        assert unreadable["checks"] == ["backlog_age", "backlog_size", "parked", "leader"]
        assert f'relation "{table}" does not exist' in unreadable["text"]
        assert "harvest init" in unreadable["next_step"]
        statuses = Counter(tick.status for tick in ticks(platform, f"{name}_alerts"))
        assert statuses[TickStatus.FAILURE] == 0
        assert statuses[TickStatus.SKIPPED] > 0
    assert not any("something_else" in each["said"] for each in alerts())
