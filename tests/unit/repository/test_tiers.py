"""Each test is in one tier, named in its module: one that was forgotten would run nowhere."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.tiers import NO_TIER_NEEDED, TIERS, read_tiers, tiers_in

pytestmark = pytest.mark.quick

TESTS = Path(__file__).parents[2]
MODULES = sorted(path for path in TESTS.rglob("test_*.py") if path.parent.name != "e2e")


def test_each_test_is_in_one_tier():
    found = {
        f"{path.relative_to(TESTS)}::{test}": tiers for path in MODULES for test, tiers in read_tiers(path).items()
    }
    assert len(found) > 1000
    assert [path for path in MODULES if not read_tiers(path)] == [], "a test module without a test"
    assert [name for name, tiers in found.items() if "e2e" in tiers] == [], "they run from tests/e2e alone"
    # One that is `long` runs by that mark alone.
    assert [name for name, tiers in found.items() if len(tiers & {*TIERS}) != 1 and not tiers & NO_TIER_NEEDED] == []
    assert {tier for tiers in found.values() for tier in tiers} >= {*TIERS}
    assert list(TESTS.rglob("*_test.py")) == [], "pytest would take it, and nothing here looks into it"


def test_a_test_without_a_tier_is_found():
    assert tiers_in(ast.parse("def test_one():\n    pass\n")) == {"test_one": set()}


@pytest.mark.parametrize(
    "source",
    [
        "from support import marks\npytestmark = marks.gate\ndef test_one(): ...\n",
        "from pytest import mark as m\n@m.gate\ndef test_one(): ...\n",
        "async def test_one(): ...\n",
        "if True:\n    def test_one(): ...\n",
    ],
)
def test_a_tier_that_is_spelled_otherwise_or_a_test_that_stands_elsewhere_is_found(source):
    assert tiers_in(ast.parse(source)) == {"test_one": set()}


def test_a_machine_of_hypothesis_is_a_test():
    source = "pytestmark = pytest.mark.quick\nTestPool = Machine.TestCase\n"
    assert tiers_in(ast.parse(source)) == {"TestPool.runTest": {"quick"}}


def test_the_closest_mark_counts():
    source = (
        "pytestmark = [pytest.mark.spark, pytest.mark.full]\n"
        "def test_one(): ...\n"
        "@pytest.mark.quick\ndef test_two(): ...\n"
        "@pytest.mark.gate\nclass TestThree:\n"
        "    def test_four(self): ...\n"
        "    @pytest.mark.long\n    def test_five(self): ...\n"
    )
    assert tiers_in(ast.parse(source)) == {
        "test_one": {"full"},
        "test_two": {"quick"},
        "TestThree.test_four": {"gate"},
        "TestThree.test_five": {"gate", "long"},
    }


CONFTEST = """
from support.tiers import pytest_addoption, select
def pytest_collection_modifyitems(config, items):
    select(config, items)
"""
CASES = """
import pytest
pytestmark = pytest.mark.gate(cases=2)
@pytest.mark.parametrize("number", range(5))
def test_five(number): ...
def test_one(): ...
@pytest.mark.gate
@pytest.mark.parametrize("number", range(5))
def test_all(number): ...
@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.full)])
def test_marked(number): ...
"""


@pytest.mark.parametrize(
    ("tiers", "found"),
    [
        (["gate"], {"five": "02", "one": [""], "all": "01234", "marked": "0"}),
        (["full"], {"five": "134", "marked": "1"}),
        (["gate", "full"], {"five": "01234", "one": [""], "all": "01234", "marked": "01"}),
    ],
)
def test_some_cases_of_a_test_may_run_in_the_last_tier_only(tmp_path, tiers, found):
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_cases.py").write_text(CASES)
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", str(tmp_path)]
    done = subprocess.run(
        [*command, *(argument for tier in tiers for argument in ("--tier", tier))],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TESTS), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    names = [line.partition("::test_")[2] for line in done.stdout.splitlines() if "::" in line]
    assert names == [f"{name}[{case}]" if case else name for name, cases in found.items() for case in cases]
    assert tiers_in(ast.parse(CASES)) == {f"test_{each}": {"gate"} for each in ("five", "one", "all", "marked")}
