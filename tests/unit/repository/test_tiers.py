"""Each test is in one tier, named in its module: one that was forgotten would run nowhere."""

import ast
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
