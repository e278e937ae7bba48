"""The supervisor's report: verdicts on parked records and leaders, and how seldom an idle outbox writes an event."""

from dataclasses import replace

import dagster as dg
import pytest
from dagster import DagsterInstance

from dagster_harvest.leading import LEADS_TAG, Leader, Leading, leaders_by_runs
from dagster_harvest.outbox_report import is_news, is_observed_again
from dagster_harvest.outbox_state import OutboxState, judged_leader, judged_parked, judged_state
from dagster_harvest.settings import OutboxSettings, Thresholds
from harvest_lib.errors import DatabaseAccessDenied
from harvest_lib.events import LeaderAcquired, LeaderFenced, LeaderRefreshed, LeaderRevoked
from harvest_lib.outbox.parking import ParkedSummary
from harvest_lib.subscriptions.backlog import Backlog

pytestmark = pytest.mark.quick

SHOP = OutboxSettings(name="shop", topics=["orders"])
OUTBOX = dg.AssetKey(["outbox", "shop_outbox"])
LED = Leader(process="host_42_1", since=1_700_000_000.0)
STATE = OutboxState(waiting=Backlog(records=0), parked=ParkedSummary(), leaders=[LED], notes=[], delivered=7)
TICKS_A_DAY = 86_400 // 10


def evaluations(state=STATE, thresholds=None, leaderless=0.0):
    verdicts = judged_state(
        state, SHOP.model_copy(update={"thresholds": thresholds or Thresholds()}), leaderless_seconds=leaderless
    )
    return {
        name: dg.AssetCheckEvaluation(
            asset_key=OUTBOX,
            check_name=name,
            passed=each.passed,
            severity=each.severity,
            metadata=each.metadata,
            description=each.description,
        )
        for name, each in verdicts.items()
    }


def aged(seconds):
    return evaluations(replace(STATE, waiting=Backlog(records=9, oldest_age_seconds=seconds)))


# -- verdicts


def test_a_parked_record_fails_with_its_topic_reason_and_the_command():
    parked = ParkedSummary(
        parked=2, held=5, ids=[7, 9], topics=["orders"], reasons=["too large"], oldest_age_seconds=61
    )
    verdict = judged_parked(parked)
    assert (verdict.passed, verdict.severity.value) == (False, "ERROR")
    assert verdict.description == "2 records of orders cannot be sent, with 5 records held behind: too large"
    shown = {name: value.value for name, value in verdict.metadata.items()}
    assert (shown["parked"], shown["held"], shown["first_ids"], shown["oldest_seconds"]) == (2, 5, "7, 9", 61)
    assert judged_parked(ParkedSummary()).passed
    assert judged_parked(ParkedSummary(parked=10_000, is_estimate=True)).description.startswith("at least 10,000")


def test_each_failed_check_has_commands_that_name_configuration_table_and_variable(monkeypatch):
    monkeypatch.delenv("HARVEST_CONFIG", raising=False)
    parked = replace(STATE, parked=ParkedSummary(parked=1), leaders=[None])
    late = replace(parked, waiting=Backlog(records=10**9, oldest_age_seconds=1e6))
    shop = OutboxSettings(
        name="shop", topics=["orders"], table="sales.outbox", config_file="/etc/a b.yaml", dsn_variable="SHOP_DSN"
    )
    steps = {
        name: each.metadata["next_step"].value
        for name, each in judged_state(late, shop, leaderless_seconds=61.0).items()
    }
    place = """HARVEST_OUTBOX_TABLE=sales.outbox HARVEST_DSN="$SHOP_DSN" harvest"""
    for name, words in {
        "backlog_age": "status",
        "backlog_size": "status",
        "parked": "park list",
        "leader": "check",
    }.items():
        assert f"`{place} {words} -f '/etc/a b.yaml'`" in steps[name]
    simple = judged_state(parked, SHOP, leaderless_seconds=0.0)["parked"]
    assert "`harvest park list`" in simple.metadata["next_step"].value


def test_parked_records_that_cannot_be_read_fail_that_check_alone():
    denied = DatabaseAccessDenied("may not read outbox_parked", evidence="seen", next_step="GRANT SELECT")
    found = evaluations(replace(STATE, parked=denied))
    assert {name for name, each in found.items() if not each.passed} == {"parked"}
    assert found["parked"].metadata["next_step"].value == "GRANT SELECT"


@pytest.mark.parametrize(("seconds", "passed"), [(0, True), (59.9, True), (60, False)])
def test_a_shard_without_a_leader_fails_after_a_minute(seconds, passed):
    verdict = judged_leader([LED, None], ["no harvester runs now"], seconds)
    assert (verdict.passed, verdict.severity.value) == (passed, "ERROR")
    assert "shard 1 has had no known leader" in verdict.description
    assert "no harvester runs now" in verdict.description


def test_a_leader_is_shown_by_its_process_and_since_when():
    verdict = judged_leader([LED, LED], [], 0.0)
    assert verdict.passed
    assert verdict.description == "leader: host_42_1"
    assert verdict.metadata["leads_since"].value == LED.since


def test_where_no_leader_can_be_known_none_is_missed():
    verdict = judged_leader([], ["`leadership: solo` stores no leader"], 3600.0)
    assert verdict.passed
    assert verdict.metadata["leader"].value == "unknown"


# -- news


def test_a_number_that_grows_while_it_fails_is_never_shown_by_more_than_a_twentieth_too_low():
    shown, events = 39.0, 0
    for tick in range(TICKS_A_DAY):
        seconds = 39.0 + 10 * tick
        before, now = aged(shown)["backlog_age"], aged(seconds)["backlog_age"]
        if is_news(before, now, seconds=10.0):
            shown, events = seconds, events + 1
        assert now.passed or seconds - shown <= 0.05 * seconds
    assert events < 200


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (aged(0), aged(60)),
        (aged(60), aged(600)),
        (aged(600), aged(0)),
    ],
)
def test_a_verdict_that_changes_is_news_at_once(before, now):
    assert is_news(before["backlog_age"], now["backlog_age"], seconds=0.0)


def test_another_leader_is_news():
    other = replace(STATE, leaders=[Leader(process="host_43_1")])
    assert is_news(evaluations()["leader"], evaluations(other)["leader"], seconds=0.0)
    assert not is_news(evaluations()["leader"], evaluations()["leader"], seconds=10.0)
    assert is_news(None, evaluations()["leader"], seconds=0.0)


def test_a_busy_outbox_below_its_thresholds_is_reported_each_five_minutes_at_most():
    thresholds = Thresholds(backlog_warn_records=100)
    few, many = (
        evaluations(replace(STATE, waiting=Backlog(records=records)), thresholds)["backlog_size"] for records in (0, 90)
    )
    assert not is_news(few, many, seconds=290.0)
    assert is_news(few, many, seconds=300.0)


def test_a_day_of_an_idle_outbox_writes_less_than_a_quarter_of_a_megabyte(tmp_path):
    """All checks and the observation; the runs' own reports have a budget in `test_numbers`."""
    reported, observed, events = dict.fromkeys(evaluations(), -86_400.0), -86_400.0, []
    for tick in range(TICKS_A_DAY):
        now = 10.0 * tick
        for name, evaluation in evaluations().items():
            if is_news(evaluation, evaluation, seconds=now - reported[name]):
                reported[name] = now
                events.append(evaluation)
        if is_observed_again(has_changed=False, seconds=now - observed):
            observed = now
            columns = [dg.TableColumn(f"column_{each}", "timestamp with time zone") for each in range(10)]
            numbers = dict.fromkeys(("backlog_records", "backlog_age_seconds", "parked_records", "held_records"), 0)
            metadata = {**numbers, "dagster/column_schema": dg.TableSchema(columns=columns), "leader": "h" * 60}
            events.append(dg.AssetObservation(asset_key=OUTBOX, metadata=metadata))
    assert len(events) == 4 * 12 + 24
    with DagsterInstance.local_temp(str(tmp_path)) as instance:
        sizes = {type(each): size_of(instance, each) for each in (events[0], events[-1])}
    assert sum(sizes[type(each)] for each in events) < 250_000, sizes


def size_of(instance, event):
    """Return the bytes that Dagster stores for an event. It stores an evaluation of a check twice."""
    instance.report_runless_asset_event(event)
    if isinstance(event, dg.AssetObservation):
        return len(dg.serialize_value(instance.fetch_observations(OUTBOX, limit=1).records[0].event_log_entry))
    key = dg.AssetCheckKey(OUTBOX, event.check_name)
    record = instance.event_log_storage.get_latest_asset_check_execution_by_key([key])[key]
    return 2 * len(dg.serialize_value(record.event))


# -- leaders by their runs


@pytest.fixture
def instance():
    with DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


@dg.job(name="shop_harvester_daemon")
def daemon():
    pass


def test_a_run_tells_the_shards_that_it_leads_and_only_changes(instance):
    run = instance.create_run_for_job(daemon, status=dg.DagsterRunStatus.STARTED)
    leading = Leading("host_42_1")

    def told(*events):
        for event in events:
            leading.hear(event)
        leading.tell(instance, run.run_id)
        return {shard: each.process for shard, each in leaders_by_runs(instance, SHOP).items()}

    one = "00000000-0000-0000-0000-000000000001"
    assert told() == {}
    assert told(LeaderAcquired(leader_id=one), LeaderAcquired(leader_id=one, shard=2)) == {
        0: "host_42_1",
        2: "host_42_1",
    }
    tag = instance.get_run_by_id(run.run_id).tags[LEADS_TAG]
    assert told(LeaderRefreshed(leader_id=one)) == {0: "host_42_1", 2: "host_42_1"}
    assert instance.get_run_by_id(run.run_id).tags[LEADS_TAG] == tag
    assert told(LeaderRevoked(shard=2)) == {0: "host_42_1"}
    assert told(LeaderFenced()) == {}


def test_only_runs_that_live_lead(instance):
    run = instance.create_run_for_job(daemon, status=dg.DagsterRunStatus.STARTED)
    leading = Leading("host_42_1")
    leading.hear(LeaderAcquired(leader_id="00000000-0000-0000-0000-000000000001"))
    leading.tell(instance, run.run_id)
    assert 0 in leaders_by_runs(instance, SHOP, {run.run_id})
    assert leaders_by_runs(instance, SHOP, set()) == {}, "it has sent no heartbeat"
    instance.report_run_failed(run)
    assert leaders_by_runs(instance, SHOP) == {}
