"""Dagster's own commands find nothing to complain of."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[3]


@pytest.fixture
def command(tmp_path):
    (tmp_path / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    variables = {name: value for name, value in os.environ.items() if not name.startswith("HARVEST_")}
    variables |= {"DAGSTER_HOME": str(tmp_path), "DAGSTER_DISABLE_TELEMETRY": "1", "PYTHONPATH": str(ROOT)}
    folder = Path(sys.executable).parent

    def run(program, *arguments):
        return subprocess.run(
            [str(folder / program), *arguments],
            cwd=ROOT,
            env=variables,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


def test_the_definitions_are_valid(command):
    done = command("dagster", "definitions", "validate", "-m", "dagster_harvest.example_flights.definitions")
    assert done.returncode == 0, done.stderr
    assert "All code locations passed validation" in done.stdout + done.stderr


def test_dg_checks_the_definitions_and_the_yaml(command):
    done = command("dg", "check", "defs")
    assert done.returncode == 0, done.stderr
    assert "All component YAML validated" in done.stdout
    assert "All definitions loaded" in done.stdout


def test_dg_lists_them(command):
    done = command("dg", "list", "defs", "--json")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "flights_harvester_daemon" in done.stdout
    assert "audit/flights_audit" in done.stdout
