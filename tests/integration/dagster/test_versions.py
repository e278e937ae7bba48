"""The oldest and the newest Dagster that the extra allows: definitions, sensors, checks and writers work with both."""

import os
import subprocess

import pytest
from support.installed import ROOT, build, find_uv, install

pytestmark = [pytest.mark.full, pytest.mark.long, pytest.mark.timeout(1200)]  # minutes; both ends are downloaded once

COMPANIONS = ("dagster-dg-cli", "dagster-postgres", "dagster-webserver")


@pytest.mark.parametrize("wanted", ["dagster==1.12.22", "dagster>=1.13,<2"], ids=["oldest", "newest"])
def test_the_unit_tests_pass(wanted, parts, tmp_path):
    uv, venv = find_uv(parts), tmp_path / "venv"
    install(uv, build(uv, tmp_path), venv, "dagster", "local", "spark", "quality", "dev")
    replaced = [uv, "pip", "install", "--quiet", "--upgrade", "--python", venv / "bin" / "python", wanted, *COMPANIONS]
    subprocess.run(replaced, check=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HARVEST_", "PYTEST_"))}
    done = subprocess.run(
        [venv / "bin" / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit/dagster"],
        cwd=ROOT,
        env=kept,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
