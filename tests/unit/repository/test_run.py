"""The runner of the tiers: a failed test runs once more, alone, and nothing that did not run counts as passed."""

import json
import os
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from unittest.mock import patch

import psutil
import pytest
from support.record import Record
from support.waiting import eventually

from harvest_lib.errors import StackError
from tests.run import _not_collected, main

pytestmark = pytest.mark.gate

ROOT = Path(__file__).parents[3]
CONFTEST = """
import pytest
from support import record, tiers
from support.limits import pytest_exception_interact
from support.tiers import pytest_runtest_setup

def pytest_addoption(parser):
    tiers.pytest_addoption(parser)
    record.pytest_addoption(parser)

def pytest_configure(config):
    record.register(config)

def pytest_collection_modifyitems(config, items):
    tiers.select(config, items)
"""
HEAD = """
import os, signal, time
from pathlib import Path
import pytest

pytestmark = pytest.mark.quick
FOLDER = Path(__file__).parent

def first_time(name):
    file = FOLDER / name
    file.touch(exist_ok=(had := file.exists()))
    return not had
"""
GOOD = "".join(f"def test_good_{number}():\n    pass\n" for number in range(8))
FLAKY = "def test_flaky_{0}():\n    assert not first_time('flaky-{0}'), 'a reason'\n"


@pytest.fixture
def suite(tmp_path):
    """Write a suite of a project's own; returns the command that runs it, and the environment."""
    # Plugins of other packages take longer to load than the tests to run.
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n quick\n gate\n full\naddopts = -p xdist.plugin -p pytest_timeout\n"
    )
    (tmp_path / "conftest.py").write_text(CONFTEST)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-k nothing"}
    environment |= {"HARVEST_HOME": str(tmp_path / "state"), "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}

    def write(body, limits=("60", "70", "80"), beside="", workers="1"):
        file = tmp_path / "test_it.py"
        file.write_text(HEAD + body)
        command = [
            sys.executable,
            "-m",
            "tests.run",
            "quick",
            "--limits",
            *limits,
            "--beside",
            beside,
            "--workers",
            workers,
            "--tests",
            str(file),
        ]
        return command, environment

    return write


@pytest.fixture
def run(tmp_path, suite, capfd):
    """Run a suite; returns its exit code with what it printed, and the list of flaky tests."""

    def finished(*arguments, **limits):
        command, environment = suite(*arguments, **limits)
        with patch.dict(os.environ, environment, clear=True), chdir(tmp_path):
            code = main(command[command.index("quick") :])
        file = tmp_path / "state" / "test" / "flaky.json"
        flaky = json.loads(file.read_text())["quick"] if file.exists() else None
        return subprocess.CompletedProcess(command, code, capfd.readouterr().out), flaky

    return finished


def test_what_passes_the_second_time_is_flaky_and_passes(run, tmp_path):
    file = tmp_path / "state" / "test" / "flaky.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"gate": {"test_other": "a reason"}}')
    done, flaky = run(GOOD + FLAKY.format(1), beside="echo clean")
    assert done.returncode == 0, done.stdout
    assert list(flaky) == ["test_it.py::test_flaky_1"]
    assert "flaky: test_it.py::test_flaky_1 (first: AssertionError: a reason" in done.stdout
    assert "9 passed, 0 failed, 0 skipped" in done.stdout
    assert "echo clean:\nclean\n" in done.stdout
    assert json.loads(file.read_text())["gate"] == {"test_other": "a reason"}, "a run of other tiers wrote it"


@pytest.mark.full
def test_what_fails_twice_or_is_skipped_then_fails_the_run(run):
    once = "def test_once():\n    if not first_time('once'):\n        pytest.skip('no')\n    assert 0\n"
    done, flaky = run(GOOD + once + "def test_bad():\n    assert 0, 'never'\n")
    assert (done.returncode, flaky) == (1, {})
    assert "failed: test_it.py::test_bad (AssertionError: never" in done.stdout
    assert "failed: test_it.py::test_once (it failed, then it was skipped)" in done.stdout


def test_what_runs_beside_the_tests_has_to_succeed_too(run):
    done, _ = run(GOOD, beside="echo unclean; exit 3")
    assert done.returncode == 1
    assert "\nunclean\n" in done.stdout
    assert "failed: echo unclean; exit 3 (" in done.stdout


@pytest.mark.full
def test_what_hangs_beside_the_tests_is_ended_with_all_it_started(run, tmp_path, monkeypatch):
    monkeypatch.setattr("tests.run.BESIDE_SECONDS", 1)
    number = tmp_path / "number"
    command = f"sleep 600 & echo $! > {number}; wait"
    done, _ = run(GOOD, beside=command)
    assert done.returncode == 1
    assert "(it did not end within 1 s of the tests)" in done.stdout
    eventually(lambda: not psutil.pid_exists(int(number.read_text())), "it ended")


def test_jars_that_cannot_be_brought_are_said_before_any_test(tmp_path, monkeypatch, capsys):
    def away(*_):
        raise StackError("the jars could not be brought", evidence="no route", next_step="check the network")

    monkeypatch.setenv("HARVEST_HOME", str(tmp_path))
    monkeypatch.setattr("tests.run.resolve", away)
    assert main(["quick"]) == 1
    printed = capsys.readouterr().out
    assert "failed: the run (the jars could not be brought" in printed
    assert "next: check the network" in printed


@pytest.mark.full
def test_a_session_that_ends_too_early_is_flaky(run):
    more = "".join(f"def test_more_{number}():\n    pass\n" for number in range(4))
    done, flaky = run(GOOD + "def test_ends():\n    if first_time('ends'):\n        pytest.exit('enough', 3)\n" + more)
    assert list(flaky) == ["the session"], done.stdout
    assert "flaky: the session (first: it ended too early (" in done.stdout


@pytest.mark.full
def test_a_folder_that_cannot_be_written_to_is_said(run, tmp_path):
    (tmp_path / "state").write_text("no folder")
    done, _ = run(GOOD)
    assert done.returncode == 1
    assert "failed: the run (" in done.stdout


@pytest.mark.full
def test_more_than_three_flaky_tests_fail_the_run(run):
    three = "".join(FLAKY.format(number) for number in range(3))
    assert run(GOOD + three)[0].returncode == 0
    four = "".join(FLAKY.format(number) for number in range(10, 14))
    done, flaky = run(GOOD + four)
    assert done.returncode == 1
    assert len(flaky) == 4


@pytest.mark.full
@pytest.mark.parametrize("end", ["os._exit(1)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_worker_that_dies_once_costs_nothing(run, end):
    done, flaky = run(f"def test_dies():\n    if first_time('dies'):\n        {end}\n" + GOOD, workers="2")
    assert done.returncode == 0, done.stdout
    # A session that ended with its worker cannot say which test failed.
    assert set(flaky) & {"test_it.py::test_dies", "the session"}
    assert set(flaky) <= {"test_it.py::test_dies", "the session"}
    assert "9 passed, 0 failed" in done.stdout


@pytest.mark.full
def test_a_worker_that_dies_twice_fails_the_run(run):
    done, _ = run("def test_dies():\n    os._exit(1)\n" + GOOD, workers="2")
    assert done.returncode == 1
    assert "failed: test_it.py::test_dies" in done.stdout


@pytest.mark.full
def test_a_test_that_hangs_fails_the_run_and_the_others_run(run):
    done, _ = run("def test_hangs():\n    time.sleep(600)\n" + GOOD, limits=("2", "70", "80"), workers="2")
    assert done.returncode == 1
    assert "failed: test_it.py::test_hangs" in done.stdout
    assert "8 passed, 1 failed" in done.stdout


@pytest.mark.full
def test_a_fixture_that_hangs_after_a_failure_ends_its_worker(run):
    fixture = "@pytest.fixture\ndef slow():\n    yield\n    time.sleep(600)\n"
    done, _ = run(GOOD + fixture + "def test_bad(slow):\n    assert 0\n", limits=("2", "3", "70"))
    assert done.returncode == 1
    assert "no test ended any more" not in done.stdout
    assert "failed: test_it.py::test_bad" in done.stdout


@pytest.mark.full
def test_a_session_in_which_nothing_ends_any_more_is_ended(run):
    done, _ = run(GOOD + "def test_hangs():\n    time.sleep(600)\n", limits=("600", "600", "3"))
    assert done.returncode == 1
    assert (
        "failed: test_it.py::test_hangs (it was asked once more and did not end (no test ended any more))"
        in done.stdout
    )
    assert "8 passed" in done.stdout


@pytest.mark.full
def test_a_module_that_hangs_as_it_is_imported_is_named(run, monkeypatch):
    monkeypatch.setattr("tests.run.COLLECTION_SECONDS", 5)
    done, _ = run("time.sleep(600)\n" + GOOD)
    assert done.returncode == 1
    assert "failed: the session (no test was collected within 5 s: a module hangs as it is imported" in done.stdout


@pytest.mark.full
def test_so_many_failures_that_nothing_changes_the_verdict_are_not_asked_again(run, tmp_path):
    file = tmp_path / "state" / "test" / "flaky.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"quick": {"test_before": "a reason"}}')
    done, flaky = run(GOOD + "".join(f"def test_bad_{number}():\n    assert 0\n" for number in range(21)))
    assert done.returncode == 1
    assert "Once more" not in done.stdout
    assert flaky == {"test_before": "a reason"}, "nobody asked"


def test_a_test_that_a_variable_or_a_plugin_leaves_out_fails_the_run(run, monkeypatch):
    found, of = (
        Record(collected=["tests/unit/test_a.py::test_x[1]"]),
        {"unit/test_a.py::test_x", "unit/test_a.py::test_y"},
    )
    monkeypatch.setattr("tests.run.names_of", lambda *_: of)
    assert _not_collected(["quick"], found) == {"tests/unit/test_a.py::test_y": "it was not collected"}
    assert run(GOOD)[0].returncode == 0, "PYTEST_ADDOPTS of the shell select nothing"


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "no test was collected"),
        ("def test_skipped():\n    pytest.skip('lacks a program')\n", "none has passed"),
        ("import no_such_module\n" + GOOD, "No module named 'no_such_module'"),
        ("@pytest.mark.gate\ndef test_of_another_tier():\n    pass\n", "no test was collected"),
        ("pytestmark = []\n" + GOOD, "failed: test_it.py::test_good_7 (Failed: no tier has it"),
    ],
)
def test_a_run_that_proves_nothing_fails(run, body, reason):
    done, _ = run(body)
    assert done.returncode == 1, done.stdout
    assert reason in done.stdout


@pytest.mark.full
def test_a_run_that_is_killed_leaves_no_session_behind(tmp_path, suite):
    started = tmp_path / "started"
    command, environment = suite(
        f"def test_waits():\n    Path({str(started)!r}).write_text(str(os.getpid()))\n    time.sleep(600)\n"
    )
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL) as process:
        eventually(lambda: started.exists() and started.read_text(), "the test runs")
        worker = psutil.Process(int(started.read_text()))
        process.kill()
    eventually(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE, "the worker ended")


@pytest.mark.full
def test_two_runs_at_once_do_not_share_a_record(run, tmp_path):
    locks = tmp_path / "state" / "test" / "run-1"
    locks.mkdir(parents=True)
    holder = (
        "import sys; from pathlib import Path; from harvest_lib.local_stack.state import locked\n"
        f"with locked(Path({str(locks / 'lock')!r}), wait=False) as got:\n    print(got, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as other:
        assert other.stdout.readline() == "True\n"
        done, _ = run(GOOD)
        other.stdin.close()
    assert done.returncode == 0
    assert (locks.parent / "run-2" / "first.jsonl").exists()
    assert not (locks / "first.jsonl").exists()
