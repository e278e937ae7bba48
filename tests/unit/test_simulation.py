"""The product in the simulation: no seed breaks a promise, and builds that are broken on purpose do."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harvest_lib.cli import app
from harvest_lib.errors import FOUND_EXIT_CODE
from tests.simulation.mutations import MUTATIONS
from tests.simulation.plan import MODES
from tests.simulation.run import run

pytestmark = pytest.mark.quick

SEEDS, BLOCK = 1_000, 100
FEW = 20
"""So many of each mode run with the ordinary tests."""
MOST = 400
"""So many seeds at most until a broken build is noticed."""


@pytest.mark.parametrize("mode", MODES)
def test_a_few_seeds_of_each_mode_break_no_promise(mode):
    for seed in range(FEW):
        outcome = run(seed, (mode,))
        assert not outcome.broken, outcome.text


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_no_seed_breaks_a_promise(first):
    for seed in range(first, first + BLOCK):
        outcome = run(seed)
        assert not outcome.broken, outcome.text


@pytest.mark.parametrize("seed", range(1_000, 1_000 + len(MODES)))
def test_a_seed_does_the_same_again(seed):
    once, again = run(seed), run(seed)
    assert once.history.events == again.history.events
    assert once.turns == again.turns
    assert any(event["kind"] == "acknowledge" for event in once.history.events)


@pytest.mark.gate(cases=6)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.name)
def test_a_broken_build_is_noticed(mutation):
    for seed in (mutation.seed, *range(MOST)):
        with mutation.applied():
            outcome = run(seed, mutation.modes)
        if outcome.broken:
            whole = run(seed, mutation.modes)
            assert not whole.broken, whole.text
            return
    pytest.fail(f"not noticed in {MOST} seeds")


def test_the_command_says_which_seed_failed_and_writes_its_history(tmp_path):
    mutation = next(each for each in MUTATIONS if each.name == "late transactions are forgotten")
    arguments = ["chaos", "--simulate", "--seed", "25", "--seeds", "12", "--json", "--histories", str(tmp_path)]
    with mutation.applied():
        failed = CliRunner().invoke(app, arguments)
    assert failed.exit_code == FOUND_EXIT_CODE
    report = json.loads(failed.output)["failed"][0]
    history = [json.loads(line) for line in Path(report["history"]).read_text().splitlines()]
    assert Path(report["history"]).name == f"seed-{report['plan']['seed']}.jsonl"
    assert history[-1]["kind"] == "poll"
    passed = CliRunner().invoke(app, arguments)
    assert (passed.exit_code, json.loads(passed.output)["failed"]) == (0, [])
