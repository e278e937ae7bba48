"""What `make test-faults` runs is there: a module that was renamed would run twice, or nowhere."""

from pathlib import Path

import pytest
from support.fault_modules import FOLDERS, MODULES, is_of_faults

pytestmark = pytest.mark.quick

TESTS = Path(__file__).parents[2]


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_that_is_listed_is_there(module):
    assert (TESTS / f"{module}.py").is_file()


def test_every_test_is_of_one_of_both():
    found = [is_of_faults(path) for path in TESTS.rglob("test_*.py")]
    assert sum(found) >= len(MODULES) + len(FOLDERS)
    assert not all(found)
    assert not is_of_faults(Path("/elsewhere/test_elsewhere.py"))
