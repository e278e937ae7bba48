"""Faults of which the machine lacks something: left out and named, and an error where they must not be left out."""

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from harvest_lib.cli import app
from infra.chaos.faults import FAULTS, missing
from infra.chaos.schedule import Schedule
from infra.chaos.system import SystemMode

pytestmark = pytest.mark.full

LACKS = "there is no rain; install it"


@pytest.fixture(autouse=True)
def lacking(monkeypatch):
    """Have the machine lack what one fault needs, and nothing else."""
    for name, fault in FAULTS.items():
        monkeypatch.setitem(FAULTS, name, replace(fault, needs=lambda: None))
    monkeypatch.setitem(FAULTS, "leader-killed", replace(FAULTS["leader-killed"], needs=lambda: LACKS))
    monkeypatch.delenv("CI", raising=False)


def test_it_is_left_out_of_the_draw_and_named_with_what_is_lacking():
    assert missing(1) == {"leader-killed": LACKS}
    some = {name: FAULTS[name] for name in ("leader-frozen", "leader-killed", "leader-released")}
    schedule = Schedule(some, [SystemMode()], 1, seed=1)
    assert {schedule.next(SystemMode()) for _ in range(4)} == {"leader-frozen", "leader-released"}
    assert schedule.left_out() == {"leader-killed": LACKS}


def test_asked_for_by_name_it_is_a_usage_error():
    result = CliRunner().invoke(app, ["chaos", "--faults", "leader-frozen,leader-killed"])
    assert result.exit_code == 2
    assert "there is no rain" in result.output


@pytest.mark.parametrize(("options", "environment"), [(["--require-all"], {}), ([], {"CI": "true"})])
def test_where_nothing_may_be_left_out_it_is_an_error(options, environment):
    result = CliRunner().invoke(app, ["chaos", *options], env=environment)
    assert result.exit_code == 1
    assert LACKS in str(result.exception)
