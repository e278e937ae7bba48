"""Promises of faults that the checker of histories does not look at."""

import json
import random
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from harvest_lib.cli import app
from harvest_lib.errors import NothingChecked
from harvest_lib.native import Implementation
from infra.chaos.aftermath import Aftermath, led_within, nothing_repeats
from infra.chaos.checker import AnomalyFinding, HistoryVerdict
from infra.chaos.faults import FAULTS, Fault
from infra.chaos.history.events import Poll, PolledRecord, TermEvent
from infra.chaos.history.writer import HistoryWriter
from infra.chaos.report import document, proved_nothing, unexplained
from infra.chaos.run import ChaosPlan, InjectedFault, Outcome, UnderFire, not_kept
from infra.chaos.system import SystemMode
from infra.chaos.under_load import UnderLoad

pytestmark = pytest.mark.quick

SECONDS = 20.0


def term(at, process, leader_id):
    return TermEvent(type="invoke", process=process, time=at, wall=at, leader_id=leader_id, shard=0)


def read(leader_id, offset):
    record = PolledRecord("chaos", 0, offset, "event", 1, "key", 1, "hash", leader_id)
    return Poll(type="ok", process="reader", time=90.0, wall=90.0, isolation="uncommitted", records=(record,))


def copied(first, again):
    events = (read(first, 1), read(again, 2))
    return AnomalyFinding(name="duplicate-cross-epoch", explained=True, sentence="it stands there twice", events=events)


def after(*terms, leader="one", copies=()):
    return Aftermath(at=50.0, leader=leader, terms=terms, copies=copies)


def test_another_that_leads_in_time_is_what_was_promised():
    assert led_within(SECONDS)(after(term(40, "one", "a"), term(69, "two", "b"))) is None


def test_another_that_leads_too_late_is_not():
    said = led_within(SECONDS)(after(term(40, "one", "a"), term(71, "two", "b")))
    assert said == "two led 21.0 s after the fault of one, not within 20 s"


def test_nobody_who_leads_is_not():
    assert led_within(SECONDS)(after(term(40, "one", "a"), term(51, "one", "b"))) == "no harvester led after one"


def test_who_did_not_lead_any_more_is_succeeded_by_nobody():
    assert led_within(SECONDS)(after(term(40, "one", "a"), term(45, "two", "b"))) is None
    assert led_within(SECONDS)(after(leader="")) is None


def test_what_the_leader_had_sent_is_not_sent_again():
    terms = term(40, "one", "a"), term(51, "one", "b"), term(53, "two", "c")
    for last in ("a", "b"):
        said = nothing_repeats(after(*terms, copies=[copied(last, "c")]))
        assert said == "of what one had sent something was sent again: it stands there twice"


def test_copies_of_other_terms_are_not_of_its_making():
    terms = term(30, "one", "before"), term(40, "one", "a"), term(53, "two", "c"), term(60, "two", "d")
    copies = [copied("c", "d"), copied("before", "c"), copied("a", "a")]
    assert nothing_repeats(after(*terms, copies=copies)) is None


MARK_BARRIER = SystemMode(source="mark", delivery="barrier")


def outcome(*terms, fault, copies=(), mode=MARK_BARRIER):
    injected = [InjectedFault(fault=fault, leader="one", at=50.0, seconds=2.0, recovery_seconds=1.0)]
    verdict = HistoryVerdict(
        events=3, explained={"duplicate-cross-epoch": len(copies)}, unexplained={}, findings=copies
    )
    return Outcome(
        plan=ChaosPlan(seed=1, seconds=9.0, mode=mode),
        history=Path("history"),
        committed=3,
        delivered=3,
        handed_over_natively=3,
        seconds=10.0,
        fire_seconds=9.0,
        injected=injected,
        verdict=verdict,
        broken=not_kept(injected, terms, verdict),
    )


def test_what_was_not_kept_counts_as_unexplained_and_is_shown():
    found = outcome(term(40, "one", "a"), term(75, "two", "b"), fault="leader-killed")
    assert unexplained(found) == 1
    shown = document([found], {})
    assert shown["unexplained"] == 1
    assert [(each["name"], each["fault"]) for each in shown["runs"][0]["findings"]] == [
        ("promise-broken", "leader-killed")
    ]


def proves(outcome, monkeypatch, folder):
    """Run the command, of which this comes."""
    monkeypatch.setattr("infra.chaos.run.run", lambda *_: outcome)
    options = ["chaos", "--faults", "leader-killed", "--mode", "mark/barrier", "--histories", str(folder)]
    return CliRunner().invoke(app, [*options, "--json"])


@pytest.mark.parametrize(
    ("lacking", "said"),
    [
        ({"injected": []}, "no fault was injected"),
        ({"committed": 0, "delivered": 0}, "no record was committed"),
        ({"delivered": 0}, "no record was delivered"),
    ],
)
def test_a_run_in_which_nothing_was_at_stake_proves_nothing(lacking, said, monkeypatch, tmp_path):
    whole = outcome(term(40, "one", "a"), term(52, "two", "b"), fault="leader-killed")

    proved = proves(whole, monkeypatch, tmp_path)
    assert proved.exit_code == 0, proved.output
    assert json.loads(proved.stdout)["proved_nothing"] == []
    empty = proves(replace(whole, **lacking), monkeypatch, tmp_path)
    assert f"mark/barrier, native: {said}" in json.loads(empty.stdout)["proved_nothing"]
    assert isinstance(empty.exception, NothingChecked)
    assert said in str(empty.exception)


@pytest.mark.parametrize(
    ("source", "delivery", "hand_over", "count", "is_lacking"),
    [
        ("snapshot", "pipelined", "native", 0, True),
        ("snapshot", "pipelined", "native", 5, False),
        ("snapshot", "pipelined", "python", 0, False),
        ("transaction_id", "sequenced", "native", 0, True),
        ("snapshot", "barrier", "native", 0, True),
        ("mark", "pipelined", "native", 0, True),
        ("mark", "transactional", "native", 0, True),
    ],
)
def test_a_native_run_in_which_python_did_the_work_proves_nothing(source, delivery, hand_over, count, is_lacking):
    mode = SystemMode(source=source, delivery=delivery, hand_over=hand_over)
    ran = replace(outcome(fault="leader-killed", mode=mode), handed_over_natively=count)
    said = f"{source}/{delivery}, {hand_over}: no record was handed over natively"
    assert proved_nothing([ran]) == ([said] if is_lacking else [])


@pytest.mark.parametrize(
    ("available", "impl", "runs"),
    [
        ("native", "both", ["native", "python"]),
        ("native", "native", ["native"]),
        ("native", "python", ["python"]),
        ("python", "both", ["python"]),
        ("python", "python", ["python"]),
    ],
)
def test_each_mode_has_half_of_its_time_by_each_implementation(monkeypatch, tmp_path, available, impl, runs):
    plans = []

    def run(plan, *_):
        plans.append(plan)
        return replace(outcome(fault="leader-killed"), plan=plan, fire_seconds=plan.seconds)

    monkeypatch.setattr("infra.chaos.run.run", run)
    monkeypatch.setattr("harvest_lib.native.implementation", lambda: Implementation(name=available, reason="so"))
    options = ["--mode", "mark/barrier", "--faults", "leader-killed", "--impl", impl, "--duration", "60s"]
    options += ["--histories", str(tmp_path), "--json"]
    assert CliRunner().invoke(app, ["chaos", *options]).exit_code in {0, 1}
    assert [plan.mode.hand_over for plan in plans] == runs
    assert [plan.seconds for plan in plans] == [60 / len(runs)] * len(runs)


def test_what_cannot_be_had_is_a_usage_error(monkeypatch):
    monkeypatch.setattr(
        "harvest_lib.native.implementation", lambda: Implementation(name="python", reason="no compiler")
    )
    result = CliRunner().invoke(app, ["chaos", "--faults", "leader-killed", "--impl", "native"])
    assert result.exit_code == 2
    assert "no compiler" in result.output


def test_what_was_allowed_of_a_killed_leader_is_not_of_one_that_was_released():
    terms = term(40, "one", "a"), term(52, "two", "b")
    assert unexplained(outcome(*terms, fault="leader-killed", copies=(copied("a", "b"),))) == 0
    assert unexplained(outcome(*terms, fault="leader-released", copies=(copied("a", "b"),))) == 1


def test_who_led_is_remembered_though_another_process_takes_the_place(monkeypatch, tmp_path):
    leader = SimpleNamespace(process_name="101")
    system = SimpleNamespace(leader=leader, happened=[], await_members=lambda: None)

    @contextmanager
    def inject(*_):
        yield
        leader.process_name = "102"

    monkeypatch.setitem(FAULTS, "replaced", Fault(promise="", inject=inject, seconds=(0, 0)))
    with HistoryWriter(tmp_path / "faults.jsonl") as history:
        load = UnderLoad(
            system=system, writers=None, follower=None, read=None, write=None, answered=set(), faults=history
        )
        monkeypatch.setattr(UnderLoad, "recover", lambda _: None)
        under_fire = UnderFire(plan=None, schedule=None, load=load, say=str)
        assert under_fire._inject("replaced", random.Random(1)).leader == "101"
