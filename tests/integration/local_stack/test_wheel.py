"""The wheel, installed alone with its extra `local`: its files, and that the local stack runs from it."""

import json
import os
import shutil
import subprocess
import zipfile

import pytest
from support.installed import build, find_uv, install

from harvest_lib.local_stack.state import download_cache

PACKAGES = {"harvest_lib", "dagster_harvest", "pyspark_harvested.py", "pyspark_outbox.py"}
"""The last two are at the top because Spark looks for the names `pyspark_*` there alone."""

pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]  # about 20 s; the first use of uv may have to download


@pytest.fixture(scope="module")
def wheel(parts, tmp_path_factory):
    return build(find_uv(parts), tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def harvest(wheel, parts, tmp_path_factory):
    """Return a function that runs the installed command in an empty folder with an empty home."""
    venv, home, folder, state = (tmp_path_factory.mktemp(name) for name in ("venv", "home", "folder", "state"))
    programs = install(find_uv(parts), wheel, venv, "local")
    environment = {
        "HOME": str(home),
        "HARVEST_HOME": str(state),
        "HARVEST_CACHE": str(download_cache(parts)),  # brought once; nothing is downloaded here
        "PATH": os.environ["PATH"],
        "COLUMNS": "200",
    }
    if "JAVA_HOME" in os.environ:
        environment["JAVA_HOME"] = os.environ["JAVA_HOME"]

    def run(*arguments):
        command = [str(programs / "harvest"), *arguments]
        return subprocess.run(
            command, check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=200
        )

    def run_python(code):
        return subprocess.run(
            [venv / "bin" / "python", "-c", code],
            check=True,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
        )

    run.folder, run.home, run.python = folder, home, run_python
    return run


def test_the_wheel_holds_these_packages_alone(wheel):
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == PACKAGES


def test_with_a_compiler_the_library_in_c_is_in_it_and_is_used(wheel, harvest):
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("there is no C compiler here")
    assert "harvest_lib/native/hand_over.so" in zipfile.ZipFile(wheel).namelist()
    assert "-py3-none-linux_" in wheel.name
    assert "hand-over: native (" in harvest("version").stdout


def test_without_a_compiler_it_is_for_every_machine_and_python_does_the_work(parts, tmp_path):
    uv = find_uv(parts)
    wheel = build(uv, tmp_path, CC="/nonexistent/cc")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    command = [str(install(uv, wheel, tmp_path / "venv") / "harvest"), "version"]
    environment = {"PATH": os.environ["PATH"], "COLUMNS": "200"}

    def said(**variables):
        return subprocess.run(command, env=environment | variables, capture_output=True, text=True, check=False)

    reason = "it was not built: the package was installed without a C compiler, or the compiler refused it"
    assert f"hand-over: python ({reason})" in said().stdout
    refused = said(HARVEST_IMPL="native")
    assert refused.returncode == 3
    assert f"HARVEST_IMPL=native is not available here: {reason}" in refused.stderr


def test_it_says_its_version_and_how_an_extra_is_added(harvest, wheel):
    assert harvest("--version").stdout == f"harvest {wheel.name.split('-')[1]}\n"
    hint = harvest.python("from harvest_lib.errors import install_hint; print(install_hint('parquet'))").stdout.strip()
    assert hint == f"uv pip install 'outbox-harvester[parquet] @ file://{wheel}'"
    assert harvest.python("import harvest_lib; print(harvest_lib.__version__)").stdout.strip() in wheel.name


def test_help_lists_no_command_of_a_clone(harvest):
    done = harvest("--help")
    assert done.returncode == 0, done.stderr
    assert " up " in done.stdout
    assert "bench" not in done.stdout
    assert "chaos" not in done.stdout
    assert "platform" not in done.stdout


@pytest.mark.parametrize("command", ["bench", "chaos", "platform"])
def test_a_command_of_a_clone_says_where_it_is(harvest, command):
    done = harvest(command)
    assert done.returncode == 2
    assert "source checkout only" in done.stderr


def test_the_local_stack_runs_from_the_wheel(harvest):
    try:
        up = harvest("up", "--json")
        assert up.returncode == 0, up.stderr
        listed = harvest("ps", "--json")
        assert listed.returncode == 0, listed.stderr
        assert json.loads(listed.stdout)
    finally:
        down = harvest("down")
    assert down.returncode == 0, down.stderr
    assert harvest("ps").returncode == 13
    assert list(harvest.folder.iterdir()) == []
    assert list(harvest.home.iterdir()) == []
