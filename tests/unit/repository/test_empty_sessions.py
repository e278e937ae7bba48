"""Sessions of tests that prove nothing do not succeed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gate

TESTS = Path(__file__).parents[2]
SKIPPED = "import pytest\n\n\ndef test_one():\n    pytest.skip('lacks a program')\n"
PASSED = "def test_two():\n    pass\n"


@pytest.mark.gate(cases=3)
@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["one process", "a worker"])
@pytest.mark.parametrize(("tests", "code"), [(SKIPPED, 5), (SKIPPED + PASSED, 0), ("", 5)])
def test_a_session_succeeds_only_if_a_test_has_passed(tmp_path, workers, tests, code):
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text("from support.nothing_ran import pytest_sessionfinish\n")
    (tmp_path / "test_it.py").write_text(tests)
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    for name in [each for each in environment if each.startswith("PYTEST_")]:
        del environment[name]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *workers, str(tmp_path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert ("all were skipped" in done.stdout) == (tests == SKIPPED)


def test_the_tests_of_this_repository_are_held_to_it():
    assert "from support.nothing_ran import pytest_sessionfinish" in (TESTS / "conftest.py").read_text()
