"""A module under Dagster Pipes: its lines are the run's log, its JSON messages, its complaints errors."""

import os
import subprocess
import sys

import dagster as dg
import pytest

from dagster_harvest.pipes_main import Lines
from harvest_lib.errors import FOUND_EXIT_CODE

pytestmark = pytest.mark.quick

JOB = """
import json, sys
print("reads", sys.argv[1])
print(json.dumps({"batch": "day", "rows": 3}))
sys.stderr.write("error: the file is gone\\n  next step: bring it back\\n")
raise SystemExit(int(sys.argv[2]))
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    (tmp_path / "a_job.py").write_text(JOB)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    said = tmp_path / "said"

    def run(code, well=""):
        @dg.asset
        def made(context: dg.AssetExecutionContext):
            environment = {"PYTHONPATH": path, "HARVEST_PIPES_STDERR": str(said), "HARVEST_PIPES_SUCCESS_CODES": well}
            command = [sys.executable, "-m", "dagster_harvest.pipes_main", "a_job", "flights", str(code)]
            done = dg.PipesSubprocessClient().run(context=context, command=command, env=environment)
            return dg.MaterializeResult(metadata=done.get_custom_messages()[0])

        with dg.DagsterInstance.ephemeral() as instance:
            result = dg.materialize([made], instance=instance, raise_on_error=False)
            log = [(entry.level, entry.user_message) for entry in instance.all_logs(result.run_id)]
        return result, log, said.read_text()

    return run


def test_lines_messages_and_errors_come_back(job):
    result, log, said = job(0)
    assert result.success
    (materialization,) = result.asset_materializations_for_node("made")
    assert materialization.metadata["rows"].value == 3
    assert (20, "reads flights") in log
    assert (40, "error: the file is gone") in log
    assert said == "error: the file is gone\n  next step: bring it back\n"


def test_an_exit_code_fails_the_run(job):
    assert not job(5)[0].success


def test_a_finding_is_no_failure_and_a_crash_is_one(job):
    found = str(FOUND_EXIT_CODE)
    assert job(FOUND_EXIT_CODE, well=found)[0].success
    assert not job(1, well=found)[0].success


def test_half_lines_wait_for_their_end():
    heard = []
    lines = Lines(heard.append)
    lines.write("one ")
    lines.write("line\n\nand ano")
    assert heard == ["one line"]
    lines.close()
    assert heard == ["one line", "and ano"]


def test_outside_dagster_a_module_runs_all_the_same(tmp_path):
    (tmp_path / "a_job.py").write_text(JOB)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "dagster_harvest.pipes_main", "a_job", "x", "4"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 4


def test_a_module_runs_where_the_folder_for_its_errors_is_missing(tmp_path):
    (tmp_path / "a_job.py").write_text(JOB)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "dagster_harvest.pipes_main", "a_job", "x", "0"],
        env={**os.environ, "PYTHONPATH": path, "HARVEST_PIPES_STDERR": str(tmp_path / "not_here" / "said")},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
