"""The exit code of anomalies: that of no crash, for every reader of it."""

import subprocess
import sys
from importlib import import_module

import pytest
from typer.testing import CliRunner

import harvest_lib.audit
from harvest_lib.cli import app
from harvest_lib.errors import FOUND_EXIT_CODE, HarvestError

pytestmark = pytest.mark.quick

OF_INTERPRETERS = {0, 1, 2, 120, 126, 127}
"""Of Python (1, 2, 120: output that cannot be flushed), of Java (1) and of a shell."""


def kinds(error=HarvestError):
    yield error
    for each in error.__subclasses__():
        yield from kinds(each)


def test_no_error_and_no_interpreter_ends_with_it():
    for module in ("harvest_lib.spark.errors", "harvest_lib.spark.quality.contracts", "harvest_lib.spark.audit.state"):
        import_module(module)
    assert FOUND_EXIT_CODE not in OF_INTERPRETERS | {each.exit_code for each in kinds()}
    assert FOUND_EXIT_CODE < 128


def test_an_audit_that_crashes_has_found_nothing(monkeypatch, tmp_path):
    def crashes(*_, **__):
        raise RuntimeError("a bug")

    monkeypatch.setattr(harvest_lib.audit, "read_topics", crashes)
    ids = tmp_path / "ids.jsonl"
    ids.write_text('{"id": 1}\n')
    environment = {"HARVEST_LEADER_GROUP_ID": "g", "HARVEST_BOOTSTRAP_SERVERS": "127.0.0.1:1", "HARVEST_DSN": "host=a"}
    done = CliRunner().invoke(app, ["audit", "--topic", "t", "--committed-file", str(ids)], env=environment)
    assert isinstance(done.exception, RuntimeError)
    assert done.exit_code == 1


AIRFLOW_TASK = """
import harvest_lib.airflow.audit_tasks as tasks
tasks.BashOperator = lambda **how: print(how["bash_command"])
tasks.run_audit()
"""


@pytest.fixture(scope="module")
def command():
    """The shell command of Airflow's task, with the interpreter that it starts replaced by one of ours."""
    source = AIRFLOW_TASK
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False, timeout=300)
    if "No module named 'airflow'" in done.stderr:
        pytest.skip("Airflow is not installed here")
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()[-1]
    assert sys.executable in said
    return said


@pytest.mark.parametrize("code", [0, FOUND_EXIT_CODE])
def test_airflow_goes_on_to_the_report(command, tmp_path, code):
    assert ended_with(command, tmp_path, code) == 0


@pytest.mark.parametrize("code", [1, 2, 3, 5, 10, 120, 137])
def test_airflow_fails_the_audit_that_crashed(command, tmp_path, code):
    assert ended_with(command, tmp_path, code) != 0


def ended_with(command, folder, code):
    fake = folder / "python"
    fake.write_text(f"#!/bin/sh\nexit {code}\n")
    fake.chmod(0o755)
    return subprocess.run(["bash", "-c", command.replace(sys.executable, str(fake))], check=False).returncode
