"""Decisions of the supervisor: exactly one run, whatever Dagster believes."""

from dataclasses import replace

import pytest

from dagster_harvest.decisions import (
    DaemonRun,
    GiveUp,
    HandOver,
    Keep,
    Start,
    Unknown,
    Wait,
    backoff_seconds,
    decide,
    is_at_work,
)
from dagster_harvest.heartbeat import Heartbeat
from dagster_harvest.settings import DaemonSettings

pytestmark = pytest.mark.quick

NOW = 1_000_000.0
SETTINGS = DaemonSettings(
    stale_after_seconds=15,
    first_backoff_seconds=5,
    longest_backoff_seconds=60,
    start_within_seconds=100,
    healthy_after_seconds=300,
)


def run(generation, phase, ago=0.0, lived=None, run_id=None):
    began = None if lived is None else NOW - ago - lived
    return DaemonRun(
        run_id=run_id or f"run-{generation}", generation=generation, phase=phase, changed_at=NOW - ago, began_at=began
    )


def heartbeat(generation, *, age=1.0, run_id=None, is_stopped=False):
    return Heartbeat(
        run_id=run_id or f"run-{generation}",
        generation=generation,
        host="here",
        pid=7,
        age_seconds=age,
        is_stopped=is_stopped,
    )


def decided(runs, last_beat=None):
    return decide(runs, last_beat, now=NOW, settings=SETTINGS)


def test_the_first_generation_starts_at_once():
    assert decided([]) == Start(generation=1, failures=0, reason="no run has begun yet")


def test_a_living_run_is_kept_and_no_second_one_begins():
    assert isinstance(decided([run(1, "started", 3600)], heartbeat(1, age=14.9)), Keep)


def by_version(version, present, *, phase="started", age=1.0, **about):
    of = replace(run(1, phase, 3600), version=version, **about)
    return decide([of], heartbeat(1, age=age), now=NOW, settings=SETTINGS, version=present)


def test_a_living_run_of_another_version_is_to_hand_over_once():
    decision = by_version("0.1+a", "0.1+b")
    assert isinstance(decision, HandOver)
    assert "0.1+a" in decision.reason and "0.1+b" in decision.reason  # noqa: PT018
    again = by_version("0.1+a", "0.1+b", is_leaving=True)
    assert isinstance(again, Keep)
    assert not again.is_alive
    assert "0.1+a" in again.reason


def test_a_run_is_kept_whose_version_is_present_or_not_known_or_that_ends_already():
    assert by_version("0.1+a", "0.1+a").is_alive
    assert by_version(None, "0.1+a").is_alive
    assert by_version("0.1+a", None).is_alive
    ending = by_version("0.1+a", "0.1+b", phase="canceling")
    assert isinstance(ending, Keep)
    assert not ending.is_alive, "another of its pool stays until it is replaced"
    assert isinstance(by_version("0.1+a", "0.1+b", phase="queued"), Keep)
    assert isinstance(by_version("0.1+a", "0.1+b", age=15.0), GiveUp)


def test_a_run_that_does_not_beat_is_given_up_though_dagster_believes_it_started():
    decision = decided([run(1, "started", 3600)], heartbeat(1, age=15.0))
    assert isinstance(decision, GiveUp)
    assert decision.run_id == "run-1"
    assert not decision.was_canceled
    assert "15.0 s ago" in decision.reason


def test_after_a_run_was_given_up_the_next_generation_begins_at_once():
    """It died at its last heartbeat: the first backoff has passed since."""
    decision = decided([run(1, "failed", 0.0, lived=3600)], heartbeat(1, age=16.0))
    assert isinstance(decision, Start)
    assert (decision.generation, decision.failures) == (2, 1)


@pytest.mark.parametrize(
    ("failed", "delay"), [(1, 5.0), (2, 10.0), (3, 20.0), (4, 40.0), (5, 60.0), (6, 60.0), (2000, 60.0)]
)
def test_the_backoff_doubles_up_to_its_limit(failed, delay):
    assert backoff_seconds(failed, SETTINGS) == delay


@pytest.mark.parametrize(("ago", "kind"), [(9.9, Wait), (10.0, Start)])
def test_after_two_failures_the_second_backoff_is_kept(ago, kind):
    runs = [run(1, "failed", ago + 20, lived=1), run(2, "failed", ago, lived=1)]
    decision = decided(runs, heartbeat(2, age=ago, is_stopped=True))
    assert isinstance(decision, kind)
    assert decision.failures == 2


def test_the_order_in_which_runs_are_listed_is_nothing():
    runs = [run(1, "failed", 60), run(3, "failed", 2), run(2, "canceled", 30)]
    assert decided(runs) == decided(runs[::-1])
    assert decided(runs).failures == 1


def test_a_long_life_ends_a_row_of_failures():
    runs = [run(1, "failed", 900, lived=1), run(2, "failed", 6, lived=300), run(3, "failed", 5, lived=1)]
    assert decided(runs).failures == 2


def test_a_run_that_has_delivered_ends_a_row_of_earlier_failures():
    """Six failures of another cause, a run that delivers for 71 s, then a kill."""
    failing = [run(generation, "failed", 400 - 40 * generation, lived=1) for generation in range(1, 7)]
    killed = replace(run(7, "failed", 0.0, lived=71), has_worked=True)
    decision = decided([*failing, killed], heartbeat(7, age=16.0))
    assert decision == Start(generation=8, failures=1, reason="after 1 failed in a row")
    assert isinstance(decided([*failing, replace(killed, has_worked=False)], heartbeat(7, age=16.0)), Wait)


def after_failures(*versions, present):
    """Decide at the time of the last of failures, of which each was of the given version, the oldest first."""
    runs = [replace(run(number, "failed", 0.0, lived=1), version=each) for number, each in enumerate(versions, 1)]
    return decide(runs, heartbeat(len(runs), age=0.0, is_stopped=True), now=NOW, settings=SETTINGS, version=present)


def test_a_changed_version_ends_the_backoff():
    """Whoever has corrected the configuration or the code sees it run at once."""
    decision = after_failures(*["0.1+a"] * 6, present="0.1+b")
    assert isinstance(decision, Start)
    assert (decision.generation, decision.failures) == (7, 0)
    assert "0.1+a" in decision.reason and "0.1+b" in decision.reason  # noqa: PT018


def test_only_failures_of_the_present_version_are_counted():
    assert after_failures(*["0.1+a"] * 6, "0.1+b", present="0.1+b").failures == 1
    assert after_failures("0.1+b", "0.1+a", "0.1+b", present="0.1+b").failures == 1
    assert after_failures(*["0.1+b"] * 3, present="0.1+b").failures == 3


def test_a_configuration_that_cannot_be_read_is_a_version_too():
    """A run that began while it could not be read has no version."""
    assert after_failures(None, None, present="0.1+a").failures == 0
    assert after_failures("0.1+a", "0.1+a", present=None).failures == 0
    decision = after_failures(None, None, present=None)
    assert isinstance(decision, Wait)
    assert decision.failures == 2


def test_a_failure_after_one_that_has_delivered_counts_anew():
    failing = [run(generation, "failed", 400, lived=1) for generation in range(1, 7)]
    runs = [*failing, replace(run(7, "failed", 20, lived=71), has_worked=True), run(8, "failed", 5, lived=1)]
    assert decided(runs).failures == 2


def test_a_run_that_was_terminated_is_followed_at_once():
    decision = decided([run(1, "failed", 9), run(2, "canceled", 0.1)], heartbeat(2, is_stopped=True))
    assert decision == Start(generation=3, failures=0, reason="the last run has canceled")


def test_a_run_that_was_reported_failed_while_its_process_lives_is_not_joined_by_a_second():
    decision = decided([run(1, "failed", 60)], heartbeat(1, age=3.0))
    assert isinstance(decision, Wait)
    assert decision.seconds == 12.0
    assert "still sends heartbeats" in decision.reason


def test_a_living_run_that_dagster_has_forgotten_is_not_joined_by_a_second():
    decision = decided([], heartbeat(8, age=3.0))
    assert isinstance(decision, Wait)
    assert decided([], heartbeat(8, age=20.0)).generation == 9


@pytest.mark.parametrize("phase", ["queued", "starting"])
def test_a_run_on_its_way_is_waited_for(phase):
    assert isinstance(decided([run(1, "failed", 500), run(2, phase, 99)], heartbeat(1, age=500)), Keep)


def test_a_run_that_was_launched_and_never_came_is_given_up():
    assert isinstance(decided([run(2, "starting", 100)]), GiveUp)
    assert isinstance(decided([run(2, "queued", 100)]), Keep), "a queue is its owner's"


def test_a_run_that_is_queued_for_long_names_the_next_step():
    assert decided([run(2, "queued", 99)]).reason == "queued for 99 s"
    reason = decided([run(2, "queued", 100)]).reason
    assert reason.startswith("queued for 100 s")
    assert "max_concurrent_runs" in reason
    assert "dagster/priority" in reason


ROTATING = SETTINGS.model_copy(update={"rotate_after_hours": 2})


def lived(hours, settings=ROTATING, age=1.0, present="0.1+a", **about):
    old = replace(run(1, "started", hours * 3600, lived=0), version="0.1+a", **about)
    return decide([old], heartbeat(1, age=age), now=NOW, settings=settings, version=present)


def test_a_run_that_has_lived_for_long_hands_over():
    decision = lived(2)
    assert isinstance(decision, HandOver)
    assert decision.reason == "the run began 2.0 hours ago"
    assert lived(1.9).is_alive
    assert lived(2000, SETTINGS.model_copy(update={"rotate_after_hours": None})).is_alive
    asked = lived(2, is_leaving=True)
    assert isinstance(asked, Keep)
    assert not asked.is_alive
    assert isinstance(lived(2, age=15.0), GiveUp), "who is dead hands nothing over"
    assert lived(2, present=None).is_alive, "while the configuration cannot be read, no successor could start"


def test_a_run_that_began_gets_time_for_its_first_beat():
    """The row still names its predecessor."""
    assert isinstance(decided([run(2, "started", 29.9)], heartbeat(1, age=500)), Keep)
    assert isinstance(decided([run(2, "started", 30.0)], heartbeat(1, age=500)), GiveUp)


def test_a_run_that_died_while_it_was_canceled_is_reported_canceled():
    decision = decided([run(2, "canceling", 60)], heartbeat(2, age=20))
    assert isinstance(decision, GiveUp)
    assert decision.was_canceled
    assert isinstance(decided([run(2, "canceling", 5)], heartbeat(2, age=2)), Keep)


def test_while_nobody_can_ask_postgres_nothing_is_given_up():
    unknown = Unknown(reason="Postgres does not answer")
    decision = decided([run(1, "started", 3600)], unknown)
    assert isinstance(decision, Keep)
    assert "Postgres does not answer" in decision.reason


def test_while_nobody_can_ask_postgres_a_run_is_tried_so_that_it_says_what_is_wrong():
    assert isinstance(decided([], Unknown(reason="Postgres refused the login")), Start)


def test_a_generation_is_never_used_again():
    assert decided([run(4, "canceled", 1)], heartbeat(9, age=100)).generation == 10
    assert decided([run(12, "canceled", 1)], heartbeat(9, age=100)).generation == 13


@pytest.mark.parametrize(
    ("leads", "delivered", "waiting", "works"),
    [
        (True, 1, 500, True),
        (True, 1, None, True),
        (True, 0, 0, True),
        (True, 0, 500, False),
        (True, 0, None, False),
        (False, 0, 0, False),
        (False, 7, 0, False),
    ],
)
def test_a_run_works_that_leads_and_delivers_what_waits(leads, delivered, waiting, works):
    assert is_at_work(leads=leads, delivered=delivered, waiting=waiting) == works
