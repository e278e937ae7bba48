"""The demo's verdict on its second act: green only when everything is."""

import io

import pytest
from rich.console import Console

from infra.demo.dagster_api import CheckResult
from infra.demo.progress import verdicts
from infra.demo.proof import Proof

pytestmark = pytest.mark.quick

PASSED = CheckResult(verdict="passed", description="0 of 842 records are lost")


def seen(**changes):
    known = {"url": "http://127.0.0.1:1", "checks": {"a:lost": PASSED}, "never_made": (), "daemon_runs": True}
    return Proof(**known | changes)


def test_all_made_all_passed_and_the_harvester_runs():
    assert seen().ok
    assert seen().document()["checks"] == {"a:lost": {"verdict": "passed", "description": PASSED.description}}


@pytest.mark.parametrize(
    "changes",
    [
        {"checks": {}},
        {"checks": {"a:lost": PASSED, "a:age": CheckResult(verdict="WARN")}},
        {"checks": {"a:lost": PASSED, "a:age": CheckResult(verdict="never")}},
        {"never_made": ("audit/a/verified",)},
        {"daemon_runs": False},
        {"failed": ("flights_load FAILURE: http://127.0.0.1:1/runs/7",)},
    ],
)
def test_anything_less_is_not_well(changes):
    assert not seen(**changes).ok


def test_the_table_names_what_is_missing():
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(verdicts(seen(never_made=("audit/a/verified",), daemon_runs=False).document()))
    text = console.export_text()
    for words in ("a:lost", "passed", PASSED.description, "audit/a/verified", "does not run"):
        assert words in text
