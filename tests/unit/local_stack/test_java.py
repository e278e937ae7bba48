"""Finding a Java runtime: on the machine when it fits, else in the wheel."""

import os
import subprocess
from pathlib import Path

import pytest

from harvest_lib.errors import StackError
from harvest_lib.local_stack import java
from harvest_lib.local_stack.java import find_java, java_major

pytestmark = pytest.mark.quick


def a_java(home: Path, version: str) -> Path:
    """Make a JAVA_HOME whose Java only knows its version."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'Picked up something' >&2\necho 'openjdk version \"{version}\" x' >&2\n")
    program.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def _no_java(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)


@pytest.mark.parametrize(
    ("version", "major"), [("1.8.0_392", 8), ("17.0.15", 17), ("21", 21), ("25-ea", 25), ("nonsense", None)]
)
def test_versions_are_read(version, major, tmp_path):
    assert java_major(a_java(tmp_path, version)) == major


def test_what_does_not_run_has_no_version(tmp_path):
    assert java_major(tmp_path) is None


def test_java_home_comes_before_path(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(a_java(tmp_path / "home", "17.0.1")))
    monkeypatch.setenv("PATH", str(a_java(tmp_path / "path", "21.0.1") / "bin"))
    assert find_java(tmp_path / "state") == tmp_path / "home"


@pytest.mark.parametrize("unfit", ["11.0.2", "25.0.1"])
def test_one_too_old_or_too_new_is_passed_over(unfit, tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(a_java(tmp_path / "home", unfit)))
    monkeypatch.setenv("PATH", str(a_java(tmp_path / "path", "21.0.1") / "bin"))
    assert find_java(tmp_path / "state") == tmp_path / "path"


def test_a_java_on_path_may_be_a_link(tmp_path, monkeypatch):
    home = a_java(tmp_path / "home", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert find_java(tmp_path / "state") == home


def test_without_any_the_wheel_runs_and_takes_what_spark_asks_for(tmp_path):
    state = tmp_path / "a state's folder"
    home = find_java(state)
    assert home == find_java(state)
    assert java_major(home) == 21
    asked = [home / "bin" / "java", "-Xmx32m", "--add-modules=jdk.incubator.vector", "-Dname=a  b", "-version"]
    assert subprocess.run(asked, capture_output=True, check=False, env={}).returncode == 0
    assert subprocess.run(
        [*asked[:1], "--add-modules=no.such", "-version"], capture_output=True, check=False
    ).returncode


def test_without_any_at_all_the_error_says_what_was_seen(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(a_java(tmp_path / "home", "11.0.2")))
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(StackError, match=r"(?s)Java 11.*set JAVA_HOME"):
        find_java(tmp_path / "state")


def test_the_shim_is_replaced_when_the_wheel_moved(tmp_path):
    program = find_java(tmp_path) / "bin" / "java"
    right = program.read_text()
    program.write_text('#!/bin/sh\nexec /gone "$@"\n')
    find_java(tmp_path)
    assert program.read_text() == right
    assert os.access(program, os.X_OK)
