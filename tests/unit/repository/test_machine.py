"""Programs that the set-up installs on the machine, and the tests that need one that is lacking."""

import os
import subprocess
from pathlib import Path

import pytest
from support.machine import require

pytestmark = pytest.mark.gate

SCRIPT = Path(__file__).parents[3] / "infra" / "machine.sh"


@pytest.fixture
def machine(tmp_path):
    """A path with programs that only write down how they are called."""
    log = tmp_path / "called"
    for name, does in {
        "id": "echo 0",
        "apt-get": f'echo "$@" >>{log}',
        "timeout": 'shift; exec "$@"',
    }.items():
        file = tmp_path / name
        file.write_text(f"#!/bin/sh\n{does}\n")
        file.chmod(0o755)
    (tmp_path / "sh").symlink_to("/bin/sh")

    def run(*arguments, have=()):
        for name in have:
            (tmp_path / name).symlink_to("/bin/sh")
        # Programs of the real machine are out of its reach, also those beside the path.
        script = SCRIPT.read_text().replace(":/usr/sbin:/sbin", "")
        subprocess.run(
            ["/bin/sh", "-c", script, "machine.sh", *arguments], env={"PATH": str(tmp_path)}, check=True, timeout=60
        )
        return log.read_text() if log.exists() else ""

    return run


def test_the_pooler_is_installed_where_it_is_missing(machine):
    assert "install -y -qq --no-install-recommends pgbouncer prometheus" in machine("pooler")


def test_a_pooler_that_is_there_costs_nothing(machine):
    assert machine("pooler", have=["pgbouncer", "promtool"]) == ""


def test_the_faults_want_other_packages(machine):
    called = machine()
    assert "iproute2 mount" in called
    assert "pgbouncer" not in called


@pytest.mark.parametrize(("ci", "outcome"), [("1", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_in_ci_what_could_have_been_installed_must_be_there(ci, outcome, monkeypatch):
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name, **_: "/usr/bin/apt-get" if name == "apt-get" else None)
    with pytest.raises(outcome, match="no pgbouncer"):
        require("there is no pgbouncer", "pgbouncer")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(pytest.skip.Exception):
        require("there is no pgbouncer", "pgbouncer")


def test_nothing_is_skipped_where_nothing_is_lacking():
    require(None, "pgbouncer")
