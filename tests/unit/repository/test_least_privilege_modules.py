"""No test module is forgotten: each runs under least privilege, or says why it does not."""

from pathlib import Path

import pytest
from support.least_modules import EXEMPT, IN_POSTGRES_ALONE, RUN, module_of

pytestmark = pytest.mark.quick

TESTS = Path(__file__).parents[2]
MODULES = {module_of(path) for folder in ("integration", "contract") for path in (TESTS / folder).rglob("test_*.py")}


def test_each_module_runs_or_has_a_reason():
    exempt = {name for name in EXEMPT if "::" not in name}
    assert exempt | RUN == MODULES
    assert exempt & RUN == set()
    assert IN_POSTGRES_ALONE.keys() <= RUN
    assert all((EXEMPT | IN_POSTGRES_ALONE).values())


@pytest.mark.parametrize("name", sorted(name for name in EXEMPT if "::" in name) or ["none"])
def test_the_tests_that_are_exempt_are_there(name):
    if name == "none":
        return
    module, test = name.split("::")
    assert module in RUN
    assert f"\ndef {test}(" in (TESTS / f"{module}.py").read_text(encoding="utf-8")
